/** The objects that the tasks of a run have displayed, drawn by JupyterLab's own renderers. */

import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import { make } from '@widget/dom/elements.js';
import { shortTask } from '@widget/text/format.js';
import type { Client } from '../api/client';
import type { DisplayFile } from '../api/items';
import { isRecord, record } from '../render/json';

const MOST = 40; // objects of a page: the newest
const SVG = 'image/svg+xml';

interface Drawn {
  version: string;
  element: HTMLElement;
  renderer: IRenderMime.IRenderer | null;
}

/**
 * The run's folder may come from another machine, so that no object is trusted: HTML is sanitized, an SVG is a
 * picture, and no script runs.
 */
export class Displays {
  constructor(
    private readonly run: string,
    private readonly client: Client,
    private readonly registry: IRenderMimeRegistry | null,
    private readonly trans: TranslationBundle
  ) {}

  /** The elements of these objects; those that have not changed are kept. */
  elements(files: readonly DisplayFile[]): Node[] {
    const newest = files.slice(-MOST);
    const there = new Set(newest.map(({ path }) => path));
    for (const [path, { renderer }] of this.drawn) {
      if (!there.has(path)) {
        renderer?.dispose();
        this.drawn.delete(path);
      }
    }
    const earlier = files.length - newest.length;
    const note = make('p', { class: 'nbd-Page-note' }, this.trans._n('%1 earlier object is below Files', '%1 earlier objects are below Files', earlier));
    return [...(earlier ? [note] : []), ...newest.map(file => this.elementOf(file))];
  }

  dispose(): void {
    this.drawn.forEach(({ renderer }) => renderer?.dispose());
    this.drawn.clear();
  }

  private elementOf(file: DisplayFile): HTMLElement {
    const version = `${file.bytes} ${file.modified}`;
    const known = this.drawn.get(file.path);
    if (known?.version === version) {
      return known.element;
    }
    known?.renderer?.dispose();
    const place = make('div', { class: 'nbd-Page-display' });
    const element = known?.element ?? make('div', {});
    element.replaceChildren(make('p', { class: 'nbd-Page-note', title: file.task }, shortTask(file.task)), place);
    const drawn: Drawn = { version, element, renderer: null };
    this.drawn.set(file.path, drawn);
    void this.draw(file, place, drawn).catch((error: unknown) => {
      place.replaceChildren(make('p', { class: 'nbd-Page-note' }, error instanceof Error ? error.message : String(error)));
    });
    return element;
  }

  private async draw({ path }: DisplayFile, place: HTMLElement, drawn: Drawn): Promise<void> {
    const data = dataOf(await this.client.runFile(this.run, path));
    const type = this.registry?.preferredMimeType(data, 'ensure');
    if (this.drawn.get(path) !== drawn) {
      return; // the page shows a newer state, or is closed
    }
    if (data[SVG] !== undefined && (type === undefined || type === 'text/plain')) {
      const src = `data:${SVG};charset=utf-8,${encodeURIComponent(data[SVG])}`; // no script of a picture runs
      place.replaceChildren(make('img', { src, alt: data['text/plain'] ?? '' }));
    } else if (this.registry && type !== undefined) {
      const renderer = this.registry.createRenderer(type);
      drawn.renderer = renderer;
      await renderer.renderModel(this.registry.createModel({ data, trusted: false }));
      if (place.isConnected && !renderer.isDisposed) {
        Widget.attach(renderer as unknown as Widget, place);
      }
    } else {
      place.replaceChildren(make('pre', {}, data['text/plain'] ?? ''));
    }
  }

  private readonly drawn = new Map<string, Drawn>();
}

/** The forms of an object in a file of the run (see nbdist/run/displays.py). */
function dataOf(file: unknown): Record<string, string> {
  const data = isRecord(file) ? record(file['data']) : {};
  return Object.fromEntries(Object.entries(data).filter((pair): pair is [string, string] => typeof pair[1] === 'string'));
}
