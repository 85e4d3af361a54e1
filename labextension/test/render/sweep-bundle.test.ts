import { beforeAll, describe, expect, it } from 'vitest';
import { SweepView } from '@widget/sweep/view.js';
import { UnreadableError } from '../../src/render/json';
import { SWEEP } from '../../src/render/kinds';
import { readSweep } from '../../src/render/sweep-bundle';
import { RUBBISH, spoilt } from './rubbish';

import data from './sweep.json'; // sweep_bundle(12) of tests/browser/saved_to_show.py

describe('readSweep', () => {
  it('keeps what a sweep has left in a notebook', () => {
    const { snapshot, shown, of } = readSweep(data);
    expect([shown, of]).toEqual([12, 12]);
    const { head, status, trials, curves, spans, best } = snapshot as Record<string, any>;
    const { parameters, ...about } = head;
    expect(about).toEqual({ ...data.head, parameters: undefined });
    expect(parameters.map(({ name }: { name: string }) => name)).toEqual(data.head.parameters.map(({ name }) => name));
    expect(status).toEqual(data.status);
    expect(trials).toMatchObject({
      number: data.trials.number,
      state: data.trials.state,
      value: data.trials.value,
      parameters: data.trials.parameters
    });
    expect(curves).toEqual(data.curves);
    expect(spans).toEqual(data.spans);
    expect(best).toEqual(data.best);
  });

  it('keeps the number of all trials, and how busy the engines were with them', () => {
    const { snapshot } = readSweep({ ...data, of: 99, status: { ...data.status, busy: [[0, 0.5], ['x', 1], [1, null]] } });
    expect([snapshot['of'], (snapshot.status as Record<string, any>)['busy']]).toEqual([99, [[0, 0.5]]]);
  });

  it('keeps the heat maps of all trials, without their damaged parts', () => {
    const bins = { lr: { edges: [0.1, 0.2, 0.4], none: true }, n: { values: [[1, 2], ['a']] }, bad: { edges: [2, 1] }, worse: 7 };
    const cells = '0 1 7 0.5 nan 0 0 3 0 0 0 x 1 7 0.5 0.5 0 0 3 0 0 0 1 0 -1 inf 0.5 0 0 0 0 0 2 1';
    const pairs = [{ x: 'lr', y: 'n', cells }, { x: 'lr', y: 'bad', cells }, { x: 'lr', y: 'toString', cells }, null];
    expect(readSweep({ ...data, cells: { bins, pairs } }).snapshot['cells']).toEqual({
      bins: { lr: { edges: [0.1, 0.2, 0.4], none: true }, n: { values: [[1, 2], ['a']], none: false } },
      pairs: [{ x: 'lr', y: 'n', cells: [[0, 1, 7, 0.5, NaN, 0, 0, 3, 0, 0, 0], [1, 0, -1, Infinity, 0.5, 0, 0, 0, 0, 0, 2]] }] // prettier-ignore
    });
    expect(readSweep({ ...data, cells: 'x' }).snapshot['cells']).toBeUndefined();
  });

  it('unpacks curves, and shows the number of curves left out', () => {
    const points = new Uint8Array(new Float32Array([1, 0.5, 3, NaN, 2, 7, 4, 0.25]).buffer); // the third does not ascend
    const packed = btoa(String.fromCharCode(...points));
    const number = String(data.trials.number[0]);
    const { snapshot, leftOut } = readSweep({ ...data, curves: { [number]: packed, '999': packed }, left_out: 3 });
    expect(snapshot['curves']).toEqual({ [number]: [[1, 3, 4], [0.5, 'NaN', 0.25]] });
    expect(leftOut).toBe(3);
    expect(readSweep(data).leftOut).toBe(0);
    expect(readSweep({ ...data, curves: { [number]: '§', '1': '' } }).snapshot['curves']).toEqual({});
  });

  it('takes the word that notebooks had for a finished trial before', () => {
    const { counts } = data.status as { counts: Record<string, number> };
    const { finished, ...others } = counts;
    const before = {
      ...data,
      status: { ...data.status, counts: { complete: finished, ...others } },
      spans: data.spans.map(span => span.map(one => (one === 'finished' ? 'complete' : one)))
    };
    expect(readSweep(before).snapshot).toEqual(readSweep(data).snapshot);
  });

  it.each([...RUBBISH, { version: 1 }, { version: 1, head: {}, status: [] }])('refuses what is no sweep: %j', other => {
    expect(() => readSweep(other)).toThrow(UnreadableError);
  });

  it('says of a newer version which one it is', () => {
    expect(() => readSweep({ ...data, version: 2 })).toThrow(expect.objectContaining({ newer: 2 }));
  });

  it('leaves out rows that no trial can have', () => {
    const trials = { number: [0, 0, -1, 1, 'x', 2], state: [2, 2, 2, 9, 2, 3], value: [1, 2, 3, 4, 5, 6] };
    const { snapshot } = readSweep({ ...data, trials });
    expect(snapshot.trials).toMatchObject({ number: [0, 2], state: [2, 3], value: [1, 6], attempt: [1, 1] });
  });
});

describe('the grid', () => {
  beforeAll(() => {
    const nothing = (): unknown => new Proxy({}, { get: (_, name) => (name === 'measureText' ? () => ({ width: 9 }) : nothing), set: () => true });
    HTMLCanvasElement.prototype.getContext = (() => nothing()) as never;
    Object.defineProperty(Element.prototype, 'clientWidth', { get: () => 800, configurable: true });
  });

  it('draws what is left of damaged data', { timeout: 60_000 }, () => {
    for (const spoiltData of spoilt(data, 40)) {
      const grid = new SweepView('g', null);
      document.body.replaceChildren(grid.element);
      let bundle;
      try {
        bundle = readSweep({ ...spoiltData, version: 1 });
      } catch (error) {
        expect(error).toBeInstanceOf(UnreadableError);
        continue;
      }
      grid.model.apply(bundle.snapshot);
      grid.draw();
      expect(grid.element.querySelectorAll('img, script')).toHaveLength(0);
      grid.destroy();
    }
  });

  it('hides the buttons for commands unless a kernel takes them', async () => {
    const { element, redraw, close, commanded } = await SWEEP.draw(readSweep(data));
    document.body.replaceChildren(element);
    redraw();
    const hidden = '.nbs-without-commands :is(.nbs-actions, .nbs-output) button'; // as in sweep.css
    const buttons = [...element.querySelectorAll('button')].filter(one => !one.matches(hidden)).map(one => one.textContent);
    for (const button of ['Pause', 'Stop sweep', 'Add trials', 'Edit the space', 'Stop', 'Retry', 'Clone…', 'Insert parameters as cell', 'Refresh']) {
      expect(buttons).not.toContain(button);
    }
    expect(buttons).toContain('Next');
    commanded?.connect(() => undefined);
    expect(element.querySelector(hidden)).toBeNull();
    close();
  });
});
