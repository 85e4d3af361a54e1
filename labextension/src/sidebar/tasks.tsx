import { Fragment, memo, type ReactElement, useMemo } from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Cluster, Gpu, Task } from '../api/items';
import { ActionButtons, ActionError } from './action-buttons';
import { restartAction, shortTask } from './actions';
import { hostFacts, hostFigures, memoryText } from './facts';
import { formatBytes, formatCount, formatRate } from './format';
import { useRovingFocus } from './roving-focus';
import { Empty } from './rows';
import { Sparkline } from './sparkline';
import { stateLabel, slowerText, StateIcon } from './state-icon';
import { useSelector, type SectionStore } from './store';

/**
 * The tasks of the chosen cluster as a table; columns that no task has are left out.
 *
 * Tasks on other hosts are grouped by host, each below lines with its name and figures, in place of a column
 * of hosts.
 */
export function Tasks({ store }: { store: SectionStore }): ReactElement {
  const loaded = useSelector(store, () => store.state.cluster === store.model.selected);
  const listed = useSelector(store, () => (store.state.cluster === store.model.selected ? store.state.tasks : NONE));
  const groups = useMemo(() => groupByHost(listed), [listed]);
  const tasks = useMemo(() => groups.flatMap(group => group.tasks), [groups]);
  const cluster = useSelector(store, () => store.state.clusters.find(one => one.id === store.model.selected));
  const { trans } = store;
  const { current, ...list } = useRovingFocus<HTMLDivElement>(tasks.map(task => String(task.rank)));
  const grouped = groups.length > 1 || !!cluster?.hosts.length;
  // The same object while the columns are the same; otherwise all rows would be rendered again.
  const found = columnsOf(tasks, trans).filter(column => column.id !== 'host' || !grouped);
  const columns = useMemo(() => found, [found.map(column => column.id).join()]);
  if (!cluster || !tasks.length) {
    return <NoTasks store={store} cluster={cluster} loaded={loaded} />;
  }
  return (
    <div
      className="nbd-Tasks"
      role="grid"
      aria-label={trans.__('Tasks of %1', cluster.title)}
      {...list}
    >
      <div className="nbd-Tasks-head" role="row">
        <span className="nbd-Task-name" role="columnheader">
          {trans.__('Task')}
        </span>
        <span className="nbd-Task-state" role="columnheader">
          {trans.__('State')}
        </span>
        {columns.map(column => (
          <span key={column.id} className={`nbd-Task-${column.id}`} role="columnheader" title={column.caption}>
            {column.label}
          </span>
        ))}
        <span className="nbd-Task-action" role="columnheader">
          <span className="nbd-Hidden">{trans.__('Restart')}</span>
        </span>
      </div>
      {groups.map(group => (
        <Fragment key={group.host}>
          {grouped && <HostLine name={group.host} cluster={cluster} trans={trans} />}
          {group.tasks.map(task => (
            <TaskRow
              key={task.rank}
              store={store}
              task={task}
              cluster={cluster}
              columns={columns}
              reachable={String(task.rank) === current}
            />
          ))}
        </Fragment>
      ))}
    </div>
  );
}

/** The tasks by host, the hosts in the order of their first tasks. */
export function groupByHost(tasks: readonly Task[]): { host: string; tasks: Task[] }[] {
  const groups = new Map<string, Task[]>();
  for (const task of tasks) {
    const group = groups.get(task.host);
    if (group) {
      group.push(task);
    } else {
      groups.set(task.host, [task]);
    }
  }
  return [...groups].map(([host, own]) => ({ host, tasks: own }));
}

/** Above the tasks of a host: its name, what it has, and on a line of its own what it uses. */
function HostLine({ name, cluster, trans }: { name: string; cluster: Cluster; trans: TranslationBundle }): ReactElement {
  const host = cluster.hosts.find(one => one.name === name);
  const figures = host ? hostFigures(host, trans) : [];
  return (
    <div className="nbd-Tasks-host" role="row" data-state={host?.state} title={host?.address ?? undefined}>
      <span className="nbd-Tasks-hostname" role="rowheader">
        {name}
      </span>
      <span className="nbd-Tasks-hostfacts" role="gridcell">
        {host ? hostFacts(host, trans).join(' · ') : ''}
      </span>
      {figures.length > 0 && (
        <span className="nbd-Tasks-hostfigures" role="gridcell">
          {figures.map(([caption, text]) => (
            <span key={caption} title={caption}>
              {text}
            </span>
          ))}
        </span>
      )}
    </div>
  );
}

const PERCENT: [number, number] = [0, 100];
const NONE: Task[] = []; // while the server sends the tasks of another cluster

interface RowProps {
  store: SectionStore;
  task: Task;
  cluster: Cluster;
  columns: readonly Column[];
  reachable: boolean;
}

