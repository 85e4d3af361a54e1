/** The two kinds of data that outputs have. Their drawing code is loaded when the first one is seen. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { make } from '@widget/dom/elements.js';
import type { Kind } from './renderer';
import { readRun, type RunBundle } from './runbundle';
import { readSweep, type SweepBundle } from './sweepbundle';

function curvesLeftOut(count: number, trans: TranslationBundle): string {
  return trans._n('%1 curve had no room in the notebook.', '%1 curves had no room in the notebook.', count);
}

export const RUN: Kind<RunBundle> = {
  mimeType: 'application/vnd.nbdist.run+json',
  read: readRun,
  draw: async bundle => (await import('./rundrawing')).drawRun(bundle),
  id: bundle => bundle.head.run,
  attaches: trans => trans.__('shows the run in a kernel again.'),
  below: (told, { leftOut }, trans) => {
    const parts = leftOut ? [make('p', {}, curvesLeftOut(leftOut, trans)), ...told] : told;
    return parts.length ? [make('div', { class: 'nbd-told' }, ...parts)] : [];
  }
};

export const SWEEP: Kind<SweepBundle> = {
  mimeType: 'application/vnd.nbdist.sweep+json',
  read: readSweep,
  draw: async bundle => (await import('./sweepdrawing')).drawSweep(bundle),
  id: bundle => bundle.snapshot.head.id,
  attaches: trans => trans.__('follows the sweep from a kernel, where trials can be added, stopped and cloned.'),
  below: (told, { snapshot, shown, of, leftOut }, trans) => {
    const parts: HTMLElement[] = [];
    if (shown < of) {
      parts.push(make('p', {}, trans.__('%1 of %2 trials had room in the notebook: the best, and some of all others.', shown, of)));
    }
    if (leftOut) {
      parts.push(make('p', {}, curvesLeftOut(leftOut, trans)));
    }
    const words = told.filter(part => !part.querySelector('table')); // the grid has a table of its own
    if (words.length) {
      const folded = make('details', {}, make('summary', {}, trans.__('Summary')), ...words);
      folded.open = snapshot.status.state === 'failed';
      parts.push(folded);
    }
    return parts.length ? [make('div', { class: 'nbd-told' }, ...parts)] : [];
  }
};
