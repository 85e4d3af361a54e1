import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { EMPTY_STATE, type State } from '../../src/api/items';
import { IDLE, RUNNING, STARTED, StatusItem } from '../../src/status/status-item';
import type { INbdist } from '../../src/token';
import { RUN } from '../sidebar/items';

vi.mock('@jupyterlab/ui-components', async () => ({ ReactWidget: (await import('@lumino/widgets')).Widget }));

/** A feed that answers with a given state, and counts the requests. */
function aFeed() {
  const feed = {
    state: EMPTY_STATE as State,
    hasViews: false,
    asked: 0,
    changed: null as unknown as Signal<object, void>,
    refresh: () => {
      feed.asked += 1;
      return Promise.resolve();
    }
  };
  feed.changed = new Signal<object, void>(feed);
  return feed;
}

describe('the status bar', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it('asks every 5 s while something runs, and at once when a cell has ended', async () => {
    const feed = aFeed();
    const [started, ended] = [new Signal<object, void>({}), new Signal<object, void>({})];
    const nbdist = { feed, trans: nullTranslator.load('nbdist') } as unknown as INbdist;
    const item = new StatusItem(nbdist, () => undefined, { started, ended });
    expect(feed.asked).toBe(1);
    await vi.advanceTimersByTimeAsync(IDLE - 1);
    expect(feed.asked).toBe(1);
    feed.state = { ...EMPTY_STATE, runs: [RUN] };
    await vi.advanceTimersByTimeAsync(1);
    expect(feed.asked).toBe(2);
    await vi.advanceTimersByTimeAsync(2 * RUNNING);
    expect(feed.asked).toBe(4);
    feed.state = EMPTY_STATE;
    ended.emit();
    expect(feed.asked).toBe(5);
    await vi.advanceTimersByTimeAsync(RUNNING);
    expect(feed.asked).toBe(5);
    started.emit();
    await vi.advanceTimersByTimeAsync(STARTED);
    expect(feed.asked).toBe(6);
    feed.hasViews = true; // the panel's stream tells
    ended.emit();
    expect(feed.asked).toBe(6);
    item.dispose();
    started.emit();
    await vi.advanceTimersByTimeAsync(IDLE);
    expect(feed.asked).toBe(6);
  });
});
