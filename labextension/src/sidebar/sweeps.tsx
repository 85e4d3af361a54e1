import { memo, type ReactElement } from 'react';
import type { Sweep } from '../api/items';
import { ActionButtons, ActionError } from './action-buttons';
import { sweepActions } from './actions';
import { parameterText, trialFacts, trialsEnded } from './facts';
import { formatCount, formatNumber, percentOf } from './format';
import { useRovingFocus } from './roving-focus';
import { Empty, RowHead } from './rows';
import { Notes } from './runs';
import { Progress, Sparkline } from './sparkline';
import { stateLabel } from './state-icon';
import { useSelector, type SectionStore } from './store';

/** The sweeps, the newest first. */
export function Sweeps({ store }: { store: SectionStore }): ReactElement {
  const sweeps = useSelector(store, () => store.state.sweeps);
  const known = useSelector(store, () => store.connection !== 'connecting');
  const { current, ...list } = useRovingFocus<HTMLUListElement>(sweeps.map(sweep => sweep.id));
  const { trans } = store;
  if (!sweeps.length) {
    return known ? (
      <Empty code="%%sweep">{trans.__('No sweeps yet. To try many parameters at once, begin a cell with:')}</Empty>
    ) : (
      <Empty>{trans.__('Loading sweeps…')}</Empty>
    );
  }
  return (
    <ul className="nbd-List" role="list" aria-label={trans.__('Sweeps')} {...list}>
      {sweeps.map(sweep => (
        <SweepRow key={sweep.id} store={store} sweep={sweep} reachable={sweep.id === current} />
      ))}
    </ul>
  );
}

interface RowProps {
  store: SectionStore;
  sweep: Sweep;
  reachable: boolean;
}

/** One sweep; rendered again only when its data change. */
export const SweepRow = memo(function SweepRow({ store, sweep, reachable }: RowProps): ReactElement {
  const { trans } = store;
  const sign = stateLabel(sweep.state, trans);
  const row = `sweep:${sweep.id}`;
  const ended = trialsEnded(sweep);
  const text =
    sweep.wanted === null
      ? trans._n('%1 trial', '%1 trials', ended)
      : trans.__('%1 of %2 trials', formatCount(ended), formatCount(sweep.wanted));
  return (
    <li className="nbd-Row" data-row={sweep.id} data-state={sweep.state}>
      <RowHead
        {...{ store, row, sign, reachable }}
        name={sweep.name}
        title={trans.__('%1: open its trials', sweep.name)}
        open={['nbdist:open-grid', sweep.id]}
      />
      {(sweep.state === 'running' || sweep.state === 'paused') && (
        <Progress
          label={trans.__('Progress of %1', sweep.name)}
          percent={sweep.wanted ? percentOf(ended, sweep.wanted) : null}
          text={text}
          state={sweep.state}
        />
      )}
      <div className="nbd-Row-foot">
        <span className="nbd-Row-facts">
          <span>{text}</span>
          {trialFacts(sweep, trans).map((fact, place) => (
            <span key={place}>{fact}</span>
          ))}
        </span>
        <Sparkline name={trans.__('best %1', sweep.metric)} curve={sweep.curve} trans={trans} />
        <ActionButtons store={store} row={row} reachable={reachable} actions={sweepActions(sweep, trans)} />
      </div>
      {sweep.best && (
        <div className="nbd-Row-note">
          <b>{bestText(sweep, store)}</b> {parameterText(sweep.best.parameters)}
        </div>
      )}
      <Notes note={sweep.note} error={sweep.error} />
      <ActionError store={store} row={row} reachable={reachable} />
    </li>
  );
});

function bestText({ best, metric }: Sweep, { trans }: SectionStore): string {
  const value = best?.value ?? null;
  return trans.__('best %1 %2 (trial %3)', metric, value === null ? '–' : formatNumber(value), String(best?.number));
}
