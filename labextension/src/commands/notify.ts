import { Notification } from '@jupyterlab/apputils';

/** A command refuses, with a reason; shown as a warning, not as an error. */
export class RefusedError extends Error {
  constructor(why: string) {
    super(why);
    this.name = 'Refused';
  }
}

/**
 * Execute a command's function and show the text that it returns, or its error; with `quiet` the error is raised
 * for a caller that shows it.
 *
 * The function is called synchronously: browsers permit a new tab only shortly after a click.
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
