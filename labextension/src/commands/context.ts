import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { FileBrowser } from '@jupyterlab/filebrowser';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { CommandRegistry } from '@lumino/commands';
import type { Settings } from '../settings';
import type { INbdist } from '../token';

/** What commands work with. What is null is not part of this application: Jupyter Notebook lacks some. */
export interface CommandContext {
  readonly app: JupyterFrontEnd;
  readonly nbdist: INbdist;
  readonly settings: Settings;
  readonly notebooks: INotebookTracker | null;
  readonly files: FileBrowser | null;
}

/** An argument of a command that is a text; null for none, and for an empty one. */
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
