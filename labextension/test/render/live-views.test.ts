/** What takes the place of a live view that no kernel has any more. */

import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { FocusKeeper, PATIENCE, replaceDeadViews } from '../../src/render/live-views';
import { saveNewViews } from '../../src/render/save-views';

const WIDGET = 'application/vnd.jupyter.widget-view+json';
const RUN = 'application/vnd.nbdist.run+json';
const WORDS = "Live view of digits (r-7); to reconnect, run nb.attach('r-7')";
const LIVE = { version: 1, live: 'r-7' };

/** An output as JupyterLab has it. */
function output(shown: string, data: Record<string, unknown>) {
  const node = document.createElement('div');
  const drawn = node.appendChild(document.createElement('div'));
  drawn.className = 'jp-OutputArea-output';
  drawn.innerHTML = shown;
  document.body.replaceChildren(node);
  const model = { data, setData: (options: { data: Record<string, unknown> }) => void (model.data = options.data) };
  return { node, drawn, model, area: { model: { length: 1, get: () => model }, widgets: [{ node }] } };
}

const view = (state: string, kind = 'live'): string =>
  `<section class="nbdist-${kind}"><span class="nbd-chip" data-state="${state}">${state}</span><button>Pause</button></section>`;

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test.each([
  ['Loading widget...', false, true],
  ['Loading widget...', true, false], // the kernel may still send it
  ['', true, false], // it is being drawn
  ['Error displaying widget: model not found', true, true],
  [view('disconnected'), true, true],
  [view('running'), true, false],
  [view('finished'), true, false], // such as of run.show()
  [view('disconnected', 'sweep'), true, true],
  [view('done', 'sweep'), true, false] // its commands work
])('%s, connected %s: replaced %s', (shown, connected, replaced) => {
  const { model, area } = output(shown, { [WIDGET]: {}, 'text/plain': WORDS, [RUN]: LIVE });
  replaceDeadViews(area, connected, [WIDGET, RUN]);
  expect(model.data).toEqual({ ...(replaced ? {} : { [WIDGET]: {} }), 'text/plain': WORDS, [RUN]: LIVE });
});

test('a view that its kernel has closed is replaced', () => {
  const { drawn, model, area } = output('', { [WIDGET]: {}, 'text/plain': WORDS, [RUN]: LIVE });
  drawn.classList.add('lm-mod-hidden');
  replaceDeadViews(area, true, [WIDGET, RUN]);
  expect(model.data).toEqual({ 'text/plain': WORDS, [RUN]: LIVE });
});

test.each([
  [WORDS, [WIDGET], LIVE, WORDS], // the renderer is disabled
  [[WORDS], [WIDGET, RUN], undefined, WORDS], // it was saved without an id
  ['IntSlider(value=0)', [WIDGET, RUN], undefined, 'Loading widget...'] // of another package
])('%s is text where nothing can draw it', (words, renders, data, expected) => {
  const { drawn, model, area } = output('Loading widget...', { [WIDGET]: {}, 'text/plain': words, ...(data ? { [RUN]: data } : {}) });
  replaceDeadViews(area, false, renders);
  expect(drawn.textContent).toBe(expected);
  expect(model.data[WIDGET]).toBeDefined();
});

describe('a view that has ended', () => {
  test('waits for its kernel, and is replaced in a page that its kernel does not reach', () => {
    const { drawn, model, area } = output(view('running'), { [WIDGET]: {}, 'text/plain': WORDS, [RUN]: LIVE });
    const ends = new WeakMap<Element, number>();
    const later = vi.fn();
    const look = (): void => replaceDeadViews(area, true, [WIDGET, RUN], ends, later);
    look();
    drawn.querySelector<HTMLElement>('.nbd-chip')!.dataset['state'] = 'finished';
    look();
    expect(model.data[WIDGET]).toBeDefined();
    vi.advanceTimersByTime(PATIENCE + 10);
    expect(later).toHaveBeenCalledOnce();
    drawn.querySelector('button')!.focus();
    look();
    expect(model.data[WIDGET]).toBeDefined(); // it is in use
    drawn.querySelector('button')!.blur();
    look();
    expect(model.data).toEqual({ 'text/plain': WORDS, [RUN]: LIVE });
  });
});

test('the focus of a replaced view goes to its output, and one that was left stays left', () => {
  const { node, drawn } = output(view('running'), {});
  node.className = 'jp-Cell';
  const keeper = new FocusKeeper();
  const button = drawn.querySelector('button')!;
  button.focus();
  keeper.look();
  button.blur();
  keeper.look();
  expect(document.activeElement).toBe(document.body);
  button.focus();
  keeper.look();
  drawn.replaceChildren('the picture');
  button.blur();
  keeper.look();
  expect(document.activeElement).toBe(drawn);
});

describe('a notebook with a new view', () => {
  function panel(more: Record<string, unknown> = {}) {
    const { node } = output(view('starting'), {});
    const save = vi.fn(async () => undefined);
    const model = { dirty: true, readOnly: false, collaborative: false, ...more };
    const found = { content: { node }, context: { model, save, contentsModel: { writable: true } } };
    return { panel: found as unknown as NotebookPanel, save };
  }

  test('is saved once, so that a reloaded page has the view', () => {
    const { panel: opened, save } = panel();
    const saver = { seen: new WeakSet<Element>(), autosaves: () => true };
    saveNewViews(opened, saver);
    saveNewViews(opened, saver);
    expect(save).toHaveBeenCalledOnce();
  });

  test.each([
    [{ dirty: false }, true], // it was just loaded
    [{ readOnly: true }, true],
    [{ collaborative: true }, true],
    [{}, false] // the user saves it
  ])('is left alone: %o, autosave %s', (more, autosave) => {
    const { panel: opened, save } = panel(more);
    saveNewViews(opened, { seen: new WeakSet(), autosaves: () => autosave });
    expect(save).not.toHaveBeenCalled();
  });
});
