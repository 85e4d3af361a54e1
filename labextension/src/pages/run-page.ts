/** The page of a run: its growing curves, its options, its output and its files. */

import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { CommandRegistry } from '@lumino/commands';
import { make } from '@widget/dom/elements.js';
import { formatValue, shortTask } from '@widget/text/format.js';
import type { Progress } from '@widget/run/view.js';
import { ApiError } from '../api/client';
import type { About, Run, RunDetails, RunStatus, State } from '../api/items';
import type { Drawing } from '../render/drawing';
import { RUN } from '../render/kinds';
import { readRun, type RunBundle } from '../render/run-bundle';
import { type Action, runActions, runControls } from '../sidebar/actions';
import { formatBytes, formatMoment } from '../sidebar/format';
import type { INbdist } from '../token';
import { Displays } from './displays';
import { type Answer, Page } from './page';
import { pairs, preformatted, CollapsibleSection, table } from './sections';

export class RunPage extends Page<RunDetails, RunBundle> {
  constructor(id: string, nbdist: INbdist, commands: CommandRegistry, registry: IRenderMimeRegistry | null = null) {
    super(id, nbdist, commands);
    const { trans } = nbdist;
    this.parts = {
      error: new CollapsibleSection(trans.__('Error'), true),
      metrics: new CollapsibleSection(trans.__('Latest values'), true),
      output: new CollapsibleSection(trans.__('Output'), true),
      displays: new CollapsibleSection(trans.__('Displayed'), true),
      code: new CollapsibleSection(trans.__('Code of the cell'), true),
      about: new CollapsibleSection(trans.__('Options')),
      tasks: new CollapsibleSection(trans.__('Tasks')),
      versions: new CollapsibleSection(trans.__('Versions')),
      files: new CollapsibleSection(trans.__('Files'))
    };
    const { error, ...rest } = this.parts;
    this.before.append(error.element);
    this.after.append(...Object.values(rest).map(({ element }) => element));
    this.displays = new Displays(id, nbdist.client, registry, trans);
    this.charts = keptTitles(id);
    void nbdist.client.about().then(
      about => (this.about = about),
      () => undefined // opening TensorBoard then reports why it cannot be opened
    );
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this.displays.dispose();
    }
    super.dispose();
  }

  protected override async fetchItem(): Promise<Answer<RunDetails, RunBundle>> {
    const { client } = this.nbdist;
    const { charts } = this;
    try {
      const [details, data] = await Promise.all([client.run(this.itemId), client.runData(this.itemId, charts)]);
      this.drawnCharts = charts;
      return { details, bundle: mergeProgress(readRun(data), details, Date.now() / 1000) };
    } catch (error) {
      if (error instanceof ApiError && error.status >= 400 && error.status < 500) {
        this.charts = this.drawnCharts ?? []; // the run may have no chart of a typed title
        keepTitles(this.itemId, this.charts);
        if (charts.length && !this.drawnCharts) {
          return this.fetchItem(); // without the titles that were kept
        }
      }
      throw error;
    }
  }

  protected override findItem(state: State): object | undefined {
    return state.runs.find(({ id }) => id === this.itemId);
  }

  protected override draw(bundle: RunBundle): Promise<Drawing<RunBundle>> {
    return RUN.draw(bundle, (kind, more) => {
      if (kind === 'charts') {
        this.charts = more?.['titles'] as string[];
        keepTitles(this.itemId, this.charts);
        this.refreshNow();
      }
    });
  }

  protected override actions(details: RunDetails): Action[] {
    const { trans } = this.nbdist;
    const actions = [...runControls(details, trans), ...runActions(details, this.about, trans)];
    return details.browse === null ? actions.filter(({ id }) => id !== 'folder') : actions; // its files are on this page
  }

  protected override nameOf(details: RunDetails): string {
    return details.name || details.id;
  }

  protected override notFoundText(): string {
    return this.nbdist.trans.__('There is no run %1: its folder was deleted, or it ran on another machine.', this.itemId);
  }

  protected override renderDetails({ details, bundle }: Answer<RunDetails, RunBundle>): void {
    const { trans, client } = this.nbdist;
    const { error, metrics, output, displays, code, about, tasks, versions, files } = this.parts;
    error.show(details.error, !details.error, text => [preformatted(text ?? '', trans.__('Error'))]);
    metrics.show(bundle.metrics, !bundle.metrics.length, all => [
      table(
        [trans.__('metric'), trans.__('value')],
        all.map(([name, value]) => [name, formatValue(value)])
      )
    ]);
    output.show(details.output, !details.output.length, all =>
      all.flatMap(({ task, text }) => [
        make('p', { class: 'nbd-Page-note', title: task }, shortTask(task)),
        preformatted(text, trans.__('Output of %1', shortTask(task)))
      ])
    );
    displays.show(details.displays, !details.displays.length, all => this.displays.elements(all));
    const code_ = [details.first_line, details.code].filter(Boolean).join('\n');
    code.show(code_, !details.code, text => [preformatted(text, trans.__('Code of the cell'))]);
    about.show(runOptions(details, trans.__('seed')), false, all => [pairs(all)]);
    tasks.show(details.tasks, !details.tasks.length, all => [
      make('ul', {}, ...all.map(task => make('li', { title: task }, shortTask(task))))
    ]);
    versions.show(details.versions, !Object.keys(details.versions).length, all => [pairs(all)]);
    files.show(details.files, !details.files.length, all => [
      table(
        [trans.__('file'), trans.__('size'), trans.__('modified')],
        all.map(({ path, bytes, modified }) => [
          make('a', { href: client.fileUrl(details.id, path), download: path.split('/').at(-1) ?? path }, path),
          formatBytes(bytes),
          formatMoment(modified)
        ])
      )
    ]);
  }

  private readonly parts: Record<'error' | 'metrics' | 'output' | 'displays' | 'code' | 'about' | 'tasks' | 'versions' | 'files', CollapsibleSection>;
  private readonly displays: Displays;
  private about: About | null = null;
  /** The titles of the chosen charts, and of those that are drawn; none for the default ones. They last for a tab. */
  private charts: string[] = [];
  private drawnCharts: string[] | null = null;
}

