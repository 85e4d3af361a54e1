import { Notification } from '@jupyterlab/apputils';

/** A command refuses, with a reason; shown as a warning, not as an error. */
export class RefusedError extends Error {
  constructor(why: string) {
    super(why);
    this.name = 'Refused';
  }
}

/**
 * Do what a command does, and show the text that it returns, or what goes wrong; a caller that shows such things
 * itself says `quiet` and gets the error.
 *
 * What is done begins at once, not in a later turn of the event loop: a click allows a tab only for so long.
 */
export async function withNotifications<Result>(
  args: { readonly quiet?: unknown },
  act: () => Promise<Result>
): Promise<Result | undefined> {
  try {
    const done = await act();
    if (typeof done === 'string' && args.quiet !== true) {
      Notification.info(done, { autoClose: 3000 });
    }
    return done;
  } catch (error) {
    if (args.quiet === true) {
      throw error;
    }
    const text = error instanceof Error ? error.message : String(error);
    if (error instanceof RefusedError) {
      Notification.warning(text, { autoClose: 10000 });
    } else {
      Notification.error(text, { autoClose: false });
    }
    return undefined;
  }
}
