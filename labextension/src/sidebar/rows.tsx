import type { ReactElement, ReactNode } from 'react';
import { type StateLabel, StateIcon } from './state-icon';
import type { SectionStore } from './store';

interface Props {
  store: SectionStore;
  /** The row's key in the model, such as "run:ID". */
  row: string;
  sign: StateLabel;
  name: string;
  title: string;
  reachable: boolean;
  /** The command that opens the item, and the item's id. */
  open: [command: string, id: string];
  /** The text after the state. */
  children?: ReactNode;
}

/** The first line of a row: the state's shape, the name, which opens the item, and the state. */
export function RowHead({ store, row, sign, name, title, reachable, open: [command, id], children }: Props): ReactElement {
  return (
    <div className="nbd-Row-head">
      <StateIcon sign={sign} />
      <button
        type="button"
        className="nbd-Row-name"
        data-stop=""
        data-action="open"
        title={title}
        tabIndex={reachable ? 0 : -1}
        onClick={() => void store.model.execute(row, 'open', command, { id })}
      >
        {name}
      </button>
      <span className="nbd-Row-state">
        {sign.word}
        {children}
      </span>
    </div>
  );
}

interface EmptyProps {
  children: ReactNode;
  code?: string;
}

/** The text of an empty section, with the code that fills it. */
export function Empty({ children, code }: EmptyProps): ReactElement {
  return (
    <div className="nbd-Empty">
      <p>{children}</p>
      {code !== undefined && <code>{code}</code>}
    </div>
  );
}

/** The text without clusters, or before they are loaded. */
export function NoClusters({ store, known }: { store: SectionStore; known: boolean }): ReactElement {
  const { trans, model } = store;
  if (!known) {
    return <Empty>{trans.__('Loading clusters…')}</Empty>;
  }
  return (
    <div className="nbd-Empty">
      <p>{trans.__('No clusters yet. Start one from a notebook:')}</p>
      <code>{'import nbdist as nb\n%load_ext nbdist\n%cluster start --workers 2'}</code>
      <button
        type="button"
        className="jp-mod-styled nbd-Start"
        onClick={() => void model.commands.execute('nbdist:start-cluster')}
      >
        {trans.__('Start a cluster…')}
      </button>
    </div>
  );
}
