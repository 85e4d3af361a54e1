/** The row of buttons of a page: what can be done, each a command; one that cannot be says why and keeps the focus. */

import type { CommandRegistry } from '@lumino/commands';
import { make, setText } from '@widget/dom/elements.js';
import type { Action } from '../../panel/actions';

export class Buttons {
  readonly element: HTMLElement;

  constructor(
    private readonly commands: CommandRegistry,
    label: string
  ) {
    this.element = make('div', { class: 'nbd-Page-buttons', role: 'group', 'aria-label': label });
  }

  /** Offer these, as far as this application has their commands. */
  offer(actions: Action[]): void {
    const offered = actions.filter(({ command }) => this.commands.hasCommand(command));
    const known = new Map(this.made.map(one => [one.id, one]));
    this.made = offered.map(action => known.get(action.id) ?? this.make(action.id));
    this.made.forEach((one, i) => one.show(offered[i]!));
    if (this.made.some((one, i) => this.element.children[i] !== one.button) || this.element.children.length !== this.made.length) {
      this.element.replaceChildren(...this.made.map(({ button }) => button));
    }
    this.element.hidden = offered.length === 0;
  }

  private make(id: string): Made {
    const button = make('button', { class: 'nbd-Page-button', type: 'button' });
    let shown: Action | null = null;
    let busy = false;
    const write = (): void => {
      if (busy || shown?.why) {
        button.setAttribute('aria-disabled', 'true');
      } else {
        button.removeAttribute('aria-disabled');
      }
    };
    button.addEventListener('click', () => {
      if (busy || !shown || shown.why) {
        return;
      }
      busy = true;
      write();
      void Promise.resolve(this.commands.execute(shown.command, shown.args))
        .catch(() => undefined) // the command has said what went wrong
        .finally(() => {
          busy = false;
          write();
        });
    });
    const show = (action: Action): void => {
      shown = action;
      setText(button, action.label);
      button.title = action.why ?? '';
      write();
    };
    return { id, button, show };
  }

  private made: Made[] = [];
}

interface Made {
  readonly id: string;
  readonly button: HTMLButtonElement;
  show(action: Action): void;
}
