/** Which kernel takes the commands of a finished sweep's picture. */

import { beforeEach, expect, test, vi } from 'vitest';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { Kernel } from '@jupyterlab/services';
import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { SWEEP } from '../../src/render/kinds';
import { BundleRenderer, type Send } from '../../src/render/renderer';
import { connectSweep } from '../../src/render/sweep-commands';

const TARGET = 'nbdist.sweep.s-1';

class FakeComm {
  sent: unknown[] = [];
  isDisposed = false;
  reply: unknown = undefined;
  onMsg: (message: unknown) => void = () => undefined;
  onClose: (message: unknown) => void = () => undefined;
  send(data: unknown): { done: Promise<unknown> } {
    if (this.isDisposed) {
      throw new Error('Cannot send');
    }
    this.sent.push(data);
    return { done: Promise.resolve(this.reply) };
  }
}

class FakeKernel {
  status: Kernel.Status = 'idle';
  comms: FakeComm[] = [];
  constructor(private readonly known: string[]) {}
  requestCommInfo = vi.fn(async ({ target_name }: { target_name: string }) => ({
    content: { status: 'ok', comms: Object.fromEntries(this.known.filter(one => one === target_name).map(one => [`id of ${one}`, {}])) }
  }));
  createComm(target: string, id: string): FakeComm {
    expect([target, id]).toEqual([TARGET, `id of ${TARGET}`]);
    const comm = new FakeComm();
    this.comms.push(comm);
    return comm;
  }
}

function session(kernel: FakeKernel | null) {
  const source = {};
  const made = { session: kernel && { kernel }, kernelChanged: new Signal(source), statusChanged: new Signal(source) };
  return made as typeof made & Parameters<typeof connectSweep>[2];
}

class Picture {
  send: Send | null = null;
  answers: unknown[] = [];
  connect = (send: Send | null): void => void (this.send = send);
  receive = (answer: unknown): void => void this.answers.push(answer);
}

let picture: Picture;

beforeEach(() => void (picture = new Picture()));

const settled = (): Promise<void> => new Promise(resolve => setTimeout(resolve));

test('commands go to a kernel that knows the sweep, and its answers come back', async () => {
  const kernel = new FakeKernel(['another', TARGET]);
  const end = connectSweep('s-1', picture, session(kernel));
  await settled();
  picture.send?.('clone', { number: 3, request: 1 });
  const [comm] = kernel.comms;
  expect(comm?.sent).toEqual([{ kind: 'clone', number: 3, request: 1 }]);
  comm?.onMsg({ content: { data: { kind: 'answer', request: 1, ok: true } } });
  expect(picture.answers).toEqual([{ kind: 'answer', request: 1, ok: true }]);
  end();
  expect(picture.send).toBeNull();
});

test.each([
  ['no kernel', null],
  ['a kernel that does not know it', new FakeKernel(['another'])],
  ['a dead kernel', Object.assign(new FakeKernel([TARGET]), { status: 'dead' as const })]
])('%s takes none', async (_, kernel) => {
  connectSweep('s-1', picture, session(kernel));
  await settled();
  expect([picture.send, kernel?.comms ?? []]).toEqual([null, []]);
});

test('two pictures of a sweep share the comm', async () => {
  const [kernel, other] = [new FakeKernel([TARGET]), new Picture()];
  const context = session(kernel);
  const end = connectSweep('s-1', picture, context);
  connectSweep('s-1', other, context);
  await settled();
  const [comm, ...more] = kernel.comms;
  expect(more).toEqual([]);
  end();
  other.send?.('add', { trials: 2 });
  expect(comm?.sent).toEqual([{ kind: 'add', trials: 2 }]);
  connectSweep('s-1', picture, context);
  await settled();
  expect(kernel.comms).toHaveLength(1); // the connection keeps it, and its subshell
});

test('the end of the kernel or of the sweep hides the commands', async () => {
  const kernel = new FakeKernel([TARGET]);
  const context = session(kernel);
  connectSweep('s-1', picture, context);
  await settled();
  context.statusChanged.emit('restarting' as never);
  expect(picture.send).toBeNull();
  context.kernelChanged.emit(undefined as never);
  await settled();
  expect(picture.send).not.toBeNull();
  expect(kernel.comms).toHaveLength(1);
  kernel.comms[0]?.onClose({});
  expect(picture.send).toBeNull();
});

test('a kernel that has ended without a word is noticed at the next command', async () => {
  const kernel = new FakeKernel([TARGET]);
  connectSweep('s-1', picture, session(kernel));
  await settled();
  Object.assign(kernel.comms[0] ?? {}, { isDisposed: true });
  picture.send?.('add', { request: 4 });
  expect(picture.answers).toEqual([{ request: 4, ok: false, message: 'the kernel is not running' }]);
  expect(picture.send).toBeNull();
});

test('a command that the kernel does not take is answered by its error', async () => {
  const kernel = new FakeKernel([TARGET]);
  connectSweep('s-1', picture, session(kernel));
  await settled();
  Object.assign(kernel.comms[0] ?? {}, { reply: { content: { status: 'error', evalue: "Unknown subshell_id '9'" } } });
  picture.send?.('add', { request: 5 });
  await settled();
  expect(picture.answers).toEqual([{ request: 5, ok: false, message: "Unknown subshell_id '9'" }]);
});

test('an answer that comes after the end is not used', async () => {
  const kernel = new FakeKernel([TARGET]);
  connectSweep('s-1', picture, session(kernel))();
  await settled();
  expect([picture.send, kernel.comms]).toEqual([null, []]);
});

test('a page that did not run the cell follows a sweep that its command continued', async () => {
  vi.stubGlobal('IntersectionObserver', class {
    constructor(private readonly seen: (entries: unknown[]) => void) {}
    observe = (): void => void setTimeout(() => this.seen([{ isIntersecting: true }]));
    disconnect = (): void => undefined;
  });
  const kernel = new FakeKernel([TARGET]);
  const data = { version: 1, head: { id: 's-1', name: 'digits' }, status: { state: 'finished' }, trials: { number: [0], state: [2] } };
  const asked: string[] = [];
  const client = { sweepOutput: async (id: string) => (asked.push(id), { over: false, data: { [SWEEP.mimeType]: data } }) };
  const renderer = new BundleRenderer(SWEEP, {
    trans: nullTranslator.load('nbdist'),
    commands: null,
    client: client as never,
    sessionOf: () => session(kernel) as never
  });
  document.body.replaceChildren(renderer.node);
  const model = { data: { [SWEEP.mimeType]: data }, metadata: {}, trusted: true, setData: () => undefined };
  await renderer.renderModel(model as unknown as IRenderMime.IMimeModel);
  const button = (name: string): HTMLButtonElement | undefined =>
    [...renderer.node.querySelectorAll('button')].find(one => one.textContent === name);
  await vi.waitFor(() => expect(kernel.comms).toHaveLength(1));
  expect(renderer.node.querySelector<HTMLElement>('.nbd-attach')?.hidden).toBe(true); // it says how to get commands
  const answer = (): void => {
    const { request } = kernel.comms[0]?.sent.at(-1) as { request: number };
    kernel.comms[0]?.onMsg({ content: { data: { kind: 'answer', request, ok: true, message: 'done' } } });
  };
  button('Edit the space')?.click();
  button('Change the space')?.click();
  answer();
  expect(asked).toEqual([]);
  button('Add trials')?.click();
  answer();
  await settled();
  expect(asked).toEqual(['s-1']);
  expect(renderer.node.textContent).toContain('the Jupyter server shows it');
  renderer.dispose();
  vi.unstubAllGlobals();
});
