import { Notification } from '@jupyterlab/apputils';
import { launchIcon } from '@jupyterlab/ui-components';
import { described } from './describe';
import { type Parts, textOf } from './parts';
import { chosenRun } from './runs';
import { told } from './telling';

const ALL = 'all'; // the newest runs on one page, as the server has it

/** The commands that show runs in TensorBoard, in a tab of the browser: it fills a page of its own. */
export function addTensorBoardCommands(parts: Parts): void {
  const { trans } = parts.nbdist;
  parts.app.commands.addCommand('nbdist:open-tensorboard', {
    label: trans.__('Open a Run in TensorBoard…'),
    caption: trans.__('Show the curves of a run in TensorBoard'),
    icon: launchIcon,
    describedBy: described({ id: ['string', 'The id of a run; without one it is asked for.'] }),
    execute: args =>
      told(args, async () => {
        const id = textOf(args['id']);
        if (id !== null) {
          await open(id, trans.__('TensorBoard shows run %1.', id), parts);
          return;
        }
        const run = await chosenRun(() => true, trans.__('There are no runs.'), parts);
        if (run !== null) {
          await open(run.id, trans.__('TensorBoard shows run %1.', run.id), parts);
        }
      })
  });
  parts.app.commands.addCommand('nbdist:compare-runs', {
    label: trans.__('Compare Runs in TensorBoard'),
    caption: trans.__('Show the curves of the newest runs on one page of TensorBoard'),
    icon: launchIcon,
    describedBy: described(),
    execute: args => told(args, () => open(ALL, trans.__('TensorBoard shows the newest runs.'), parts))
  });
}

async function open(id: string, shown: string, { nbdist: { client, trans } }: Parts): Promise<void> {
  const tab = window.open('', '_blank'); // now: later the browser would not see the click that asks for it
  if (tab) {
    tab.opener = null;
    tab.document.title = 'TensorBoard';
    showWaiting(tab.document, trans.__('TensorBoard is starting. This takes a few seconds.'));
  }
  const waiting = Notification.emit(trans.__('TensorBoard is starting…'), 'in-progress', { autoClose: false });
  try {
    const url = await client.openTensorBoard(id);
    if (tab) {
      tab.location.replace(url); // nothing happens if the user has closed it meanwhile
    } else {
      const show = (): void => void window.open(url, '_blank', 'noopener');
      const actions = [{ label: trans.__('Open'), callback: show }];
      Notification.info(shown, { actions, autoClose: false });
    }
  } catch (error) {
    tab?.close();
    throw error;
  } finally {
    Notification.dismiss(waiting);
  }
}

/** Fill a tab with a sentence and a bar that moves, until TensorBoard takes its place. */
function showWaiting(page: Document, sentence: string): void {
  const text = page.createElement('p');
  text.textContent = sentence;
  page.body.style.cssText = 'font: 16px system-ui, sans-serif; margin: 15vh auto; max-width: 30em; text-align: center';
  page.body.replaceChildren(text, page.createElement('progress'));
}
