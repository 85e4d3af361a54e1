import type { TranslationBundle } from '@jupyterlab/translation';
import type { About, Start } from '../api/items';
import type { Values } from '../settings';

/** What stands in the form's fields, as it was typed. */
export interface StartValues {
  name: string;
  workers: string;
  ps: string;
  launcher: string;
  gpus: string;
  gpu_memory: string;
  threads: string;
  memory: string;
}

export type Numbers = Pick<Values, 'workers' | 'ps'>;
export type StartField = keyof StartValues;

/** What the form begins with; the numbers are the user's settings. */
export function firstValues(about: About | null, { workers, ps }: Numbers): StartValues {
  const launcher = about?.launchers[0] ?? 'local';
  const numbers = { workers: String(workers), ps: String(ps) };
  return { name: '', ...numbers, launcher, gpus: 'auto', gpu_memory: '', threads: '', memory: '' };
}

/** What is wrong with the fields, by field; nothing if they can be sent. */
export function faultsOf(values: StartValues, trans: TranslationBundle): Partial<StartValues> {
  const faults: Partial<StartValues> = {};
  if (values.name.trim() && !/^\w{1,48}$/.test(values.name.trim())) {
    faults.name = trans.__('Letters, digits and _, or nothing');
  }
  if (!isWhole(values.workers, 1)) {
    faults.workers = trans.__('A whole number, at least 1');
  }
  if (!isWhole(values.ps, 0)) {
    faults.ps = trans.__('A whole number, 0 for none');
  }
  if (values.threads.trim() && !isWhole(values.threads, 1)) {
    faults.threads = trans.__('A whole number, or nothing');
  }
  if (values.memory.trim() && !/^\d+(\.\d+)?\s*[KMGT](i?B)?$/i.test(values.memory.trim())) {
    faults.memory = trans.__('Such as 2G or 512M, or nothing');
  }
  if (values.gpu_memory.trim() && !isShare(values.gpu_memory)) {
    faults.gpu_memory = trans.__('More than 0 and at most 1, or nothing');
  }
  return faults;
}

/** What is asked of the server; the fields have no faults. */
export function startOf(values: StartValues): Start {
  const gpus = values.gpus === 'auto' || values.gpus === 'none' ? values.gpus : Number(values.gpus);
  return {
    name: values.name.trim() || null,
    workers: Number(values.workers),
    ps: Number(values.ps),
    launcher: values.launcher,
    gpus,
    threads: values.threads.trim() ? Number(values.threads) : null,
    memory: values.memory.trim().replace(/\s+/g, '') || null,
    gpu_memory: values.gpu_memory.trim() ? Number(values.gpu_memory) : null
  };
}

/** What to know before starting: that the tasks have to share the cores, if they must. */
export function hintOf(values: StartValues, about: About | null, trans: TranslationBundle): string | null {
  const tasks = Number(values.workers) + Number(values.ps);
  if (!about || values.launcher !== 'local' || !(tasks > about.cores)) {
    return null;
  }
  return trans._n(
    'This machine has %1 core: the %2 tasks will share it.',
    'This machine has %1 cores: the %2 tasks will share them.',
    about.cores,
    String(tasks)
  );
}

function isWhole(text: string, least: number): boolean {
  return /^\d{1,6}$/.test(text.trim()) && Number(text) >= least;
}

function isShare(text: string): boolean {
  const value = Number(text);
  return value > 0 && value <= 1;
}
