import { memo, type ReactElement } from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Cluster, Host, Run } from '../api/items';
import { ActionButtons, ActionError } from './action-buttons';
import { clusterActions } from './actions';
import { clusterFacts, hostFacts, hostNames } from './facts';
import { useRovingFocus } from './roving-focus';
import { NoClusters } from './rows';
import { stateLabel, StateIcon } from './state-icon';
import { useSelector, type SectionStore } from './store';

/** The clusters; the chosen one's tasks are shown in the next section. */
export function Clusters({ store }: { store: SectionStore }): ReactElement {
  const clusters = useSelector(store, () => store.state.clusters);
  const runs = useSelector(store, () => store.state.runs);
  const chosen = useSelector(store, () => store.model.selected);
  const known = useSelector(store, () => store.connection !== 'connecting');
  const { current, ...list } = useRovingFocus<HTMLUListElement>(
    clusters.map(cluster => cluster.id),
    id => store.model.select(id)
  );
  if (!clusters.length) {
    return <NoClusters store={store} known={known} />;
  }
  return (
    <ul className="nbd-List" role="list" aria-label={store.trans.__('Clusters')} {...list}>
      {clusters.map(cluster => (
        <ClusterRow
          key={cluster.id}
          store={store}
          cluster={cluster}
          runs={namesOf(cluster, runs)}
          chosen={cluster.id === chosen}
          reachable={cluster.id === current}
        />
      ))}
    </ul>
  );
}

interface RowProps {
  store: SectionStore;
  cluster: Cluster;
  /** The names of the runs on the cluster. */
  runs: string;
  chosen: boolean;
  reachable: boolean;
}

/** One cluster; rendered again only when its data change. */
export const ClusterRow = memo(function ClusterRow(props: RowProps): ReactElement {
  const { store, cluster, runs, chosen, reachable } = props;
  const { trans, model } = store;
  const sign = stateLabel(cluster.state, trans);
  const row = `cluster:${cluster.id}`;
  return (
    <li className={`nbd-Row ${chosen ? 'nbd-mod-chosen' : ''}`} data-row={cluster.id} data-state={cluster.state}>
      <div className="nbd-Row-head">
        <StateIcon sign={sign} />
        <button
          type="button"
          className="nbd-Row-name"
          data-stop=""
          aria-current={chosen}
          title={cluster.title}
          tabIndex={reachable ? 0 : -1}
          onClick={() => model.select(cluster.id)}
        >
          {cluster.title}
        </button>
        {cluster.kind === 'ipyparallel' && <span className="nbd-Badge">ipyparallel</span>}
        <span className="nbd-Row-state">{sign.word}</span>
      </div>
      <div className="nbd-Row-foot">
        <span className="nbd-Row-facts">
          {clusterFacts(cluster, trans).map((fact, place) => (
            <span key={place}>{fact}</span>
          ))}
          {runs && <span>{trans.__('run: %1', runs)}</span>}
        </span>
        <ActionButtons store={store} row={row} reachable={reachable} actions={clusterActions(cluster, trans)} />
      </div>
      <HostNotes hosts={cluster.hosts} trans={trans} />
      {cluster.dead.length > 0 && (
        <div className="nbd-Row-note nbd-mod-bad">{trans.__('dead: %1', cluster.dead.join(', '))}</div>
      )}
      {cluster.state === 'stale' && cluster.why['stop'] && <div className="nbd-Row-note">{cluster.why['stop']}</div>}
      {cluster.state === 'starting' && <BringUp lines={cluster.lines} label={trans.__('How it starts')} />}
      {cluster.error !== null && (
        <div className="nbd-Error" role="alert">
          <span className="nbd-Error-text">{cluster.error}</span>
        </div>
      )}
      <ActionError store={store} row={row} reachable={reachable} />
    </li>
  );
});

/** The hosts of a cluster: those that are there, those that are lost, and those that are not there. */
function HostNotes({ hosts, trans }: { hosts: readonly Host[]; trans: TranslationBundle }): ReactElement {
  const named = (state: Host['state']): string => hostNames(hosts.filter(host => host.state === state), trans);
  const [up, lost, absent] = [named('up'), named('lost'), named('absent')];
  const title = hosts.map(host => [host.name, ...hostFacts(host, trans)].join(' · ')).join('\n');
  return (
    <>
      {up && (
        <div className="nbd-Row-note" title={title}>
          {trans.__('on %1', up)}
        </div>
      )}
      {lost && <div className="nbd-Row-note nbd-mod-bad">{trans.__('lost: %1', lost)}</div>}
      {absent && <div className="nbd-Row-note">{trans.__('not there: %1', absent)}</div>}
    </>
  );
}

/** The output of a cluster's start, as it arrives. */
function BringUp({ lines, label }: { lines: readonly string[]; label: string }): ReactElement {
  return (
    <div className="nbd-Lines" role="log" aria-label={label}>
      {lines.map((line, number) => (
        <div key={number}>{line}</div>
      ))}
    </div>
  );
}

function namesOf(cluster: Cluster, runs: readonly Run[]): string {
  return cluster.runs.map(id => runs.find(run => run.id === id)?.name ?? id).join(', ');
}
