import type { ReactElement } from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';

/** The icon before a state's name, which distinguishes it without its colour. */
export type Shape = 'disc' | 'ring' | 'turning' | 'bars' | 'check' | 'square' | 'clock' | 'triangle';
export type Tone = 'good' | 'plain' | 'warn' | 'bad';

export interface StateLabel {
  shape: Shape;
  tone: Tone;
  word: string;
}

/** How a state of a cluster, task, run or sweep is shown; an unknown state is shown as it is. */
export function stateLabel(state: string, trans: TranslationBundle): StateLabel {
  const [shape, tone] = APPEARANCE[state] ?? ['ring', 'plain'];
  return { shape, tone, word: words(trans)[state] ?? state };
}

/** The step time of a straggler relative to the other tasks, such as "1.4× slower". */
export function slowerText(times: number, trans: TranslationBundle): string {
  return trans.__('%1× slower', String(Number(times.toFixed(1))));
}

const APPEARANCE: Record<string, [Shape, Tone]> = {
  starting: ['turning', 'plain'],
  running: ['disc', 'good'],
  stopping: ['turning', 'plain'],
  failed: ['triangle', 'bad'],
  stale: ['ring', 'plain'],
  preparing: ['turning', 'plain'],
  paused: ['bars', 'warn'],
  finished: ['check', 'good'],
  stopped: ['square', 'plain'],
  damaged: ['triangle', 'warn'],
  lost: ['ring', 'warn'],
  idle: ['ring', 'plain'],
  busy: ['disc', 'plain'],
  waiting: ['clock', 'plain'],
  frozen: ['bars', 'bad'],
  dead: ['triangle', 'bad']
};

const known = new WeakMap<TranslationBundle, Record<string, string>>();

function words(trans: TranslationBundle): Record<string, string> {
  let table = known.get(trans);
  if (!table) {
    table = {
      starting: trans.__('starting'),
      running: trans.__('running'),
      stopping: trans.__('stopping'),
      failed: trans.__('failed'),
      stale: trans.__('lost'),
      preparing: trans.__('preparing'),
      paused: trans.__('paused'),
      finished: trans.__('finished'),
      stopped: trans.__('stopped'),
      damaged: trans.__('damaged'),
      lost: trans.__('lost'),
      idle: trans.__('idle'),
      busy: trans.__('busy'),
      waiting: trans.__('waiting'),
      frozen: trans.__('frozen'),
      dead: trans.__('dead')
    };
    known.set(trans, table);
  }
  return table;
}

/** The icon of a state. Screen readers skip it, because the state's name is beside it. */
export function StateIcon({ sign }: { sign: StateLabel }): ReactElement {
  return (
    <svg
      className={`nbd-Shape nbd-mod-${sign.tone} ${sign.shape === 'turning' ? 'nbd-mod-turning' : ''}`}
      viewBox="0 0 12 12"
      aria-hidden="true"
    >
      {SHAPES[sign.shape]}
    </svg>
  );
}

const SHAPES: Record<Shape, ReactElement> = {
  disc: <circle cx="6" cy="6" r="4.5" fill="currentColor" />,
  ring: <circle cx="6" cy="6" r="4" fill="none" stroke="currentColor" strokeWidth="1.5" />,
  turning: (
    <circle cx="6" cy="6" r="4" fill="none" stroke="currentColor" strokeWidth="2" strokeDasharray="17 8.2" />
  ),
  bars: <path d="M2.5 1.5h2.5v9h-2.5zM7 1.5h2.5v9h-2.5z" fill="currentColor" />,
  check: <path d="M1.5 6.5 4.5 9.5 10.5 2.5" fill="none" stroke="currentColor" strokeWidth="2" />,
  square: <path d="M2 2h8v8h-8z" fill="currentColor" />,
  clock: (
    <path d="M6 1.9a4.1 4.1 0 1 0 0 8.2 4.1 4.1 0 0 0 0-8.2zM6 3.6V6l1.8 1.3" fill="none" stroke="currentColor" strokeWidth="1.4" />
  ),
  triangle: <path d="M6 .8 11.6 11H.4zM5.3 4.4v3.4h1.4V4.4zM5.3 8.6v1.3h1.4V8.6z" fill="currentColor" />
};
