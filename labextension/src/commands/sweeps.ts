import type { TranslationBundle } from '@jupyterlab/translation';
import { argsSchema, type CommandContext, stringArg } from './context';
import { pickItem, confirm } from './dialogs';
import { RefusedError, withNotifications } from './notify';

export const SWEEP_CONTROLS = ['pause', 'resume', 'stop'] as const;
type SweepControl = (typeof SWEEP_CONTROLS)[number];

/** The command that pauses, resumes or stops a sweep; without an id it is shown while there is one to choose. */
export function addSweepCommands(context: CommandContext): void {
  const { feed, trans } = context.nbdist;
  context.app.commands.addCommand('nbdist:sweep-wish', {
    label: ({ wish }) => labelOf(wish, trans),
    caption: trans.__('Trials that are done are kept'),
    describedBy: argsSchema({
      id: ['string', 'The id of a sweep; a dialog asks for it if it is missing.'],
      wish: ['string', 'pause, resume or stop.']
    }),
    isEnabled: ({ wish }) => isSweepControl(wish),
    isVisible: ({ id, wish }) =>
      isSweepControl(wish) && (stringArg(id) !== null || feed.state.sweeps.some(sweep => sweep.can[wish])),
    execute: args => withNotifications(args, () => controlSweep(stringArg(args['id']), args['wish'], context))
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

async function controlSweep(id: string | null, wish: unknown, { nbdist: { client, trans } }: CommandContext): Promise<string | void> {
  if (!isSweepControl(wish)) {
    throw new RefusedError(trans.__('No sweep command “%1”; choose from %2.', String(wish), SWEEP_CONTROLS.join(', ')));
  }
  if (id === null) {
    const { sweeps } = await client.state(null);
    const why = sweeps.find(sweep => sweep.why[wish])?.why[wish];
    const none = why ? trans.__('No sweep can do this now: %1.', why) : trans.__('There are no sweeps.');
    const texts = { title: labelOf(wish, trans), label: trans.__('Sweep'), none };
    const able = sweeps.filter(sweep => sweep.can[wish]);
    id = (await pickItem(able, sweep => `${sweep.id} (${sweep.state})`, texts, trans))?.id ?? null;
  }
  const reasons =
    wish === 'stop' ? [trans.__('No new trials start and running ones end. Finished trials are kept.')] : [];
  if (id !== null && (await confirm(trans.__('Stop sweep %1?', id), reasons, trans.__('Stop'), trans))) {
    await client.controlSweep(id, wish);
    return trans.__('Sweep %1 received the command.', id);
  }
}

function isSweepControl(wish: unknown): wish is SweepControl {
  return SWEEP_CONTROLS.some(one => one === wish);
}
