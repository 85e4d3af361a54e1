import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ApiError, type Client } from '../../src/api/client';
import { Feed } from '../../src/api/feed';
import { EMPTY_STATE, type Run, type State } from '../../src/api/items';

vi.mock('@jupyterlab/services', () => ({ ServerConnection: {} }));

/** A stream whose server is the test. */
class Socket {
  static readonly all: Socket[] = [];
  readyState = 0;
  sent: string[] = [];
  onopen = (): void => undefined;
  onmessage = (_: { data: string }): void => undefined;
  onclose = (): void => undefined;

  constructor(readonly url: string) {
    Socket.all.push(this);
  }

  send(text: string): void {
    this.sent.push(text);
  }

  close(): void {
    this.readyState = WebSocket.CLOSED;
    this.onclose();
  }

  open(): void {
    this.readyState = WebSocket.OPEN;
    this.onopen();
  }

  tell(message: object): void {
    this.onmessage({ data: JSON.stringify(message) });
  }
}

const run = (id: string, step: number): Run => ({ id, step, created: 1 }) as unknown as Run;
const state = (...runs: Run[]): State => ({ ...EMPTY_STATE, runs });

let answers: (() => Promise<State>)[];
let feed: Feed;

beforeEach(() => {
  vi.useFakeTimers();
  Socket.all.length = 0;
  answers = [];
  const client = {
    settings: { WebSocket: Socket },
    streamUrl: () => 'ws://here',
    state: () => (answers.shift() ?? (() => Promise.resolve(EMPTY_STATE)))()
  } as unknown as Client;
  feed = new Feed(client);
});

afterEach(() => {
  feed.dispose();
  vi.useRealTimers();
});

const socket = (): Socket => Socket.all.at(-1)!;
const steps = (): (number | null)[] => feed.state.runs.map(run => run.step);

describe('what the stream brings', () => {
  beforeEach(() => {
    feed.addView({});
    socket().open();
    socket().tell({ kind: 'state', ...state(run('a', 1)) });
  });

  it('is the state, and its changes', () => {
    expect(feed.connection).toBe('live');
    socket().tell({ kind: 'changes', runs: { set: [run('a', 2), run('b', 1)], removed: [] } });
    expect(steps()).toEqual([1, 2]);
  });

  it('is not mixed with an answer that was asked for beside it', async () => {
    let answer: (state: State) => void = () => undefined;
    answers.push(() => new Promise(resolve => (answer = resolve)));
    const refreshed = feed.refresh();
    socket().tell({ kind: 'changes', runs: { set: [run('a', 7)], removed: [] } });
    answer(state(run('a', 3)));
    await refreshed;
    expect(steps()).toEqual([7]);
    expect(feed.connection).toBe('live');
  });

  it('makes the server look again when a caller asks for it again', async () => {
    socket().sent = [];
    await feed.refresh();
    expect(socket().sent).toHaveLength(1);
  });

  it('tells that the server cannot be reached, and that it can again', async () => {
    answers.push(() => Promise.reject(new ApiError(0, 'gone')));
    await feed.refresh();
    expect([feed.connection, feed.error, feed.reachable]).toEqual(['offline', 'gone', false]);
    await feed.refresh();
    expect([feed.connection, feed.error, feed.reachable]).toEqual(['live', null, true]);
  });
});

describe('without a stream', () => {
  it('the server is asked every two seconds, and the stream is tried again', async () => {
    feed.addView({});
    answers.push(
      () => Promise.resolve(state(run('a', 1))),
      () => Promise.resolve(state(run('a', 2)))
    );
    socket().close();
    await vi.advanceTimersByTimeAsync(0);
    expect([steps(), feed.connection]).toEqual([[1], 'polling']);
    await vi.advanceTimersByTimeAsync(510);
    expect(steps()).toEqual([2]);
    expect(Socket.all).toHaveLength(2);
    socket().open();
    socket().tell({ kind: 'state', ...state(run('a', 3)) });
    expect([steps(), feed.connection]).toEqual([[3], 'live']);
  });

  it('a page that shows nothing asks for nothing', async () => {
    await vi.advanceTimersByTimeAsync(60_000);
    expect(Socket.all).toHaveLength(0);
    const shown = feed.addView({});
    shown.dispose();
    socket().close();
    const asked = vi.fn(() => Promise.resolve(EMPTY_STATE));
    answers.push(asked);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(asked).not.toHaveBeenCalled();
  });

  it('a server of another version is said to be one, and its state is left alone', async () => {
    answers.push(() => Promise.resolve({ ...state(run('a', 1)), version: 99 }));
    await feed.refresh();
    expect(feed.state).toBe(EMPTY_STATE);
    expect(feed.connection).toBe('offline');
    expect(feed.error).toContain('version 99');
  });
});
