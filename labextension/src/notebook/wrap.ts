import type { TranslationBundle } from '@jupyterlab/translation';

/** What decides how a cell is run distributed. */
export interface CellFacts {
  /** "code", "markdown" or "raw". */
  readonly type: string;
  readonly source: string;
  readonly editable: boolean;
  /** Of the notebook's kernel; empty if unknown. */
  readonly language: string;
}

/** What to do: run the cell as it is, put a line above it first, or say why neither is possible. */
export type Step = { do: 'run' } | { do: 'wrap'; line: string } | { do: 'refuse'; why: string };

const CELL_MAGIC = /^%%([\w.]+)/;
/** What drives the notebook's own side of a cluster and would mean nothing on a worker. */
const NOTEBOOKS_OWN = /^%(cluster|graph|(re)?load_ext\s+nbdist)\b/;

/**
 * Decide how a cell is run on the workers.
 *
 *     wrap({type: 'code', source: 'model.fit(data)', editable: true, language: 'python'}, '--sync', trans)
 *     // {do: 'wrap', line: '%%distribute --sync\n'}
 */
export function wrap(cell: CellFacts, flags: string, trans: TranslationBundle): Step {
  if (cell.type !== 'code') {
    return refuse(trans.__('Only a code cell can be run on the workers.'));
  }
  if (cell.language && !/^i?python/i.test(cell.language)) {
    return refuse(trans.__('The workers run Python, and the language of this notebook is %1.', cell.language));
  }
  const lines = cell.source.split('\n');
  const first = lines.findIndex(line => line.trim() !== '');
  if (first < 0) {
    return refuse(trans.__('The cell is empty: there is nothing to run.'));
  }
  const magic = CELL_MAGIC.exec(lines[first]!.trim())?.[1];
  if (magic === 'distribute') {
    return { do: 'run' };
  }
  if (magic !== undefined) {
    return refuse(
      trans.__('The cell begins with %1, and a cell can have only one such line: remove it, or run the cell as it is.', `%%${magic}`)
    );
  }
  const late = lines.findIndex(line => CELL_MAGIC.exec(line)?.[1] === 'distribute');
  if (late >= 0) {
    return refuse(trans.__('%1 is in line %2: it works only as the first line of the cell.', '%%distribute', late + 1));
  }
  const own = lines.find(line => NOTEBOOKS_OWN.test(line));
  if (own !== undefined) {
    return refuse(trans.__('“%1” is for the notebook, not for its workers: move it into a cell of its own.', own.trim()));
  }
  if (!cell.editable) {
    return refuse(trans.__('The cell is read-only, so that %1 cannot be added to it.', '%%distribute'));
  }
  return { do: 'wrap', line: `${['%%distribute', flags.trim()].filter(Boolean).join(' ')}\n` };
}

function refuse(why: string): Step {
  return { do: 'refuse', why };
}
