import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { EMPTY_STATE, type Run, type State } from '../../src/api/items';
import { newsOf } from '../../src/notifications/news';
import { IDLE, Notifier, STARTED, WATCHING } from '../../src/notifications/notifier';
import { DEFAULTS, type Settings } from '../../src/settings';
import { RUN, SWEEP } from '../sidebar/items';

const emitted = vi.hoisted(() => ({ all: [] as { text: string; type: string; options: any }[] }));
vi.mock('@jupyterlab/ui-components', async () => ({ ReactWidget: (await import('@lumino/widgets')).Widget }));
vi.mock('@jupyterlab/apputils', () => ({
  Notification: { emit: (text: string, type: string, options: unknown) => emitted.all.push({ text, type, options: options as any }) }
}));

const trans = nullTranslator.load('nbdist');
const runs = (...all: Partial<Run>[]): State => ({ ...EMPTY_STATE, runs: all.map(one => ({ ...RUN, ...one })) });
const texts = (before: State, state: State, longer = 60, now = 1000): string[] =>
  newsOf(before, state, longer, now, trans).map(news => `${news.type}: ${news.text}`);

describe('the news of a state', () => {
  it('are ends of long runs, with their last value or their error', () => {
    const going = runs({});
    expect(texts(going, runs({ status: 'finished', ended: 320 }))).toEqual(['success: Run digits has finished after 2 min: loss 0.125']);
    expect(texts(going, runs({ status: 'stopped', ended: 320, value: null }))).toEqual(['info: Run digits was stopped after 2 min']);
    const failed = runs({ status: 'failed', ended: 320, error_line: 'ValueError: late (line 4, worker 1)' });
    expect(texts(going, failed)).toEqual(['error: Run digits has failed after 2 min: ValueError: late (line 4, worker 1)']);
    expect(texts(going, runs({ status: 'lost', note: 'its cluster a has ended' }))).toEqual([
      'error: Run digits is lost after 13 min: its cluster a has ended'
    ]);
  });

  it('leave out what is short, paused, or was over before', () => {
    expect(texts(runs({}), runs({ status: 'finished', ended: 259 }))).toEqual([]);
    expect(texts(runs({}), runs({ status: 'finished', ended: 320, paused: 80 }))).toEqual([]);
    expect(texts(runs({}), runs({ status: 'finished', ended: 259 }), 0)).toHaveLength(1);
    expect(texts(runs({ status: 'finished', ended: 320 }), runs({ status: 'finished', ended: 320 }))).toEqual([]);
    expect(texts(EMPTY_STATE, runs({ status: 'failed', ended: 320 }))).toEqual([]);
    expect(texts(runs({}), EMPTY_STATE)).toEqual([]); // it was deleted
    expect(texts(runs({}), runs({ status: 'paused' }))).toEqual([]);
    expect(texts(runs({ status: 'paused' }), runs({ status: 'finished', ended: 320 }))).toHaveLength(1);
  });

  it('are lost workers of a run that continues, however short it is', () => {
    const [none, one, two] = [runs({}), runs({ lost: ['worker 1'] }), runs({ lost: ['worker 1', 'worker 0', 'worker 1'] })];
    expect(texts(none, one)).toEqual(['warning: Run digits has lost worker 1, and continues.']);
    expect(texts(one, two)).toEqual(['warning: Run digits has lost worker 0, worker 1, and continues.']);
    expect(texts(one, one)).toEqual([]);
    expect(texts(runs({ lost: [] }), one)).toHaveLength(1);
  });

  it('are ends of sweeps', () => {
    const going = { ...EMPTY_STATE, sweeps: [SWEEP] };
    const ended = (state: 'finished' | 'stopped' | 'failed' | 'lost'): State => ({
      ...EMPTY_STATE,
      sweeps: [{ ...SWEEP, state, error: state === 'failed' ? 'no engine' : null }]
    });
    expect(texts(going, ended('finished'))).toEqual(['success: Sweep rates has finished after 12 min: accuracy 0.98']);
    expect(texts(going, ended('stopped'))).toEqual(['info: Sweep rates was stopped after 12 min: accuracy 0.98']);
    expect(texts(going, ended('failed'))).toEqual(['error: Sweep rates has failed after 12 min: no engine']);
    expect(texts(ended('finished'), ended('stopped'))).toEqual([]);
    expect(texts(going, ended('finished'), 60, 330)).toEqual([]);
  });
});

/** A page: its feed, what its requests are answered, and whether it is hidden. */
function aPage(values: Partial<Settings['values']> = {}) {
  const page = {
    state: EMPTY_STATE as State,
    asked: 0,
    hidden: false,
    settings: { values: { ...DEFAULTS, ...values }, changed: null as unknown as Signal<object, void> },
    feed: { state: EMPTY_STATE as State, changed: null as unknown as Signal<object, void> },
    executed: [] as unknown[],
    notifier: null as unknown as Notifier,
    tell: (state: State) => {
      page.state = page.feed.state = state;
      page.feed.changed.emit();
    }
  };
  page.feed.changed = new Signal<object, void>(page.feed);
  page.settings.changed = new Signal<object, void>(page.settings);
  vi.spyOn(document, 'hidden', 'get').mockImplementation(() => page.hidden);
  const client = {
    state: () => {
      page.asked += 1;
      return Promise.resolve(page.state);
    }
  };
  const nbdist = { feed: page.feed, client, trans } as never;
  const commands = { execute: (...given: unknown[]) => void page.executed.push(given) } as never;
  page.notifier = new Notifier(nbdist, page.settings as never, commands);
  return page;
}

