import type { ReactElement, ReactNode } from 'react';
import type { Watch } from './watch';

interface EmptyProps {
  children: ReactNode;
  code?: string;
}

/** A section with nothing in it says what would be here, and what to type for it. */
export function Empty({ children, code }: EmptyProps): ReactElement {
  return (
    <div className="nbd-Empty">
      <p>{children}</p>
      {code !== undefined && <code>{code}</code>}
    </div>
  );
}

/** No clusters, or not known yet. */
export function NoClusters({ watch, known }: { watch: Watch; known: boolean }): ReactElement {
  const { trans, model } = watch;
  if (!known) {
    return <Empty>{trans.__('Looking for clusters…')}</Empty>;
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
