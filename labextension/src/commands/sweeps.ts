import type { TranslationBundle } from '@jupyterlab/translation';
import { choose } from './asking';
import { described } from './describe';
import { type Parts, textOf } from './parts';
import { Refused, told } from './telling';

export const WISHES = ['pause', 'resume', 'stop'] as const;
type Wish = (typeof WISHES)[number];

/** The command that pauses, resumes or stops a sweep. */
export function addSweepCommands(parts: Parts): void {
  const { trans } = parts.nbdist;
  parts.app.commands.addCommand('nbdist:sweep-wish', {
    label: ({ wish }) => labelOf(wish, trans),
    caption: trans.__('Trials that are done are kept'),
    describedBy: described({
      id: ['string', 'The id of a sweep; without one it is asked for.'],
      wish: ['string', 'pause, resume or stop.']
    }),
    isEnabled: ({ wish }) => isWish(wish),
    execute: args => told(args, () => tell(textOf(args['id']), args['wish'], parts))
  });
}

function labelOf(wish: unknown, trans: TranslationBundle): string {
  switch (wish) {
    case 'pause':
      return trans.__('Pause a Sweep…');
    case 'resume':
      return trans.__('Go On with a Sweep…');
    default:
      return trans.__('Stop a Sweep…');
  }
}

async function tell(id: string | null, wish: unknown, { nbdist: { client, trans } }: Parts): Promise<string | void> {
  if (!isWish(wish)) {
    throw new Refused(trans.__('A sweep cannot be told “%1”: it knows %2.', String(wish), WISHES.join(', ')));
  }
  if (id === null) {
    const { sweeps } = await client.state(null);
    const texts = {
      title: labelOf(wish, trans),
      label: trans.__('Sweep'),
      none: trans.__('There is no sweep that this can be done with.')
    };
    const able = sweeps.filter(sweep => sweep.can[wish]);
    id = (await choose(able, sweep => `${sweep.id} (${sweep.state})`, texts, trans))?.id ?? null;
  }
  if (id !== null) {
    await client.sweepWish(id, wish);
    return trans.__('Sweep %1 is told.', id);
  }
}

function isWish(wish: unknown): wish is Wish {
  return WISHES.some(one => one === wish);
}
