/** The two kinds of data that outputs have. Their drawing code is loaded when the first one is seen. */

import { make } from '@widget/dom.js';
import type { Kind } from './renderer';
import { readRun, type RunBundle } from './runbundle';

export const RUN: Kind<RunBundle> = {
  mimeType: 'application/vnd.nbdist.run+json',
  read: readRun,
  draw: async bundle => (await import('./rundrawing')).drawRun(bundle),
  id: bundle => bundle.head.run,
  attaches: trans => trans.__('shows the run in a kernel again.'),
  below: (told, { leftOut }, trans) => {
    const left = trans._n('%1 curve had no room in the notebook.', '%1 curves had no room in the notebook.', leftOut, leftOut);
    const parts = leftOut ? [make('p', {}, left), ...told] : told;
    return parts.length ? [make('div', { class: 'nbd-told' }, ...parts)] : [];
  }
};
