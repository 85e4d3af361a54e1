/** A run's curves: the live view's own drawing code, with nobody at the other end. */

import { View } from '@widget/run/view.js';
import { type Drawing, newName } from './drawing';
import type { RunBundle } from './runbundle';

export function drawRun(bundle: RunBundle): Drawing<RunBundle> {
  const view = new View(newName(), () => undefined);
  view.controls.time.hidden = true; // the data tell no times
  const take = ({ head, progress, curves, marks }: RunBundle): void =>
    view.apply({ kind: 'frame', snapshot: true, head, progress, marks, replaced: [] }, curves);
  take(bundle);
  return { element: view.element, take, redraw: () => view.redraw(), close: () => view.close() };
}
