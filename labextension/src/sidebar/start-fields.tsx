import { type ReactElement, type ReactNode, useState } from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { type About, DEFAULT_LAUNCHER, type StartRequest } from '../api/items';
import type { SettingValues } from '../settings';

interface FieldsProps {
  /** The initial values of the fields. */
  first: StartValues;
  about: About | null;
  busy: boolean;
  trouble: string | null;
  trans: TranslationBundle;
  onChange: (values: StartValues) => void;
}

/**
 * The form's fields.
 *
 * Their texts are local React state: a field that is rendered asynchronously would show its old text for a moment,
 * and a letter typed in that moment would be added to the old text.
 */
export function StartFields({ first, about, busy, trouble, trans, onChange }: FieldsProps): ReactElement {
  const [values, setValues] = useState(first);
  const change = (field: StartField, value: string): void => {
    const now = { ...values, [field]: value };
    setValues(now);
    onChange(now);
  };
  const faults = validate(values, trans);
  const gpus = about?.gpus ?? 0;
  const hint = coreHint(values, about, trans);
  const text = (field: StartField, label: string, extra: object = {}): ReactElement => (
    <Field id={field} label={label} fault={faults[field]}>
      <input
        id={`nbd-start-${field}`}
        className="jp-mod-styled"
        value={values[field]}
        aria-invalid={faults[field] !== undefined}
        aria-describedby={faults[field] ? `nbd-start-${field}-fault` : undefined}
        onChange={event => change(field, event.target.value)}
        onFocus={event => event.target.select()}
        {...extra}
      />
    </Field>
  );
  const choice = (field: StartField, label: string, options: [string, string][]): ReactElement => (
    <Field id={field} label={label}>
      <select
        id={`nbd-start-${field}`}
        className="jp-mod-styled"
        value={values[field]}
        onChange={event => change(field, event.target.value)}
      >
        {options.map(([value, name]) => (
          <option key={value} value={value}>
            {name}
          </option>
        ))}
      </select>
    </Field>
  );
  const whole = { type: 'number', step: 1, inputMode: 'numeric' };
  return (
    <div aria-busy={busy}>
      <p>{trans.__('A cluster started here is independent of notebooks: it runs until it is stopped.')}</p>
      {text('name', trans.__('Name'), { placeholder: trans.__('automatic'), maxLength: 48 })}
      {text('workers', trans.__('Workers'), { ...whole, min: 1 })}
      {text('ps', trans.__('Parameter servers'), { ...whole, min: 0 })}
      {choice('launcher', trans.__('Launcher'), (about?.launchers ?? [DEFAULT_LAUNCHER]).map(name => [name, name]))}
      {gpus > 0 && choice('gpus', trans.__('GPUs'), gpuChoices(gpus, trans))}
      {gpus > 0 && text('gpu_memory', trans.__('Share of a GPU’s memory'), { placeholder: trans.__('all') })}
      {text('threads', trans.__('Threads of each task'), { ...whole, min: 1, placeholder: trans.__('automatic') })}
      {text('memory', trans.__('Memory limit per task'), { placeholder: trans.__('no limit, or 2G') })}
      {about && gpus === 0 && <p className="nbd-StartForm-hint">{trans.__('There is no GPU on this machine.')}</p>}
      <p className="nbd-StartForm-hint" role="status">
        {busy ? trans.__('Asking the server…') : hint}
      </p>
      {trouble !== null && (
        <div className="nbd-Error" role="alert">
          <span className="nbd-Error-text">{trouble}</span>
        </div>
      )}
    </div>
  );
}

interface FieldProps {
  id: StartField;
  label: string;
  fault?: string | undefined;
  children: ReactNode;
}

function Field({ id, label, fault, children }: FieldProps): ReactElement {
  return (
    <div className="nbd-Field">
      <label htmlFor={`nbd-start-${id}`}>{label}</label>
      {children}
      {fault !== undefined && (
        <span className="nbd-Field-fault" id={`nbd-start-${id}-fault`}>
          {fault}
        </span>
      )}
    </div>
  );
}

function gpuChoices(gpus: number, trans: TranslationBundle): [string, string][] {
  const numbers = Array.from({ length: gpus }, (_, index): [string, string] => [String(index + 1), String(index + 1)]);
  return [['auto', trans.__('as nbdist decides')], ['none', trans.__('none')], ...numbers];
}

/** The texts of the form's fields. */
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

export type InitialCounts = Pick<SettingValues, 'workers' | 'ps'>;
export type StartField = keyof StartValues;

/** The initial values of the form; the numbers are from the user's settings. */
export function initialValues(about: About | null, { workers, ps }: InitialCounts): StartValues {
  const launcher = about?.launchers[0] ?? DEFAULT_LAUNCHER;
  const numbers = { workers: String(workers), ps: String(ps) };
  return { name: '', ...numbers, launcher, gpus: 'auto', gpu_memory: '', threads: '', memory: '' };
}

/** The problems by field; empty if the form can be sent. */
export function validate(values: StartValues, trans: TranslationBundle): Partial<StartValues> {
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

/** The request for the server; the fields must be valid. */
export function startRequest(values: StartValues): StartRequest {
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

/** A hint before the start if the tasks have to share cores. */
export function coreHint(values: StartValues, about: About | null, trans: TranslationBundle): string | null {
  const tasks = Number(values.workers) + Number(values.ps);
  if (!about || values.launcher !== DEFAULT_LAUNCHER || !(tasks > about.cores)) {
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
