import { memo, type ReactElement } from 'react';
import {
  addIcon,
  Button,
  closeIcon,
  codeIcon,
  ellipsesIcon,
  folderIcon,
  type LabIcon,
  pauseIcon,
  refreshIcon,
  runIcon,
  settingsIcon,
  stopIcon
} from '@jupyterlab/ui-components';
import { JSONExt } from '@lumino/coreutils';
import { removeIcon, tensorboardIcon } from '../icons';
import type { Action, ActionIcon } from './actions';
import { useActivity, type SectionStore } from './store';

const ICONS: Record<ActionIcon, LabIcon> = {
  attach: codeIcon,
  grow: addIcon,
  more: ellipsesIcon,
  shrink: removeIcon,
  restart: refreshIcon,
  stop: stopIcon,
  pause: pauseIcon,
  resume: runIcon,
  rate: settingsIcon,
  folder: folderIcon,
  tensorboard: tensorboardIcon,
  dismiss: closeIcon
};

interface ButtonProps {
  store: SectionStore;
  /** The row of the action. */
  row: string;
  action: Action;
  pending: boolean;
  reachable: boolean;
}

/**
 * A button of a row. A disabled one shows the reason and can still be focused.
 *
 * JupyterLab's `ToolbarButtonComponent` removes a disabled button from the tab order, and reacts to the Enter key
 * twice.
 */
export const ActionButton = memo(function ActionButton(props: ButtonProps): ReactElement {
  const { store, row, action, pending, reachable } = props;
  const Icon = ICONS[action.icon];
  const text = pending ? store.trans.__('%1: in progress', action.label) : action.label;
  const act = (): void => void store.model.execute(row, action.id, action.command, action.args);
  return (
    <Button
      className="jp-ToolbarButtonComponent nbd-Action"
      data-stop=""
      data-action={action.id}
      aria-label={text}
      aria-disabled={action.why !== null}
      aria-busy={pending}
      title={action.why === null ? text : `${action.label}: ${action.why}`}
      tabIndex={reachable ? 0 : -1}
      onClick={action.why === null ? act : undefined}
    >
      <Icon.react tag="span" elementSize="normal" />
    </Button>
  );
}, isSame);

/** Whether a button is unchanged: its action is a new object after every change of its row. */
function isSame(before: ButtonProps, after: ButtonProps): boolean {
  return (
    before.pending === after.pending &&
    before.reachable === after.reachable &&
    before.row === after.row &&
    JSONExt.deepEqual({ ...before.action }, { ...after.action })
  );
}

interface RowProps {
  store: SectionStore;
  row: string;
  actions: readonly Action[];
  reachable: boolean;
}

/** The buttons of a row. */
export function ActionButtons({ store, row, actions, reachable }: RowProps): ReactElement {
  const { pending } = useActivity(store, row);
  return (
    <span className="nbd-Actions">
      {actions.map(action => (
        <ActionButton
          key={action.id}
          store={store}
          row={row}
          action={action}
          pending={pending === action.id}
          reachable={reachable}
        />
      ))}
    </span>
  );
}

/** The error of a row's last action, until it is dismissed. */
export function ActionError({ store, row, reachable }: Omit<RowProps, 'actions'>): ReactElement | null {
  const { error } = useActivity(store, row);
  if (error === null) {
    return null;
  }
  const label = store.trans.__('Dismiss the error');
  return (
    <div className="nbd-Error" role="alert">
      <span className="nbd-Error-text">{error}</span>
      <Button
        className="jp-ToolbarButtonComponent nbd-Action"
        data-stop=""
        data-action="dismiss-error"
        aria-label={label}
        title={label}
        tabIndex={reachable ? 0 : -1}
        onClick={() => store.model.dismiss(row)}
      >
        <closeIcon.react tag="span" elementSize="normal" />
      </Button>
    </div>
  );
}