/** One task; rendered again only when its data change. */
export const TaskRow = memo(function TaskRow({ store, task, cluster, columns, reachable }: RowProps): ReactElement {
  const { trans } = store;
  const sign = stateLabel(task.state, trans);
  const slower = task.straggler === null ? null : slowerText(task.straggler, trans);
  const row = `task:${task.cluster}:${task.rank}`;
  const more = [`${task.name} · ${task.host} · ${task.pid} · ${task.device}`, task.note].filter(text => text);
  return (
    <div
      className="nbd-Task"
      role="row"
      data-row={task.rank}
      data-stop=""
      data-state={task.state}
      tabIndex={reachable ? 0 : -1}
      title={more.join('\n')}
    >
      <span className="nbd-Task-name" role="rowheader">
        <StateIcon sign={sign} />
        <span className="nbd-Task-title">{shortTask(task)}</span>
      </span>
      <span className={`nbd-Task-state ${slower ? 'nbd-mod-slow' : ''}`} role="gridcell">
        {slower ? <Slow text={slower} state={sign.word} /> : sign.word}
      </span>
      {columns.map(column => (
        <span key={column.id} className={`nbd-Task-${column.id}`} role="gridcell">
          {column.text(task)}
        </span>
      ))}
      <span className="nbd-Task-action" role="gridcell">
        <ActionButtons
          store={store}
          row={row}
          reachable={reachable}
          actions={[restartAction(task, cluster, trans)]}
        />
      </span>
      {task.gpu ? <GpuLine gpu={task.gpu} trans={trans} /> : null}
      <span className="nbd-Task-more" role="gridcell">
        {more.map((text, place) => (
          <span key={place}>{text}</span>
        ))}
        <ActionError store={store} row={row} reachable={reachable} />
      </span>
    </div>
  );
});

/** The figures of a task's GPU, on a line of their own: a panel is too narrow for columns of them. */
function GpuLine({ gpu, trans }: { gpu: Gpu; trans: TranslationBundle }): ReactElement {
  const { use, power, temperature, history } = gpu;
  const curve = useMemo(() => ({ x: history.map((_, place) => place), y: history }), [history]);
  const figures: [string, string | null][] = [
    [trans.__('Use of its GPU'), formatIfKnown(use, percent => `${percent}%`)],
    [trans.__('Memory of its GPU in use, and all of it'), memoryText(gpu)],
    [trans.__('Power of its GPU'), formatIfKnown(power, watts => `${watts} W`)],
    [trans.__('Temperature of its GPU'), formatIfKnown(temperature, degrees => `${degrees} °C`)]
  ];
  return (
    <span className="nbd-Task-gpu" role="gridcell">
      <span className="nbd-Task-gpuname">{trans.__('GPU')}</span>
      <Sparkline name={trans.__('GPU use in percent')} curve={curve} range={PERCENT} trans={trans} />
      {figures.map(([caption, text]) =>
        text === null ? null : (
          <span key={caption} title={caption}>
            {text}
          </span>
        )
      )}
    </span>
  );
}

/** A straggler's mark: an icon, its relative step time, and its state for screen readers. */
function Slow({ text, state }: { text: string; state: string }): ReactElement {
  return (
    <>
      <svg className="nbd-Shape nbd-mod-warn" viewBox="0 0 12 12" aria-hidden="true">
        <path d="M6 11 .5 2h11z" fill="currentColor" />
      </svg>
      <span>{text}</span>
      <span className="nbd-Hidden">{state}</span>
    </>
  );
}

function NoTasks({ store, cluster, loaded }: { store: SectionStore; cluster: Cluster | undefined; loaded: boolean }): ReactElement {
  const { trans } = store;
  if (!cluster) {
    return <Empty>{trans.__('The tasks of a running cluster are listed here.')}</Empty>;
  }
  if (cluster.state === 'starting') {
    return <Empty>{trans.__('%1 is starting.', cluster.title)}</Empty>;
  }
  return <Empty>{loaded ? trans.__('%1 has no tasks.', cluster.title) : trans.__('Loading its tasks…')}</Empty>;
}

/** A column of the table of tasks. Its width is its class's, and narrow panels hide it by its class. */
export interface Column {
  id: 'rate' | 'cpu' | 'memory' | 'step' | 'host' | 'pid' | 'device';
  label: string;
  caption: string;
  /** The text of a task in this column; may be empty. */
  text: (task: Task) => string;
}

/** The columns that are not empty, the most important first. */
export function columnsOf(tasks: readonly Task[], trans: TranslationBundle): Column[] {
  return allColumns(trans).filter(column => tasks.some(task => column.text(task) !== ''));
}

function allColumns(trans: TranslationBundle): Column[] {
  const column = (
    id: Column['id'],
    label: string,
    caption: string,
    text: (task: Task) => string | null
  ): Column => ({ id, label, caption, text: task => text(task) ?? '' });
  return [
    column('rate', trans.__('/s'), trans.__('Steps per second'), task => formatIfKnown(task.steps_per_second, formatRate)),
    column('cpu', trans.__('CPU'), trans.__('Percent of one core'), task => formatIfKnown(task.cpu, cpu => `${cpu}%`)),
    column('memory', trans.__('Mem'), trans.__('Memory'), task => formatIfKnown(task.memory, formatBytes)),
    column('step', trans.__('Step'), trans.__('Step of its run'), task => formatIfKnown(task.step, formatCount)),
    column('host', trans.__('Host'), trans.__('Host'), task => task.host),
    column('pid', trans.__('PID'), trans.__('Its process on its host'), task => formatIfKnown(task.pid, String)),
    column('device', trans.__('Device'), trans.__('Device'), task => task.device)
  ];
}

function formatIfKnown<Value>(value: Value | null | undefined, format: (value: Value) => string): string | null {
  return value === null || value === undefined ? null : format(value);
}
