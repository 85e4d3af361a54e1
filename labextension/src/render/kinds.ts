/** The kinds of data in outputs. Their drawing code is loaded when the first one is visible. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { CLOCK } from '@widget/comm/frames.js';
import { make } from '@widget/dom/elements.js';
import { type Drawing, uniqueName } from './drawing';
import { type ComparisonBundle, readComparison } from './comparison-bundle';
import { type BundleKind, python, type Send } from './renderer';
import { readRun, type RunBundle } from './run-bundle';
import { readSweep, type SweepBundle } from './sweep-bundle';
import type { Commanded } from './sweep-commands';

export const RUN: BundleKind<RunBundle> = {
  mimeType: 'application/vnd.nbdist.run+json',
  read: readRun,
  fetch: (client, id) => client.runOutput(id),
  draw: drawRun,
  id: bundle => bundle.head.run,
  again: ({ head }, trans) => ({ code: `nb.attach(${python(head.run)})`, text: trans.__('opens the run in a kernel.') }),
  below: (texts, { leftOut, progress, marks }, trans) => {
    const drawn = [`trained on ${progress.trained_on}`, `⚠ ${progress.warning}`, `checkpoint: ${progress.checkpoint?.path}`];
    const states = marks.filter(({ kind }) => kind === 'state');
    const first = marks.find(mark => mark.kind !== 'state' || mark === states.at(-1)); // one line names all but earlier states
    const within = first?.epoch ? ` (epoch ${first.epoch.toLocaleString('en')})` : '';
    const marked = first && `${first.step.toLocaleString('en')}${within} ${first.text}`;
    const words = texts.filter(({ textContent }) => {
      const line = textContent ?? '';
      const isInput = Boolean(progress.input) && /^Input( of |: )/.test(line);
      return !isInput && !drawn.includes(line) && !(marked && line.startsWith(marked, 2)); // the view has these lines
    });
    const parts = leftOut ? [make('p', {}, curvesLeftOut(leftOut, trans)), ...words] : words;
    return parts.length ? [make('div', { class: 'nbd-details' }, ...parts)] : [];
  }
};

export const SWEEP: BundleKind<SweepBundle> = {
  mimeType: 'application/vnd.nbdist.sweep+json',
  read: readSweep,
  fetch: (client, id) => client.sweepOutput(id),
  draw: drawSweep,
  id: bundle => bundle.snapshot.head.id,
  again: ({ snapshot }, trans) => ({
    code: `nb.attach(${python(snapshot.head.id)})`,
    text: trans.__('follows the sweep from a kernel, where trials can be added, stopped and cloned.')
  }),
  below: (texts, { snapshot, shown, of, leftOut }, trans) => {
    const parts: HTMLElement[] = [];
    if (shown < of) {
      parts.push(make('p', {}, trans.__('%1 of %2 trials are saved in the notebook: the best, and a sample of the others.', shown, of)));
    }
    if (leftOut) {
      parts.push(make('p', {}, curvesLeftOut(leftOut, trans)));
    }
    const words = texts.filter(part => !part.querySelector('table')); // the grid already has a table
    if (words.length) {
      const folded = make('details', {}, make('summary', {}, trans.__('Summary')), ...words);
      folded.open = snapshot.status.state === 'failed';
      parts.push(folded);
    }
    return parts.length ? [make('div', { class: 'nbd-details' }, ...parts)] : [];
  }
};

export const COMPARISON: BundleKind<ComparisonBundle> = {
  mimeType: 'application/vnd.nbdist.comparison+json',
  read: readComparison,
  draw: drawComparison,
  id: () => '',
  again: ({ runs }, trans) => ({ code: `nb.compare(${runs.map(({ id }) => python(id)).join(', ')})`, text: trans.__('reads the runs again.') }),
  below: (texts, { leftOut }, trans) => {
    const words = texts.filter(part => !part.querySelector('table')); // the drawing has it
    const parts = leftOut ? [make('p', {}, curvesLeftOut(leftOut, trans)), ...words] : words;
    return parts.length ? [make('div', { class: 'nbd-details' }, ...parts)] : [];
  }
};

/** The charts of a run, by the drawing code of the live view; without controls it asks only for other charts. */
async function drawRun(first: RunBundle, send: Send = () => undefined): Promise<Drawing<RunBundle>> {
  const { RunView } = await import('@widget/run/view.js');
  const view = new RunView(uniqueName(), send);
  const take = ({ head, progress, curves, marks, gpus, pictures, available }: RunBundle): void => {
    view.toolbar.time.hidden = !curves.some(({ series }) => series === CLOCK); // saved before 2026-11-28
    view.apply({ kind: 'frame', snapshot: true, head, progress, marks, gpus, pictures, available, replaced: [] }, curves);
  };
  take(first);
  return { element: view.element, take, redraw: () => view.redraw(), close: () => view.close() };
}

/** The grid of a sweep, by the drawing code of the live grid; it has commands where a kernel takes them. */
async function drawSweep(first: SweepBundle): Promise<Drawing<SweepBundle>> {
  const { SweepView } = await import('@widget/sweep/view.js');
  const grid = new SweepView(uniqueName(), null);
  const take = ({ snapshot }: SweepBundle): void => grid.model.apply(snapshot);
  take(first);
  const commanded: Commanded = { connect: send => grid.connect(send), receive: answer => grid.commands.receive(answer) };
  return { element: grid.element, take, redraw: () => grid.redraw(), close: () => grid.destroy(), commanded };
}

/** The curves of several runs, and what differs between them. */
async function drawComparison(first: ComparisonBundle): Promise<Drawing<ComparisonBundle>> {
  const { CompareView } = await import('@widget/compare/view.js');
  const view = new CompareView(uniqueName());
  view.apply(first);
  return { element: view.element, take: bundle => view.apply(bundle), redraw: () => view.redraw(), close: () => view.close() };
}

function curvesLeftOut(count: number, trans: TranslationBundle): string {
  return trans._n('%1 curve was too large to save in the notebook.', '%1 curves were too large to save in the notebook.', count);
}
