import { Dialog, InputDialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import { RefusedError } from './notify';

/** Let the user pick an item by name; null if the dialog is cancelled. Raises RefusedError with `none` if there are no items. */
export async function pickItem<Item>(
  items: readonly Item[],
  nameOf: (item: Item) => string,
  texts: { title: string; label: string; none: string },
  trans: TranslationBundle
): Promise<Item | null> {
  if (items.length === 0) {
    throw new RefusedError(texts.none);
  }
  const names = uniqueNames(items.map(nameOf));
  const { value } = await InputDialog.getItem({
    title: texts.title,
    label: texts.label,
    items: names,
    okLabel: trans.__('OK'),
    cancelLabel: trans.__('Cancel')
  });
  return value === null ? null : items[names.indexOf(value)]!;
}

/** The names, with numbers appended to equal ones. */
export function uniqueNames(names: readonly string[]): string[] {
  const seen = new Map<string, number>();
  return names.map(name => {
    const count = (seen.get(name) ?? 0) + 1;
    seen.set(name, count);
    return count === 1 ? name : `${name} (${count})`;
  });
}

/** Ask for confirmation and show the reasons against it; without reasons return true immediately. */
export async function confirm(
  title: string,
  reasons: readonly string[],
  yes: string,
  trans: TranslationBundle
): Promise<boolean> {
  if (reasons.length === 0) {
    return true;
  }
  const { button } = await showDialog({
    title,
    body: new ParagraphsBody(reasons),
    buttons: [Dialog.cancelButton({ label: trans.__('Cancel') }), Dialog.warnButton({ label: yes })]
  });
  return button.accept;
}

/** Ask for a whole number from 1 to `most`; null if the user cancels. */
export function askCount(title: string, label: string, most: number, trans: TranslationBundle): Promise<number | null> {
  return askNumber(title, label, { min: '1', max: String(most), step: '1', value: '1' }, trans);
}

/** Ask for a number within the limits of an input element; null if the user cancels. */
export async function askNumber(
  title: string,
  label: string,
  limits: { min: string; max?: string; step: string; value: string },
  trans: TranslationBundle
): Promise<number | null> {
  const { button, value } = await showDialog({
    title,
    body: new NumberBody(label, limits),
    buttons: [Dialog.cancelButton({ label: trans.__('Cancel') }), Dialog.okButton({ label: trans.__('OK') })],
    focusNodeSelector: 'input'
  });
  return button.accept ? value : null;
}

class ParagraphsBody extends Widget {
  constructor(texts: readonly string[]) {
    super();
    this.node.append(
      ...texts.map(text => {
        const paragraph = document.createElement('p');
        paragraph.textContent = text;
        return paragraph;
      })
    );
  }
}

/** The dialog cannot be accepted with a number outside the limits. */
class NumberBody extends Widget implements Dialog.IBodyWidget<number> {
  constructor(label: string, limits: object) {
    super();
    const text = document.createElement('label');
    Object.assign(this.input, { type: 'number', required: true, ...limits });
    this.input.className = 'jp-mod-styled';
    text.append(`${label}: `, this.input);
    this.node.append(text);
  }

  getValue(): number {
    return this.input.valueAsNumber;
  }

  private readonly input = document.createElement('input');
}
