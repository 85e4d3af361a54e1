/**
 * Saves a notebook when a live view opens in it. A page that is reloaded before the first save has no output of the
 * cell, and a second page neither, so that the view would be lost for both.
 */

import type { NotebookPanel } from '@jupyterlab/notebook';
import type { ISettingRegistry } from '@jupyterlab/settingregistry';

/** A view of a run or sweep, by its kernel or drawn from an output's data. */
export const VIEW = 'section.nbdist-live, section.nbdist-sweep';

export interface Saver {
  /** The views that were seen. */
  readonly seen: WeakSet<Element>;
  /** Whether the user lets JupyterLab save documents by itself. */
  readonly autosaves: () => boolean;
}

export function saveNewViews({ content, context }: NotebookPanel, { seen, autosaves }: Saver): void {
  let opened = false;
  for (const view of content.node.querySelectorAll(`.jp-OutputArea-output:not(.nbd-Bundle) :is(${VIEW})`)) {
    opened ||= !seen.has(view);
    seen.add(view);
  }
  const { model } = context;
  const mayBeSaved = autosaves() && !model.readOnly && !model.collaborative && context.contentsModel?.writable === true;
  if (opened && mayBeSaved && model.dirty) {
    void context.save().catch(() => undefined); // the context has shown why
  }
}

/** Follows the setting "autosave" of JupyterLab, which is on unless it is known to be off. */
export function followAutosave(registry: ISettingRegistry | null): () => boolean {
  let on = true;
  registry?.load('@jupyterlab/docmanager-extension:plugin').then(
    settings => {
      const read = (): void => void (on = settings.get('autosave').composite !== false);
      settings.changed.connect(read);
      read();
    },
    () => undefined // this application has no such setting
  );
  return () => on;
}
