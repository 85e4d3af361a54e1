import type { TranslationBundle } from '@jupyterlab/translation';
import { described, type Parts, textOf } from './context';
import { choose, confirmed } from './dialogs';
import { Refused, told } from './notify';

export const WISHES = ['pause', 'resume', 'stop'] as const;
type Wish = (typeof WISHES)[number];

/** The command that pauses, resumes or stops a sweep; without an id it is shown while there is one to choose. */
export function addSweepCommands(parts: Parts): void {
  const { feed, trans } = parts.nbdist;
  parts.app.commands.addCommand('nbdist:sweep-wish', {
    label: ({ wish }) => labelOf(wish, trans),
    caption: trans.__('Trials that are done are kept'),
    describedBy: described({
      id: ['string', 'The id of a sweep; without one it is asked for.'],
      wish: ['string', 'pause, resume or stop.']
    }),
    isEnabled: ({ wish }) => isWish(wish),
    isVisible: ({ id, wish }) =>
      isWish(wish) && (textOf(id) !== null || feed.state.sweeps.some(sweep => sweep.can[wish])),
    execute: args => told(args, () => tell(textOf(args['id']), args['wish'], parts))
  });
}

function labelOf(wish: unknown, trans: TranslationBundle): string {
  switch (wish) {
    case 'pause':
      return trans.__('Pause a Sweep…');
    case 'resume':
      return trans.__('Resume a Sweep…');
    default:
      return trans.__('Stop a Sweep…');
  }
}

async function tell(id: string | null, wish: unknown, { nbdist: { client, trans } }: Parts): Promise<string | void> {
  if (!isWish(wish)) {
    throw new Refused(trans.__('No sweep command “%1”; choose from %2.', String(wish), WISHES.join(', ')));
  }
  if (id === null) {
    const { sweeps } = await client.state(null);
    const why = sweeps.find(sweep => sweep.why[wish])?.why[wish];
    const none = why ? trans.__('No sweep can do this now: %1.', why) : trans.__('There are no sweeps.');
    const texts = { title: labelOf(wish, trans), label: trans.__('Sweep'), none };
    const able = sweeps.filter(sweep => sweep.can[wish]);
    id = (await choose(able, sweep => `${sweep.id} (${sweep.state})`, texts, trans))?.id ?? null;
  }
  const reasons =
    wish === 'stop' ? [trans.__('No new trials start and running ones end. Finished trials are kept.')] : [];
  if (id !== null && (await confirmed(trans.__('Stop sweep %1?', id), reasons, trans.__('Stop'), trans))) {
    await client.sweepWish(id, wish);
    return trans.__('Sweep %1 is told.', id);
  }
}

function isWish(wish: unknown): wish is Wish {
  return WISHES.some(one => one === wish);
}
