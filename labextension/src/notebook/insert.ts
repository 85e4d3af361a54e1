import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';

/**
 * Add a code cell below a notebook's active one and make it the active one; undo takes it away. With `run` it is
 * run, too.
 *
 * The kernel is not needed: it may be busy, dead, or none at all.
 */
export async function insertBelow(panel: NotebookPanel, source: string, run: boolean): Promise<void> {
  const { content, sessionContext } = panel;
  const at = content.activeCell ? content.activeCellIndex + 1 : 0;
  content.model?.sharedModel.insertCell(at, { cell_type: 'code', source, metadata: { trusted: true } });
  content.activeCellIndex = at;
  content.deselectAll();
  await content.scrollToItem(at);
  const cell = content.activeCell;
  if (run && cell) {
    await NotebookActions.runCells(content, [cell], sessionContext);
  }
}
