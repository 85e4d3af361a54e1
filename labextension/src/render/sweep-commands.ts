/**
 * Sends the commands of a finished sweep's picture to the kernel of its notebook, as long as the kernel knows the
 * sweep: nbdist/ui/widgets/sweep_commands.py answers them.
 *
 * The kernel is asked for its comms first, because one that does not know the target would report it as an error.
 */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { Send } from './renderer';

const ENDED: readonly Kernel.Status[] = ['restarting', 'autorestarting', 'terminating', 'dead'];

/** A drawing that has commands while a kernel takes them. */
export interface Commanded {
  /** Send commands by `send` from now on; null hides them. */
  connect(send: Send | null): void;
  /** Take the answer to a command. */
  receive(answer: Record<string, unknown>): void;
}

type Session = Pick<ISessionContext, 'session' | 'kernelChanged' | 'statusChanged'>;

/** Connects a drawing with the kernel, and with each later one; returns a function that ends this. */
export function connectSweep(sweep: string, drawing: Commanded, context: Session): () => void {
  let leave = (): void => undefined;
  let asked = 0;
  const look = async (): Promise<void> => {
    leave();
    const kernel = context.session?.kernel;
    const turn = ++asked;
    const comm = kernel && !ENDED.includes(kernel.status) ? await commOf(kernel, sweep) : undefined;
    if (kernel && comm !== undefined && turn === asked) {
      leave = join(kernel, comm, targetOf(sweep), drawing);
    }
  };
  const onStatus = (_: unknown, status: Kernel.Status): void => {
    if (ENDED.includes(status)) {
      asked++;
      leave();
    }
  };
  const onKernel = (): void => void look();
  context.kernelChanged.connect(onKernel);
  context.statusChanged.connect(onStatus);
  void look();
  return () => {
    asked++;
    context.kernelChanged.disconnect(onKernel);
    context.statusChanged.disconnect(onStatus);
    leave();
  };
}

/** The id of the newest comm that takes commands for the sweep. */
async function commOf(kernel: Kernel.IKernelConnection, sweep: string): Promise<string | undefined> {
  try {
    const { content } = await kernel.requestCommInfo({ target_name: targetOf(sweep) });
    return content.status === 'ok' ? Object.keys(content.comms).at(-1) : undefined;
  } catch {
    return undefined; // the kernel has ended
  }
}

function targetOf(sweep: string): string {
  return `nbdist.sweep.${sweep}`;
}

/** The drawings of a sweep, and the comm that they share, because a connection has each comm once. */
interface Shared {
  readonly comm: Kernel.IComm;
  readonly drawings: Set<Commanded>;
}

/**
 * By the comm's id, for each connection. A comm stays as long as its connection: JupyterLab ends the subshell of the
 * last comm of a target that is disposed of, and would send the messages of one that is made meanwhile to this subshell.
 */
const shared = new WeakMap<Kernel.IKernelConnection, Map<string, Shared>>();

function join(kernel: Kernel.IKernelConnection, id: string, target: string, drawing: Commanded): () => void {
  const comms = shared.get(kernel) ?? new Map<string, Shared>();
  shared.set(kernel, comms);
  const known = comms.get(id);
  const { comm, drawings } = known && !known.comm.isDisposed ? known : open(kernel.createComm(target, id));
  comms.set(id, { comm, drawings });
  drawings.add(drawing);
  drawing.connect((kind, more = {}) => {
    const refuse = (message: string): void => drawing.receive({ request: more['request'], ok: false, message });
    try {
      const sent = comm.send({ ...more, kind } as Parameters<Kernel.IComm['send']>[0]);
      sent.done.then(
        reply => refusal(reply) && refuse(refusal(reply)),
        () => undefined // the end of the kernel is known by its status
      );
    } catch {
      refuse('the kernel is not running');
      drawing.connect(null);
    }
  });
  return () => {
    if (drawings.delete(drawing)) {
      drawing.connect(null);
    }
  };
}

function open(comm: Kernel.IComm): Shared {
  const drawings = new Set<Commanded>();
  comm.onMsg = ({ content }: KernelMessage.ICommMsgMsg) => drawings.forEach(one => one.receive(content.data));
  comm.onClose = () => {
    drawings.forEach(one => one.connect(null)); // the kernel has forgotten the sweep
    drawings.clear();
  };
  return { comm, drawings };
}

/** Why the kernel has not taken a message: it replies only then. */
function refusal(reply: unknown): string {
  const { status, evalue } = ((reply as KernelMessage.IMessage | undefined)?.content ?? {}) as Record<string, unknown>;
  return status === 'error' ? String(evalue) : '';
}
