/** The page of a sweep: its grid, updated as trials start and end. */

import type { CommandRegistry } from '@lumino/commands';
import { make } from '@widget/dom/elements.js';
import type { State, Sweep } from '../api/items';
import type { Drawing } from '../render/drawing';
import { SWEEP } from '../render/kinds';
import { readSweep, type SweepBundle } from '../render/sweep-bundle';
import { type Action, sweepActions } from '../sidebar/actions';
import type { INbdist } from '../token';
import { type Answer, Page } from './page';
import { preformatted, CollapsibleSection } from './sections';

export class SweepPage extends Page<Sweep, SweepBundle> {
  constructor(id: string, nbdist: INbdist, commands: CommandRegistry) {
    super(id, nbdist, commands);
    this.error = new CollapsibleSection(nbdist.trans.__('Error'), true);
    this.before.append(this.error.element);
    this.after.append(this.room, this.note);
  }

  protected override async fetchItem(): Promise<Answer<Sweep, SweepBundle>> {
    const { client } = this.nbdist;
    const [details, data] = await Promise.all([client.sweep(this.itemId), client.sweepData(this.itemId)]);
    return { details, bundle: readSweep(data) };
  }

  protected override findItem(state: State): object | undefined {
    return state.sweeps.find(({ id }) => id === this.itemId);
  }

  protected override draw(bundle: SweepBundle): Promise<Drawing<SweepBundle>> {
    return SWEEP.draw(bundle);
  }

  protected override actions(sweep: Sweep): Action[] {
    return sweepActions(sweep, this.nbdist.trans);
  }

  protected override nameOf(sweep: Sweep): string {
    return sweep.name || sweep.id;
  }

  protected override notFoundText(): string {
    return this.nbdist.trans.__('There is no sweep %1: its folder was deleted, or it ran on another machine.', this.itemId);
  }

  protected override renderDetails({ details, bundle: { shown, of } }: Answer<Sweep, SweepBundle>): void {
    const { trans } = this.nbdist;
    this.error.show(details.error, !details.error, text => [preformatted(text ?? '', trans.__('Error'))]);
    this.room.textContent = shown < of ? trans.__('%1 of %2 trials are shown: the best, and a sample of the others.', shown, of) : '';
    this.note.textContent = details.note ?? '';
  }

  private readonly error: CollapsibleSection;
  private readonly room = make('p', { class: 'nbd-Page-note' });
  private readonly note = make('p', { class: 'nbd-Page-note' });
}
