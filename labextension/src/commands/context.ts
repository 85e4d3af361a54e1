import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { FileBrowser } from '@jupyterlab/filebrowser';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { CommandRegistry } from '@lumino/commands';
import type { Settings } from '../settings';
import type { INbdist } from '../token';

/** The services of the commands; null if the application lacks one, as Jupyter Notebook lacks some. */
export interface CommandContext {
  readonly app: JupyterFrontEnd;
  readonly nbdist: INbdist;
  readonly settings: Settings;
  readonly notebooks: INotebookTracker | null;
  readonly files: FileBrowser | null;
}

/** A text argument of a command; null if it is missing or empty. */
export function stringArg(value: unknown): string | null {
  return typeof value === 'string' && value !== '' ? value : null;
}

/** The JSON schema of a command's arguments: a type and a sentence for each. */
export function argsSchema(
  properties: Record<string, readonly [type: 'string' | 'boolean' | 'integer', sentence: string]> = {}
): Partial<CommandRegistry.Description> {
  const all = { ...properties, quiet: ['boolean', 'Throw errors to the caller instead of showing them.'] as const };
  const each = Object.entries(all).map(([name, [type, description]]) => [name, { type, description }]);
  return { args: { type: 'object', properties: Object.fromEntries(each) } };
}
