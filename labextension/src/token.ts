import type { TranslationBundle } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';
import type { Client } from './api/client';
import type { Feed } from './api/feed';

/** The service that all parts of the extension share; other extensions may use it, too. */
export interface INbdist {
  readonly client: Client;
  readonly feed: Feed;
  readonly trans: TranslationBundle;
}

export const INbdist = new Token<INbdist>('nbdist:INbdist', 'The state of clusters, runs and sweeps on the Jupyter server.');