/** The titles of the charts that were chosen in this tab before it was reloaded. */
function keptTitles(run: string): string[] {
  try {
    const titles: unknown = JSON.parse(sessionStorage.getItem(placeOf(run)) ?? '[]');
    return Array.isArray(titles) ? titles.filter(title => typeof title === 'string') : [];
  } catch {
    return []; // no storage, or what another program has written
  }
}

function keepTitles(run: string, titles: readonly string[]): void {
  try {
    sessionStorage.setItem(placeOf(run), JSON.stringify(titles));
  } catch {
    // no storage, or it is full
  }
}

function placeOf(run: string): string {
  return `nbdist:charts:${run}`;
}

/** The options of a run, common ones first; unknown ones are left out. */
function runOptions(details: RunDetails, seed: string): Record<string, unknown> {
  const { strategy, replicas, cluster, session, folder, options } = details;
  const resumed = { 'resumed from': details.resumed_from };
  const all = { strategy, replicas, cluster, [seed]: details.seed, ...resumed, notebook: session || null, folder, ...options };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== null && value !== undefined));
}

const STATES: Partial<Record<RunStatus, string>> = { preparing: 'starting' };
const OVER: RunStatus[] = ['finished', 'failed', 'stopped', 'damaged', 'lost'];

/** The data of a run, updated with those of its item. */
export function mergeProgress(bundle: RunBundle, run: Run, now: number): RunBundle {
  const over = OVER.includes(run.status);
  const until = over ? run.ended : now;
  const elapsed = until === null ? null : Math.max(0, until - run.created - run.paused);
  const progress: Progress = {
    ...bundle.progress,
    state: STATES[run.status] ?? run.status,
    step: run.step ?? bundle.progress.step,
    total: run.total,
    steps_per_second: (over ? bundle.progress.steps_per_second : null) ?? run.steps_per_second,
    seconds_left: run.seconds_left,
    training_seconds: over ? bundle.progress.training_seconds : null,
    elapsed,
    note: [bundle.progress.note, run.note].filter(Boolean).join(' · ')
  };
  return { ...bundle, progress, head: { ...bundle.head, title: run.name || bundle.head.title, run: run.id } };
}
