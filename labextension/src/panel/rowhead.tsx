import type { ReactElement, ReactNode } from 'react';
import { StateShape } from './sign';
import type { Watch } from './watch';
import type { Sign } from './words';

interface Props {
  watch: Watch;
  /** The row's key in the model, such as "run:ID". */
  row: string;
  sign: Sign;
  name: string;
  title: string;
  reachable: boolean;
  /** The command that opens the item, and the item's id. */
  open: [command: string, id: string];
  /** What follows the state's word. */
  children?: ReactNode;
}

/** The first line of a row: the state's shape, the name, which opens the item, and the state. */
export function RowHead({ watch, row, sign, name, title, reachable, open: [command, id], children }: Props): ReactElement {
  return (
    <div className="nbd-Row-head">
      <StateShape sign={sign} />
      <button
        type="button"
        className="nbd-Row-name"
        data-stop=""
        data-action="open"
        title={title}
        tabIndex={reachable ? 0 : -1}
        onClick={() => void watch.model.act(row, 'open', command, { id })}
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
