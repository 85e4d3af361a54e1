import type { TranslationBundle } from '@jupyterlab/translation';
import type { Task } from '../api/items';
import { formatBytes, formatNumber, formatRate } from './format';

/** A column of the table of tasks. Its width is its class's, and narrow panels hide it by its class. */
export interface Column {
  id: 'rate' | 'cpu' | 'memory' | 'step' | 'gpu' | 'gpumemory' | 'host' | 'pid' | 'device';
  label: string;
  caption: string;
  /** What a task has there; empty for nothing. */
  text: (task: Task) => string;
}

/** The columns that any task has something in, the most important first. */
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
    column('rate', trans.__('/s'), trans.__('Steps per second'), task => told(task.steps_per_second, formatRate)),
    column('cpu', trans.__('CPU'), trans.__('Percent of one core'), task => told(task.cpu, cpu => `${cpu}%`)),
    column('memory', trans.__('Mem'), trans.__('Memory'), task => told(task.memory, formatBytes)),
    column('step', trans.__('Step'), trans.__('Step of its run'), task => told(task.step, formatNumber)),
    column('gpu', trans.__('GPU'), trans.__('Use of its GPU'), task => told(task.gpu, gpu => `${gpu.use}%`)),
    column('gpumemory', trans.__('GPU mem'), trans.__('Memory of its GPU in use, and all of it'), task =>
      told(task.gpu, gpu => `${formatBytes(gpu.memory)} / ${formatBytes(gpu.total)}`)
    ),
    column('host', trans.__('Host'), trans.__('Host'), task => task.host),
    column('pid', trans.__('PID'), trans.__('Its process on its host'), task => told(task.pid, String)),
    column('device', trans.__('Device'), trans.__('Device'), task => task.device)
  ];
}

function told<Value>(value: Value | null | undefined, format: (value: Value) => string): string | null {
  return value === null || value === undefined ? null : format(value);
}
