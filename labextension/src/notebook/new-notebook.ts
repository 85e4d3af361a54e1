import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IDocumentWidget } from '@jupyterlab/docregistry';
import type { KernelSpec } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import { RefusedError } from '../commands/notify';

/** The content of a new notebook in nbformat 4.5. */
export interface Content {
  readonly nbformat: number;
  readonly nbformat_minor: number;
  readonly metadata: object;
  readonly cells: readonly object[];
}

/**
 * Write a notebook for the Python kernel into a folder and open it; returns its widget, if it is in this page.
 *
 * Jupyter Notebook opens files in their own browser tabs; nothing is returned there.
 */
export async function openNew(
  app: JupyterFrontEnd,
  folder: string,
  content: Content,
  trans: TranslationBundle
): Promise<IDocumentWidget | undefined> {
  const { contents, kernelspecs } = app.serviceManager;
  await kernelspecs.ready;
  const kernel = pythonOf(kernelspecs.specs);
  if (!kernel) {
    throw new RefusedError(trans.__('There is no Python kernel to open a notebook with: install ipykernel.'));
  }
  const { path } = await contents.newUntitled({ path: folder, type: 'notebook' });
  await contents.save(path, { type: 'notebook', format: 'json', content: forKernel(content, kernel) });
  const args = { path, factory: 'Notebook', kernel: { name: kernel.name } };
  const opened = (await app.commands.execute('docmanager:open', args)) as IDocumentWidget | undefined;
  return opened?.isDisposed ? undefined : opened;
}

/** A notebook of code cells. */
export function codeCells(sources: readonly string[]): Content {
  const cells = sources.map((source, at) => ({
    id: `cell-${at + 1}`,
    cell_type: 'code',
    metadata: {},
    source,
    execution_count: null,
    outputs: []
  }));
  return { nbformat: 4, nbformat_minor: 5, metadata: {}, cells };
}

/** The same notebook, which opens with a kernel without asking for one. */
export function forKernel(content: Content, { name, display_name, language }: KernelSpec.ISpecModel): Content {
  const metadata = { kernelspec: { name, display_name, language }, language_info: { name: language } };
  return { ...content, metadata };
}

/** The default kernel if it is for Python, else the first one that is. */
export function pythonOf(specs: KernelSpec.ISpecModels | null): KernelSpec.ISpecModel | undefined {
  const known = Object.values(specs?.kernelspecs ?? {}).filter(spec => spec !== undefined);
  const python = known.filter(spec => spec.language.toLowerCase() === 'python');
  return python.find(spec => spec.name === specs?.default) ?? python[0];
}
