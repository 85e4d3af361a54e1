import { type ReactElement, type ReactNode, useState } from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { type About, DEFAULT_LAUNCHER, type LauncherForm, type LauncherSetting, type StartRequest } from '../api/items';
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
  const keep = (now: StartValues): void => {
    setValues(now);
    onChange(now);
  };
  const change = (field: StartField, value: string): void => keep(changed(values, field, value, about));
  const launcher = launcherForm(values, about);
  const faults = validate(values, trans, about);
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
      {text('workers', trans.__('Workers'), {
        ...whole,
        min: 1,
        placeholder: launcher.elsewhere ? trans.__('all that fit') : ''
      })}
      {text('ps', trans.__('Parameter servers'), { ...whole, min: 0 })}
      {choice('launcher', trans.__('Launcher'), (about?.launchers ?? [DEFAULT_LAUNCHER]).map(name => [name, name]))}
      {launcher.settings.length > 0 && (
        <fieldset className="nbd-StartForm-settings" aria-label={trans.__('Settings of launcher %1', values.launcher)}>
          <p className="nbd-StartForm-hint">{launcher.help}</p>
          {launcher.settings.map(setting => (
            <SettingField
              key={setting.name}
              setting={setting}
              value={values.settings[setting.name] ?? ''}
              onChange={value => keep({ ...values, settings: { ...values.settings, [setting.name]: value } })}
            />
          ))}
        </fieldset>
      )}
      {(gpus > 0 || launcher.elsewhere) &&
        choice('gpus', trans.__('GPUs'), gpuChoices(launcher.elsewhere ? 0 : gpus, trans))}
      {(gpus > 0 || launcher.elsewhere) && text('gpu_memory', trans.__('Share of a GPU’s memory'), { placeholder: trans.__('all') })}
      {text('threads', trans.__('Threads of each task'), { ...whole, min: 1, placeholder: trans.__('automatic') })}
      {text('memory', trans.__('Memory limit per task'), { placeholder: trans.__('no limit, or 2G') })}
      {about && gpus === 0 && !launcher.elsewhere && <p className="nbd-StartForm-hint">{trans.__('There is no GPU on this machine.')}</p>}
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

interface SettingProps {
  setting: LauncherSetting;
  value: string;
  onChange: (value: string) => void;
}

/** The text of a switch that is on; "" is off. */
const ON = 'on';

/** A setting of the chosen launcher; the server checks its value. */
function SettingField({ setting, value, onChange }: SettingProps): ReactElement {
  const id = `nbd-start-setting-${setting.name}`;
  const label = setting.name.replace(/_/g, ' ');
  return (
    <div className="nbd-Field" title={setting.help}>
      <label htmlFor={id}>{label.charAt(0).toUpperCase() + label.slice(1)}</label>
      {setting.switch ? (
        <input
          id={id}
          type="checkbox"
          checked={value === ON}
          aria-describedby={`${id}-help`}
          onChange={event => onChange(event.target.checked ? ON : '')}
        />
      ) : (
        <input
          id={id}
          className="jp-mod-styled"
          value={value}
          placeholder={setting.default ? String(setting.default) : setting.shows}
          aria-describedby={`${id}-help`}
          spellCheck={false}
          onChange={event => onChange(event.target.value)}
        />
      )}
      <span className="nbd-Hidden" id={`${id}-help`}>
        {setting.help}
      </span>
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
  /** The settings of launchers, by name; those of the chosen one are sent. */
  settings: Record<string, string>;
}

export type InitialCounts = Pick<SettingValues, 'workers' | 'ps'>;
export type StartField = Exclude<keyof StartValues, 'settings'>;
type Faults = Partial<Record<StartField, string>>;

const HERE: LauncherForm = { help: '', elsewhere: false, settings: [] };

/** What the form shows of the chosen launcher. */
function launcherForm(values: StartValues, about: About | null): LauncherForm {
  return about?.launcher_forms?.[values.launcher] ?? HERE;
}

/**
 * The values after a change of a field.
 *
 * Where the tasks are on other hosts, these decide on the number of workers and on GPUs unless the user does.
 */
export function changed(values: StartValues, field: StartField, value: string, about: About | null): StartValues {
  const now = { ...values, [field]: value };
  const elsewhere = launcherForm(now, about).elsewhere;
  if (field !== 'launcher' || elsewhere === launcherForm(values, about).elsewhere) {
    return now;
  }
  return { ...now, workers: elsewhere ? '' : '2', gpus: 'auto' };
}

/** The initial values of the form; the numbers are from the user's settings. */
export function initialValues(about: About | null, { workers, ps }: InitialCounts): StartValues {
  const launcher = about?.launchers[0] ?? DEFAULT_LAUNCHER;
  const numbers = { workers: String(workers), ps: String(ps) };
  return { name: '', ...numbers, launcher, gpus: 'auto', gpu_memory: '', threads: '', memory: '', settings: {} };
}

/** The problems by field; empty if the form can be sent. */
export function validate(values: StartValues, trans: TranslationBundle, about: About | null): Faults {
  const faults: Faults = {};
  if (values.name.trim() && !/^\w{1,48}$/.test(values.name.trim())) {
    faults.name = trans.__('Letters, digits and _, or nothing');
  }
  const hostsDecide = launcherForm(values, about).elsewhere && !values.workers.trim();
  if (!hostsDecide && !isWhole(values.workers, 1)) {
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
export function startRequest(values: StartValues, about: About | null): StartRequest {
  const settings: StartRequest['settings'] = {};
  for (const setting of launcherForm(values, about).settings) {
    const value = values.settings[setting.name]?.trim();
    if (value) {
      settings[setting.name] = setting.switch ? true : value;
    }
  }
  const gpus = values.gpus === 'auto' || values.gpus === 'none' ? values.gpus : Number(values.gpus);
  return {
    name: values.name.trim() || null,
    workers: values.workers.trim() ? Number(values.workers) : null,
    ps: Number(values.ps),
    launcher: values.launcher,
    settings,
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
