import type { ReactElement } from 'react';
import { useSelector, type SectionStore } from './store';

/** Notices above all sections: the server cannot be reached, or could not read something. */
export function Notices({ store }: { store: SectionStore }): ReactElement {
  const connection = useSelector(store, () => store.connection);
  const trouble = useSelector(store, () => store.error);
  const reached = useSelector(store, () => store.reachable);
  const problems = useSelector(store, () => store.state.problems);
  const about = useSelector(store, () => store.model.about);
  const { trans } = store;
  return (
    <div role="status" className="nbd-Notices">
      {connection === 'offline' && (
        <p className="nbd-Notice nbd-mod-bad" title={trouble ?? undefined}>
          {reached
            ? trans.__('The server answers with an error, trying again: %1', trouble ?? '')
            : trans.__('The server cannot be reached, trying again.')}
        </p>
      )}
      {connection === 'polling' && (
        <p className="nbd-Notice">{trans.__('No live connection: polling every 2 seconds.')}</p>
      )}
      {about?.problem && <p className="nbd-Notice nbd-mod-bad">{about.problem}</p>}
      {problems.map(problem => (
        <p key={problem} className="nbd-Notice">
          {problem}
        </p>
      ))}
    </div>
  );
}
