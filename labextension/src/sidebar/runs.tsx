import { memo, type ReactElement, useState } from 'react';
import { InputGroup } from '@jupyterlab/ui-components';
import type { About, Run } from '../api/items';
import { ActionButtons, ActionError } from './action-buttons';
import { isActive, runActions } from './actions';
import { runFacts } from './facts';
import { formatShare, percentOf } from './format';
import { useRovingFocus } from './roving-focus';
import { Empty, RowHead } from './rows';
import { Progress, Sparkline } from './sparkline';
import { stateLabel } from './state-icon';
import { useSelector, type SectionStore } from './store';

/** The runs: active ones first, then the newest. */
export function Runs({ store }: { store: SectionStore }): ReactElement {
  const all = useSelector(store, () => store.state.runs);
  const about = useSelector(store, () => store.model.about);
  const known = useSelector(store, () => store.connection !== 'connecting');
  const [typed, setTyped] = useState('');
  const [drawn, setDrawn] = useState(PAGE);
  const [plain, setPlain] = useState(false);
  const { trans } = store;
  const shown = plain ? all : hidePlainCells(all);
  const hidden = all.length - hidePlainCells(all).length;
  const found = filterItems(activeFirst(shown), typed, run => stateLabel(run.status, trans).word);
  const runs = found.slice(0, drawn);
  const { current, ...list } = useRovingFocus<HTMLUListElement>(runs.map(run => run.id));
  if (!all.length) {
    return known ? (
      <Empty code="%%distribute">{trans.__('No runs yet. To train on a cluster, begin a cell with:')}</Empty>
    ) : (
      <Empty>{trans.__('Loading runs…')}</Empty>
    );
  }
  return (
    <>
      {hidden > 0 && (
        <label className="nbd-Plain">
          <input type="checkbox" checked={plain} onChange={event => setPlain(event.currentTarget.checked)} />
          {trans._n('Show %1 plain cell', 'Show %1 plain cells', hidden)}
        </label>
      )}
      {all.length > MANY && (
        <InputGroup
          className="nbd-Filter"
          type="search"
          placeholder={trans.__('Filter runs')}
          aria-label={trans.__('Filter runs by name, tag, state or notebook')}
          value={typed}
          onChange={event => setTyped(event.currentTarget.value)}
          rightIcon="ui-components:search"
        />
      )}
      <ul className="nbd-List" role="list" aria-label={trans.__('Runs')} {...list}>
        {runs.map(run => (
          <RunRow key={run.id} store={store} run={run} about={about} reachable={run.id === current} />
        ))}
      </ul>
      {!runs.length && typed !== '' && (
        <Empty>{trans.__('No run has “%1” in its name, tags, state or notebook.', typed)}</Empty>
      )}
      {found.length > runs.length && (
        <button type="button" className="jp-mod-styled nbd-More" onClick={() => setDrawn(drawn + PAGE)}>
          {trans._n('Show %1 more', 'Show %1 more', Math.min(PAGE, found.length - runs.length))}
        </button>
      )}
    </>
  );
}

interface RowProps {
  store: SectionStore;
  run: Run;
  about: About | null;
  reachable: boolean;
}

/** One run; rendered again only when its data change. */
export const RunRow = memo(function RunRow({ store, run, about, reachable }: RowProps): ReactElement {
  const { trans } = store;
  const sign = stateLabel(run.status, trans);
  const row = `run:${run.id}`;
  const share = run.total && run.step !== null ? percentOf(run.step, run.total) : null;
  return (
    <li className="nbd-Row" data-row={run.id} data-state={run.status}>
      <RowHead
        {...{ store, row, sign, reachable }}
        name={run.name}
        title={trans.__('Open run %1', run.name)}
        open={['nbdist:open-run', run.id]}
      >
        {isActive(run) && share !== null && ` ${formatShare(run.step!, run.total!)}`}
      </RowHead>
      {isActive(run) && (
        <Progress
          label={trans.__('Progress of %1', run.name)}
          percent={share}
          text={runFacts(run, trans).join(', ')}
          state={run.status}
        />
      )}
      <div className="nbd-Row-foot">
        <span className="nbd-Row-facts">
          {runFacts(run, trans).map((fact, place) => (
            <span key={place}>{fact}</span>
          ))}
          {run.tags.map(tag => (
            <span key={`tag:${tag}`} className="nbd-Badge">
              {tag}
            </span>
          ))}
        </span>
        <Sparkline name={run.metric ?? trans.__('metric')} curve={run.curve} trans={trans} />
        <ActionButtons store={store} row={row} reachable={reachable} actions={runActions(run, about, trans)} />
      </div>
      {run.remark !== null && (
        <div className="nbd-Row-note nbd-mod-remark" title={run.remark}>
          {run.remark}
        </div>
      )}
      <Notes note={run.note} error={run.error} />
      <ActionError store={store} row={row} reachable={reachable} />
    </li>
  );
});

interface NotesProps {
  note: string | null;
  error: string | null;
  /** The error with its traceback; the pointer shows it. */
  whole?: string | null;
}

/** Notes on an item: the reason of its end, and missing files in its folder. */
export function Notes({ note, error, whole = error }: NotesProps): ReactElement | null {
  return note === null && error === null ? null : (
    <>
      {error !== null && (
        <div className="nbd-Row-note nbd-mod-error" title={whole ?? undefined}>
          {error}
        </div>
      )}
      {note !== null && <div className="nbd-Row-note">{note}</div>}
    </>
  );
}

/** How many runs are drawn at first, and how many more at each click. */
export const PAGE = 50;

/** The number of rows from which a filter field is shown. */
export const MANY = 12;

/** Active runs first, the newest first among each. */
export function activeFirst(runs: readonly Run[]): Run[] {
  return [...runs.filter(isActive), ...runs.filter(run => !isActive(run))];
}

/** Runs without the plain cells that have ended: those neither train nor log metrics. */
export function hidePlainCells(runs: readonly Run[]): Run[] {
  return runs.filter(run => run.training || isActive(run));
}

/** The runs with all typed words in their name, tags, state, notebook or id. */
export function filterItems<Item extends { id: string; name: string; session: string; tags: string[] }>(
  items: readonly Item[],
  typed: string,
  word: (item: Item) => string
): readonly Item[] {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) {
    return items;
  }
  return items.filter(item => {
    const text = [item.name, item.id, item.session, word(item), ...item.tags].join(' ').toLowerCase();
    return words.every(one => text.includes(one));
  });
}
