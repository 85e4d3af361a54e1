import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Token } from '@lumino/coreutils';
import { type ISignal, Signal } from '@lumino/signaling';

/** The user settings, as schema/plugin.json describes them. */
export interface SettingValues {
  /** Initial values of the form for a new cluster. */
  readonly workers: number;
  readonly ps: number;
  /** The options that "Run cell distributed" writes after %%distribute. */
  readonly flags: string;
  /** Whether attach code is run when it is inserted. */
  readonly attachRuns: boolean;
  readonly showStatus: boolean;
  /** Whether a notification is shown at the end of a run or sweep that took this many seconds; by the browser, too, if the page is hidden. */
  readonly notify: boolean;
  readonly notifyAfter: number;
  readonly notifyBrowser: boolean;
}

export const DEFAULTS: SettingValues = {
  workers: 2,
  ps: 0,
  flags: '',
  attachRuns: false,
  showStatus: true,
  notify: true,
  notifyAfter: 60,
  notifyBrowser: true
};

export const PLUGIN = 'nbdist:plugin';

/**
 * The user's settings, and the defaults until they are loaded; `changed` is emitted when they change.
 *
 *     settings.changed.connect(() => form.begin(settings.values.workers));
 */
export class Settings {
  get values(): SettingValues {
    return this._values;
  }

  /** Why the defaults are in force instead of the user's settings; null if the settings are in force. */
  get error(): string | null {
    return this._error;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Load the settings from a registry; without one, and for invalid values, the defaults stay in force. */
  async follow(registry: Pick<ISettingRegistry, 'load'>): Promise<void> {
    try {
      const loaded = await registry.load(PLUGIN);
      loaded.changed.connect(() => this.setValues(loaded.composite));
      this.setValues(loaded.composite);
    } catch (error) {
      this._error = errorText(error);
      this._changed.emit();
    }
  }

  private setValues(composite: object): void {
    this._values = { ...DEFAULTS, ...composite };
    this._error = null;
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private _values = DEFAULTS;
  private _error: string | null = null;
}

export const INbdistSettings = new Token<Settings>('nbdist:INbdistSettings', "The user's settings of nbdist.");

/** The registry rejects with a list of errors, one for each invalid value. */
function errorText(error: unknown): string {
  if (!Array.isArray(error)) {
    return error instanceof Error ? error.message : String(error);
  }
  return (error as { instancePath?: string; message?: string }[])
    .map(({ instancePath, message }) => [instancePath?.replace('/', ''), message].filter(Boolean).join(' '))
    .join('; ');
}
