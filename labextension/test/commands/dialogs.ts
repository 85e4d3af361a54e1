import { vi } from 'vitest';
import type { Dialog } from '@jupyterlab/apputils';

/** What a dialog showed, and the button that is pressed: JupyterLab's own need its style sheets and a browser. */
export interface Shown {
  title: string;
  text: string;
  items: string[];
  field: HTMLInputElement | null;
}

type Options = Partial<Dialog.IOptions<unknown>> & { items?: string[] };

/** What users see, and what they answer: the next button's label, or what they choose or type. */
export const user = {
  answers: [] as string[],
  shown: [] as Shown[],
  notices: [] as string[]
};

export const fakeApputils = (): object => {
  const button = (options?: object): object => ({ label: '', accept: true, ...options });
  return {
    Dialog: {
      okButton: button,
      warnButton: button,
      cancelButton: (options?: object) => ({ ...button(options), accept: false })
    },
    showDialog: async ({ title, body, buttons }: Options) => {
      const field = (body as { node?: HTMLElement } | undefined)?.node?.querySelector('input') ?? null;
      const text = (body as { node?: HTMLElement }).node?.textContent ?? String(body);
      user.shown.push({ title: String(title), text, items: [], field });
      const answer = user.answers.shift() ?? '';
      const typed = /^[\d.]+$/.test(answer);
      if (typed) {
        field!.value = answer;
      }
      const pressed = buttons!.find(one => (typed ? one.accept : one.label === answer))!;
      const value = (body as { getValue?: () => unknown }).getValue?.() ?? null;
      return { button: pressed, value: pressed.accept ? value : null };
    },
    InputDialog: {
      getText: async ({ title, text }: Options & { text?: string }) => {
        user.shown.push({ title: String(title), text: text ?? '', items: [], field: null });
        const answer = user.answers.shift();
        return { button: { accept: answer !== undefined }, value: answer ?? null };
      },
      getItem: async ({ title, items }: Options) => {
        user.shown.push({ title: String(title), text: '', items: items!, field: null });
        const answer = user.answers.shift();
        return { value: items!.find(one => one === answer) ?? null };
      }
    },
    Notification: {
      emit: (text: string) => text,
      dismiss: () => undefined,
      success: (text: string) => user.notices.push(`success: ${text}`),
      info: (text: string) => user.notices.push(`info: ${text}`),
      warning: (text: string) => user.notices.push(`warning: ${text}`),
      error: (text: string) => user.notices.push(`error: ${text}`)
    },
    Clipboard: { copyToSystem: vi.fn() }
  };
};

export const fakeComponents = (): object => ({
  LabIcon: class {},
  ...Object.fromEntries(
    ['addIcon', 'copyIcon', 'folderIcon', 'launchIcon', 'refreshIcon', 'stopIcon'].map(name => [name, undefined])
  )
});
