/** A sweep's grid: the live view's own drawing code, with nobody at the other end who hears wishes. */

import { Grid } from '@widget/sweep/view.js';
import { type Drawing, newName } from './drawing';
import type { SweepBundle } from './sweepbundle';

export function drawSweep(bundle: SweepBundle): Drawing<SweepBundle> {
  const grid = new Grid(newName(), null);
  const take = ({ snapshot }: SweepBundle): void => grid.model.apply(snapshot);
  take(bundle);
  return { element: grid.element, take, redraw: () => grid.redraw(), close: () => grid.destroy() };
}
