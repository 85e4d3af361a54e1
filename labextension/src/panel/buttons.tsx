import type { ReactElement } from 'react';
import {
  addIcon,
  Button,
  closeIcon,
  codeIcon,
  folderIcon,
  launchIcon,
  type LabIcon,
  pauseIcon,
  refreshIcon,
  runIcon,
  stopIcon
} from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Action, ActionIcon } from './actions';
import { useActivity, type Watch } from './watch';

const ICONS: Record<ActionIcon, LabIcon> = {
  attach: codeIcon,
  grow: addIcon,
  restart: refreshIcon,
  stop: stopIcon,
  pause: pauseIcon,
  resume: runIcon,
  folder: folderIcon,
  tensorboard: launchIcon,
  dismiss: closeIcon
};

interface ButtonProps {
  action: Action;
  pending: boolean;
  reachable: boolean;
  trans: TranslationBundle;
  onAct: () => void;
}

/**
 * A button of a row. One that cannot be pressed says why, and stays in the keyboard's reach for that.
 *
 * JupyterLab's `ToolbarButtonComponent` takes a disabled button out of the keyboard's reach, and answers the
 * Enter key twice.
 */
export function ActionButton({ action, pending, reachable, trans, onAct }: ButtonProps): ReactElement {
  const Icon = ICONS[action.icon];
  const text = pending ? trans.__('%1: under way', action.label) : action.label;
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
      onClick={action.why === null ? onAct : undefined}
    >
      <Icon.react tag="span" elementSize="normal" />
    </Button>
  );
}

interface RowProps {
  watch: Watch;
  /** The row that the actions are of. */
  row: string;
  actions: readonly Action[];
  reachable: boolean;
}

/** The buttons of a row. */
export function ActionButtons({ watch, row, actions, reachable }: RowProps): ReactElement {
  const { pending } = useActivity(watch, row);
  return (
    <span className="nbd-Actions">
      {actions.map(action => (
        <ActionButton
          key={action.id}
          action={action}
          pending={pending === action.id}
          reachable={reachable}
          trans={watch.trans}
          onAct={() => void watch.model.act(row, action.id, action.command, action.args)}
        />
      ))}
    </span>
  );
}

/** What a row's last action failed with, until it is dismissed. */
export function ActionError({ watch, row, reachable }: Omit<RowProps, 'actions'>): ReactElement | null {
  const { error } = useActivity(watch, row);
  if (error === null) {
    return null;
  }
  const label = watch.trans.__('Dismiss the error');
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
        onClick={() => watch.model.dismiss(row)}
      >
        <closeIcon.react tag="span" elementSize="normal" />
      </Button>
    </div>
  );
}
