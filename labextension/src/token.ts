import type { TranslationBundle } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';
import type { Client } from './api/client';
import type { Feed } from './api/feed';

/** What all parts of the extension have in common; others may use it, too. */
export interface INbdist {
  readonly client: Client;
  readonly feed: Feed;
  readonly trans: TranslationBundle;
}

export const INbdist = new Token<INbdist>('nbdist:INbdist', 'The state of clusters, runs and sweeps on the Jupyter server.');
