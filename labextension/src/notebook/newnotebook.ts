import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IDocumentWidget } from '@jupyterlab/docregistry';
import type { KernelSpec } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Refused } from '../commands/telling';

/** A cell as files have it. */
export interface NewCell {
  readonly cell_type: string;
  readonly source: string | readonly string[];
}

/**
 * Write a notebook for the Python kernel into a folder and open it; returns its widget, if it is in this page.
 *
 * The files of Jupyter Notebook open in tabs of the browser's own: there nothing is returned.
 */
export async function openNew(
  app: JupyterFrontEnd,
  folder: string,
  cells: readonly NewCell[],
  trans: TranslationBundle
): Promise<IDocumentWidget | undefined> {
  const { contents, kernelspecs } = app.serviceManager;
  await kernelspecs.ready;
  const kernel = pythonOf(kernelspecs.specs);
  if (!kernel) {
    throw new Refused(trans.__('There is no Python kernel to open a notebook with: install ipykernel.'));
  }
  const { path } = await contents.newUntitled({ path: folder, type: 'notebook' });
  await contents.save(path, { type: 'notebook', format: 'json', content: notebook(cells, kernel) });
  const name = kernel.name;
  const opened: unknown = await app.commands.execute('docmanager:open', { path, factory: 'Notebook', kernel: { name } });
  return (opened as IDocumentWidget | undefined) ?? undefined;
}

/** What a notebook's file holds, in nbformat 4.5. */
export function notebook(cells: readonly NewCell[], kernel: KernelSpec.ISpecModel): object {
  const { name, display_name, language } = kernel;
  return {
    nbformat: 4,
    nbformat_minor: 5,
    metadata: { kernelspec: { name, display_name, language }, language_info: { name: language } },
    cells: cells.map(({ cell_type, source }, at) => ({
      id: `cell-${at + 1}`,
      cell_type,
      metadata: {},
      source,
      ...(cell_type === 'code' && { execution_count: null, outputs: [] })
    }))
  };
}

/** The default kernel if it is for Python, else the first one that is. */
export function pythonOf(specs: KernelSpec.ISpecModels | null): KernelSpec.ISpecModel | undefined {
  const known = Object.values(specs?.kernelspecs ?? {}).filter(spec => spec !== undefined);
  const python = known.filter(spec => spec.language.toLowerCase() === 'python');
  return python.find(spec => spec.name === specs?.default) ?? python[0];
}
