import type { TranslationBundle } from '@jupyterlab/translation';
import { argsSchema, type CommandContext, stringArg } from './context';
import { pickItem, confirm } from './dialogs';
import { RefusedError, withNotifications } from './notify';

export const SWEEP_CONTROLS = ['pause', 'resume', 'stop'] as const;
type SweepControl = (typeof SWEEP_CONTROLS)[number];

/** The command that pauses, resumes or stops a sweep; hidden without an id unless a sweep can be chosen. */
export function addSweepCommands(context: CommandContext): void {
  const { feed, trans } = context.nbdist;
  context.app.commands.addCommand('nbdist:sweep-command', {
    label: ({ command }) => labelOf(command, trans),
    caption: trans.__('Trials that are done are kept'),
    describedBy: argsSchema({
      id: ['string', 'The id of a sweep; a dialog asks for it if it is missing.'],
      command: ['string', 'pause, resume or stop.']
    }),
    isEnabled: ({ command }) => isSweepControl(command),
    isVisible: ({ id, command }) =>
      isSweepControl(command) && (stringArg(id) !== null || feed.state.sweeps.some(sweep => sweep.can[command])),
    execute: args => withNotifications(args, () => controlSweep(stringArg(args['id']), args['command'], context))
  });
}

function labelOf(command: unknown, trans: TranslationBundle): string {
  switch (command) {
    case 'pause':
      return trans.__('Pause a Sweep…');
    case 'resume':
      return trans.__('Resume a Sweep…');
    default:
      return trans.__('Stop a Sweep…');
  }
}

async function controlSweep(id: string | null, command: unknown, { nbdist: { client, trans } }: CommandContext): Promise<string | void> {
  if (!isSweepControl(command)) {
    throw new RefusedError(trans.__('No sweep command “%1”; choose from %2.', String(command), SWEEP_CONTROLS.join(', ')));
  }
  if (id === null) {
    const { sweeps } = await client.state(null);
    const why = sweeps.find(sweep => sweep.why[command])?.why[command];
    const none = why ? trans.__('No sweep can do this now: %1.', why) : trans.__('There are no sweeps.');
    const texts = { title: labelOf(command, trans), label: trans.__('Sweep'), none };
    const able = sweeps.filter(sweep => sweep.can[command]);
    id = (await pickItem(able, sweep => `${sweep.id} (${sweep.state})`, texts, trans))?.id ?? null;
  }
  const reasons =
    command === 'stop' ? [trans.__('No new trials start and running ones end. Finished trials are kept.')] : [];
  if (id !== null && (await confirm(trans.__('Stop sweep %1?', id), reasons, trans.__('Stop'), trans))) {
    await client.controlSweep(id, command);
    return trans.__('Sweep %1 received the command.', id);
  }
}

function isSweepControl(command: unknown): command is SweepControl {
  return SWEEP_CONTROLS.some(one => one === command);
}