const LONG = { status: 'finished', ended: 320 } as const;

describe('the notifier', () => {
  const shown: { title: string; options: NotificationOptions; onclick: (() => void) | null; close: () => void }[] = [];

  beforeEach(() => {
    vi.useFakeTimers();
    emitted.all = [];
    shown.length = 0;
    const browser = vi.fn(function (this: any, title: string, options: NotificationOptions) {
      shown.push(Object.assign(this, { title, options, onclick: null, close: () => undefined }));
    });
    vi.stubGlobal('Notification', Object.assign(browser, { permission: 'granted', requestPermission: vi.fn() }));
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.unstubAllGlobals();
    vi.restoreAllMocks();
  });

  it('tells what other parts of the page have read, once, with a button that opens it', () => {
    const page = aPage();
    page.tell(runs({}));
    page.tell(runs(LONG));
    page.tell(runs(LONG));
    expect(emitted.all.map(({ text, type }) => [type, text])).toEqual([
      ['success', 'Run digits has finished after 2 min: loss 0.125']
    ]);
    const [show, ...others] = emitted.all[0]!.options.actions;
    expect(others).toEqual([]);
    show.callback();
    expect(page.executed).toEqual([['nbdist:open-run', { id: 'r' }]]);
    expect(emitted.all[0]!.options.autoClose).toBe(10_000);
    expect(shown).toEqual([]); // the page is visible
  });

  it('reads the state itself while something runs and no other part does', async () => {
    const page = aPage();
    page.tell(EMPTY_STATE);
    page.state = runs({}); // it was started just now, by another process
    page.hidden = true;
    document.dispatchEvent(new Event('visibilitychange'));
    await vi.advanceTimersByTimeAsync(0);
    page.state = runs(LONG);
    await vi.advanceTimersByTimeAsync(WATCHING);
    expect(page.asked).toBe(2);
    expect(emitted.all).toHaveLength(1);
    expect(emitted.all[0]!.options.autoClose).toBe(false); // until it is seen
    expect(shown.map(({ title, options }) => [title, options.body, options.tag])).toEqual([
      ['nbdist', 'Run digits has finished after 2 min: loss 0.125', 'nbdist r']
    ]);
    shown[0]!.onclick!();
    expect(page.executed).toEqual([['nbdist:open-run', { id: 'r' }]]);
    await vi.advanceTimersByTimeAsync(10 * IDLE);
    expect(page.asked).toBe(2); // nothing runs, and the page is hidden
  });

  it('looks when a cell has started, and seldom while nothing runs', async () => {
    const page = aPage();
    await vi.advanceTimersByTimeAsync(IDLE);
    expect(page.asked).toBe(1);
    page.hidden = true;
    page.state = runs({});
    page.notifier.onStart();
    await vi.advanceTimersByTimeAsync(STARTED);
    expect(page.asked).toBe(2);
    await vi.advanceTimersByTimeAsync(WATCHING);
    expect(page.asked).toBe(3);
  });

  it('asks for no request while others read', async () => {
    const page = aPage();
    for (let i = 0; i < 20; i++) {
      page.tell(runs({ step: i }));
      await vi.advanceTimersByTimeAsync(WATCHING / 3);
    }
    expect(page.asked).toBe(0);
  });

  it('obeys the settings and the permission', async () => {
    const quiet = aPage({ notify: false });
    quiet.tell(runs({}));
    quiet.tell(runs(LONG));
    await vi.advanceTimersByTimeAsync(10 * IDLE);
    expect([emitted.all, quiet.asked]).toEqual([[], 0]);
    const inside = aPage({ notifyBrowser: false });
    inside.hidden = true;
    inside.tell(runs({}));
    inside.tell(runs(LONG));
    expect([emitted.all.length, shown]).toEqual([1, []]);
    (window.Notification as any).permission = 'default';
    const asks = aPage();
    asks.hidden = true;
    asks.tell(runs({}));
    asks.tell(runs({ ...LONG, status: 'failed', error_line: 'late' }));
    expect(shown).toEqual([]);
    const [, allow] = emitted.all[1]!.options.actions;
    allow.callback();
    expect(window.Notification.requestPermission).toHaveBeenCalledTimes(1);
    (window.Notification as any).permission = 'denied';
    const denied = aPage();
    denied.hidden = true;
    denied.tell(runs({}));
    denied.tell(runs(LONG));
    expect(emitted.all[2]!.options.actions).toHaveLength(1);
  });

  it('survives a server that is away, and ends', async () => {
    const page = aPage();
    page.tell(runs({}));
    const client = (page.notifier as any).nbdist.client;
    const state = client.state;
    client.state = () => Promise.reject(new Error('away'));
    await vi.advanceTimersByTimeAsync(WATCHING);
    client.state = state;
    page.state = runs(LONG);
    await vi.advanceTimersByTimeAsync(WATCHING);
    expect(emitted.all).toHaveLength(1);
    page.notifier.dispose();
    page.tell(runs({}));
    page.tell(runs(LONG));
    await vi.advanceTimersByTimeAsync(IDLE);
    expect([emitted.all.length, page.notifier.isDisposed]).toEqual([1, true]);
  });
});
