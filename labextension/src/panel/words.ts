import type { TranslationBundle } from '@jupyterlab/translation';

/** What stands before a state's word, so that it is seen without its colour. */
export type Shape = 'disc' | 'ring' | 'turning' | 'bars' | 'check' | 'square' | 'clock' | 'triangle';
export type Tone = 'good' | 'plain' | 'warn' | 'bad';

export interface Sign {
  shape: Shape;
  tone: Tone;
  word: string;
}

/** How a state of a cluster, task, run or sweep is shown; one that nobody has named is shown as it is. */
export function signOf(state: string, trans: TranslationBundle): Sign {
  const [shape, tone] = SHAPES[state] ?? ['ring', 'plain'];
  return { shape, tone, word: words(trans)[state] ?? state };
}

/** "1.4× slower": how many times the others' step a straggler's takes. */
export function slowerText(times: number, trans: TranslationBundle): string {
  return trans.__('%1× slower', String(Number(times.toFixed(1))));
}

const SHAPES: Record<string, [Shape, Tone]> = {
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
