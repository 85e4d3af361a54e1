import { memo, type ReactElement } from 'react';
import type { Sweep } from '../api/items';
import { ActionButtons, ActionError } from './action-buttons';
import { sweepActions } from './actions';
import { parameterText, trialFacts, trialsEnded } from './facts';
import { formatNumber, percentOf } from './format';
import { useRows } from './roving-focus';
import { Empty, RowHead } from './rows';
import { Notes } from './runs';
import { Progress, Sparkline } from './sparkline';
import { signOf } from './state-icon';
import { useWatch, type Watch } from './store';

/** The sweeps, the newest first. */
export function Sweeps({ watch }: { watch: Watch }): ReactElement {
  const sweeps = useWatch(watch, () => watch.state.sweeps);
  const known = useWatch(watch, () => watch.connection !== 'connecting');
  const { current, ...list } = useRows<HTMLUListElement>(sweeps.map(sweep => sweep.id));
  const { trans } = watch;
  if (!sweeps.length) {
    return known ? (
      <Empty code="%%sweep">{trans.__('No sweeps yet. To try many parameters at once, begin a cell with:')}</Empty>
    ) : (
      <Empty>{trans.__('Looking for sweeps…')}</Empty>
    );
  }
  return (
    <ul className="nbd-List" role="list" aria-label={trans.__('Sweeps')} {...list}>
      {sweeps.map(sweep => (
        <SweepRow key={sweep.id} watch={watch} sweep={sweep} reachable={sweep.id === current} />
      ))}
    </ul>
  );
}

interface RowProps {
  watch: Watch;
  sweep: Sweep;
  reachable: boolean;
}

/** One sweep; drawn again only when something of it is another. */
export const SweepRow = memo(function SweepRow({ watch, sweep, reachable }: RowProps): ReactElement {
  const { trans } = watch;
  const sign = signOf(sweep.state, trans);
  const row = `sweep:${sweep.id}`;
  const ended = trialsEnded(sweep);
  const text =
    sweep.wanted === null
      ? trans._n('%1 trial', '%1 trials', ended)
      : trans.__('%1 of %2 trials', String(ended), String(sweep.wanted));
  return (
    <li className="nbd-Row" data-row={sweep.id} data-state={sweep.state}>
      <RowHead
        {...{ watch, row, sign, reachable }}
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
        <ActionButtons watch={watch} row={row} reachable={reachable} actions={sweepActions(sweep, trans)} />
      </div>
      {sweep.best && (
        <div className="nbd-Row-note">
          <b>{bestText(sweep, watch)}</b> {parameterText(sweep.best.parameters)}
        </div>
      )}
      <Notes note={sweep.note} error={sweep.error} />
      <ActionError watch={watch} row={row} reachable={reachable} />
    </li>
  );
});

function bestText({ best, metric }: Sweep, { trans }: Watch): string {
  const value = best?.value ?? null;
  return trans.__('best %1 %2 (trial %3)', metric, value === null ? '–' : formatNumber(value), String(best?.number));
}
