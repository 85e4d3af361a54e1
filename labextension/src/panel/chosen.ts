import type { IStateDB } from '@jupyterlab/statedb';
import type { PanelModel } from './model';

const KEY = 'nbdist:chosen-cluster';

/** Keep the user's choice of a cluster with the workspace, and choose it again in a page that is loaded anew. */
export async function keepChosen(model: PanelModel, workspace: IStateDB): Promise<void> {
  let kept = await workspace.fetch(KEY);
  if (model.wish === null && typeof kept === 'string') {
    model.choose(kept);
  }
  const keep = (): void => {
    if (model.wish !== null && model.wish !== kept) {
      kept = model.wish;
      void workspace.save(KEY, kept);
    }
  };
  keep();
  model.changed.connect(keep);
}
