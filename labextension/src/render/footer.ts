/** The line below what is drawn: how a notebook gets at the run or sweep itself. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import { make } from '@widget/dom/elements.js';

const INSERT = 'nbdist:insert-attach';

/** The code that brings it into a kernel, with a button that puts the code into the notebook where that can be. */
export function attachLine(id: string, what: string, trans: TranslationBundle, commands: CommandRegistry | null): HTMLElement {
  const call = `nb.attach(${python(id)})`;
  const line = make('p', { class: 'nbd-attach' }, make('code', {}, call), ` ${what}`);
  if (commands?.hasCommand(INSERT)) {
    const title = trans.__('Insert the code into the notebook');
    const button = make('button', { class: 'nbd-Page-button', type: 'button', title }, trans.__('Insert'));
    button.addEventListener('click', () => void commands.execute(INSERT, { code: `import nbdist as nb\n${call}` }));
    line.append(' ', button);
  }
  return line;
}

/** A text as Python has it. */
export function python(value: string): string {
  return /^[\w.:-]*$/.test(value) ? `'${value}'` : JSON.stringify(value);
}
