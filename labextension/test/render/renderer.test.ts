import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { ApiError, type Client } from '../../src/api/client';
import type { SavedOutput } from '../../src/api/items';
import type { Drawing } from '../../src/render/drawing';
import { RUN } from '../../src/render/kinds';
import { BundleRenderer, FOLLOW_EVERY, type BundleKind } from '../../src/render/renderer';
import type { RunBundle } from '../../src/render/run-bundle';

const HOSTILE = '<img src=x onerror=alert(1)>';
const DATA = { version: 1, run: 'r1', title: HOSTILE, state: 'finished', charts: [], series: [], left_out: 2 };
const HTML = `<p>headline</p><pre>lost &lt;i&gt;it&lt;/i&gt;</pre><p><img src="data:image/png;base64,AAAA" onerror="alert(1)"></p>
<table onclick="alert(1)"><thead><tr><th scope="col">loss</th></tr></thead><tbody><tr><td>0.1</td></tr></tbody></table>
<details open><summary><strong>worker 0</strong></summary><pre>printed</pre></details><script>alert(1)</script><style>*{}</style>`;

/** Tells of elements that come into view when the test says so. */
class Screen implements IntersectionObserver {
  static open = new Set<Screen>();
  readonly root = null;
  readonly rootMargin = '';
  readonly scrollMargin = '';
  readonly thresholds = [];
  constructor(private readonly callback: IntersectionObserverCallback) {}
  observe(): void {
    Screen.open.add(this);
  }
  unobserve(): void {}
  disconnect(): void {
    Screen.open.delete(this);
  }
  takeRecords(): IntersectionObserverEntry[] {
    return [];
  }
  static scroll(): void {
    for (const one of [...Screen.open]) {
      one.callback([{ isIntersecting: true } as IntersectionObserverEntry], one);
    }
  }
}

function modelOf(data: Record<string, unknown>): IRenderMime.IMimeModel {
  return { data, metadata: {}, trusted: false, setData: () => undefined } as unknown as IRenderMime.IMimeModel;
}

const drawn: string[] = [];
const kind: BundleKind<RunBundle> = {
  ...RUN,
  draw: async bundle => {
    drawn.push(`draw ${bundle.head.title}`);
    const drawing: Drawing<RunBundle> = {
      element: Object.assign(document.createElement('section'), { textContent: bundle.head.title }),
      take: ({ head }) => void drawn.push(`take ${head.title}`),
      redraw: () => void drawn.push('redraw'),
      close: () => void drawn.push('close')
    };
    return drawing;
  }
};

const commands = new CommandRegistry();
const inserted: unknown[] = [];
commands.addCommand('nbdist:insert-attach', { execute: args => void inserted.push(args) });

async function shown(data: Record<string, unknown>): Promise<BundleRenderer<RunBundle>> {
  const renderer = new BundleRenderer(kind, { trans: nullTranslator.load('nbdist'), commands, client: null });
  open.push(renderer);
  document.body.replaceChildren(renderer.node);
  await renderer.renderModel(modelOf(data));
  return renderer;
}

const open: BundleRenderer<RunBundle>[] = [];

afterEach(() => open.splice(0).forEach(one => one.dispose()));

const settled = (): Promise<void> => new Promise(resolve => setTimeout(resolve));

beforeEach(() => {
  drawn.length = inserted.length = 0;
  Screen.open.clear();
  vi.stubGlobal('IntersectionObserver', Screen);
});

describe('a saved run', () => {
  it('is its picture until it is seen, and then its curves', async () => {
    const { node } = await shown({ [RUN.mimeType]: DATA, 'image/png': 'AAAA', 'text/plain': 'all is well\nmore' });
    expect(drawn).toEqual([]);
    expect(node.querySelector('img')?.getAttribute('alt')).toBe('all is well');
    Screen.scroll();
    await settled();
    expect(drawn).toEqual([`draw ${HOSTILE}`, 'redraw']);
    expect(node.querySelector('img')).toBeNull();
    expect(node.querySelector('section')?.textContent).toBe(HOSTILE);
  });

  it('is drawn before it is printed', async () => {
    await shown({ [RUN.mimeType]: DATA });
    window.dispatchEvent(new Event('beforeprint'));
    await settled();
    expect(drawn[0]).toBe(`draw ${HOSTILE}`);
    expect(Screen.open.size).toBe(0);
  });

  it('tells what its HTML tells, as text', async () => {
    const { node } = await shown({ [RUN.mimeType]: DATA, 'text/html': HTML });
    expect(node.querySelectorAll('img, script, style, i, [onclick], [style]')).toHaveLength(0);
    expect(node.querySelector('pre')?.textContent).toBe('lost <i>it</i>');
    expect(node.querySelector('td')?.textContent).toBe('0.1');
    expect(node.querySelector<HTMLElement>('.nbd-details-table')?.tabIndex).toBe(0); // keys scroll what is too wide
    expect(node.querySelector('details')?.open).toBe(true);
    expect(node.textContent).toContain('printed');
    expect(node.textContent).not.toContain('headline');
    expect(node.textContent).not.toContain('alert');
    expect(node.textContent).toContain('2 curves were too large to save');
  });

  it('leaves out the lines of the text that the drawing has', async () => {
    const marks = [
      { step: 1257, kind: 'pause', text: 'paused for 4.1 s' },
      { step: 1300, kind: 'checkpoint', text: 'checkpoint at step 1300' }
    ];
    const data = { ...DATA, marks, checkpoint: '/runs/r1/model.safetensors', trained_on: '3 workers' };
    const html =
      '<p>headline</p><p><small>■ 1,257 paused for 4.1 s · ▼ 1,300 checkpoint at step 1300</small></p>' +
      '<p><small>trained on 3 workers</small></p>' +
      '<p><small>checkpoint: <code>/runs/r1/model.safetensors</code></small></p><p><small>another line</small></p>';
    const { node } = await shown({ [RUN.mimeType]: data, 'text/html': html });
    const lines = [...node.querySelectorAll('.nbd-details small')].map(line => line.textContent);
    expect(lines).toEqual(['another line']);
  });

  it('takes other data without being made anew', async () => {
    const renderer = await shown({ [RUN.mimeType]: DATA });
    Screen.scroll();
    await settled();
    await renderer.renderModel(modelOf({ [RUN.mimeType]: { ...DATA, title: 'again' } }));
    expect(drawn).toEqual([`draw ${HOSTILE}`, 'redraw', 'take again']);
  });

  it('is closed once, whether it was seen or not', async () => {
    (await shown({ [RUN.mimeType]: DATA })).dispose();
    expect([drawn, Screen.open.size]).toEqual([[], 0]);
    const renderer = await shown({ [RUN.mimeType]: DATA });
    Screen.scroll();
    await settled();
    renderer.dispose();
    renderer.dispose();
    document.body.setAttribute('data-jp-theme-name', 'another');
    await settled();
    expect(drawn).toEqual([`draw ${HOSTILE}`, 'redraw', 'close']);
  });

  it('is closed if it went while its drawing code came', async () => {
    const renderer = await shown({ [RUN.mimeType]: DATA });
    Screen.scroll();
    renderer.dispose();
    await settled();
    expect(drawn).toEqual([`draw ${HOSTILE}`, 'close']);
  });

  it('is drawn anew in another theme', async () => {
    await shown({ [RUN.mimeType]: DATA });
    Screen.scroll();
    await settled();
    document.body.setAttribute('data-jp-theme-light', 'false');
    await settled();
    expect(drawn).toEqual([`draw ${HOSTILE}`, 'redraw', 'redraw']);
  });

  it.each([
    [{ version: 9 }, 'newer nbdist (version 9'],
    ['rubbish', 'damaged']
  ])('says what is wrong with %j and shows what else there is', async (data, why) => {
    const bundle = { [RUN.mimeType]: data, 'image/png': 'AAAA', 'text/html': HTML, 'text/plain': 'all is well' };
    const { node } = await shown(bundle);
    expect(node.querySelector('[role=note]')?.textContent).toContain(why);
    expect(node.querySelectorAll('img')).toHaveLength(1);
    expect(node.textContent).toContain('headline');
    expect(node.textContent).toContain('printed');
    expect(drawn).toEqual([]);
  });

  it('has no picture that is none', async () => {
    const { node } = await shown({ [RUN.mimeType]: {}, 'image/png': '"><script>', 'text/plain': 'all is well' });
    expect(node.querySelector('img')).toBeNull();
    expect(node.querySelector('pre')?.textContent).toBe('all is well');
  });

  it('offers the code that attaches a notebook to it', async () => {
    const { node } = await shown({ [RUN.mimeType]: { ...DATA, run: "it's" } });
    expect(node.querySelector('code')?.textContent).toBe('nb.attach("it\'s")');
    node.querySelector('button')?.click();
    expect(inserted).toEqual([{ code: 'import nbdist as nb\nnb.attach("it\'s")' }]);
  });
});

it('nothing is ever set as HTML', () => {
  const sources = import.meta.glob('../../src/**/*.{ts,tsx}', { query: '?raw', import: 'default', eager: true });
  expect(Object.keys(sources).length).toBeGreaterThan(15);
  for (const [file, text] of Object.entries(sources as Record<string, string>)) {
    expect(text, file).not.toMatch(/innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|eval\(/);
  }
});

describe('the output of a live view that is gone', () => {
  const LIVE = { [RUN.mimeType]: { version: 1, live: 'r1' }, 'text/plain': 'Live view of digits (r1)' };
  const answers: (SavedOutput | Error)[] = [];

  async function followed(): Promise<{ renderer: BundleRenderer<RunBundle>; model: IRenderMime.IMimeModel; set: unknown[] }> {
    const set: unknown[] = [];
    const client = { runOutput: async () => answers.shift() ?? new Error('none left') } as unknown as Client;
    const asking = { ...kind, fetch: async (from: Client, id: string) => {
      const answer = await from.runOutput(id);
      if (answer instanceof Error) {
        throw answer;
      }
      return answer;
    } };
    const renderer = new BundleRenderer(asking, { trans: nullTranslator.load('nbdist'), commands, client });
    open.push(renderer);
    document.body.replaceChildren(renderer.node);
    const model = { ...modelOf(LIVE), setData: (one: unknown) => void set.push(one) } as unknown as IRenderMime.IMimeModel;
    await renderer.renderModel(model);
    return { renderer, model, set };
  }

  beforeEach(() => {
    vi.useFakeTimers();
    answers.length = 0;
  });
  afterEach(() => void vi.useRealTimers());

  it('is drawn from the server until it has ended, and then becomes the output itself', async () => {
    const data = { [RUN.mimeType]: { ...DATA, state: 'running' }, 'text/html': HTML };
    answers.push({ data, over: false }, { data: { ...data, [RUN.mimeType]: DATA }, over: true });
    const { renderer, set } = await followed();
    Screen.scroll();
    await vi.advanceTimersByTimeAsync(0);
    expect(renderer.node.textContent).toContain('It continues without a kernel');
    expect(set).toEqual([]);
    await vi.advanceTimersByTimeAsync(FOLLOW_EVERY);
    Screen.scroll(); // it is asked for again only where it is seen
    await vi.advanceTimersByTimeAsync(0);
    expect(set).toEqual([{ data: { ...data, [RUN.mimeType]: DATA } }]);
    expect(renderer.node.textContent).not.toContain('It continues');
    expect(drawn.filter(one => one.startsWith('take'))).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(10 * FOLLOW_EVERY);
    expect(set).toHaveLength(1);
  });

  it('is its text where the server does not have it', async () => {
    answers.push(new ApiError(404, 'there is no run r1'));
    const { renderer } = await followed();
    expect(renderer.node.textContent).toBe('Live view of digits (r1)');
    expect(renderer.node.querySelector('p')?.title).toBe('there is no run r1');
    await vi.advanceTimersByTimeAsync(10 * FOLLOW_EVERY);
    Screen.scroll();
    expect(answers).toEqual([]);
  });

  it('asks again after an error of the server', async () => {
    answers.push(new ApiError(0, 'no server'), { data: { [RUN.mimeType]: DATA }, over: true });
    const { set } = await followed();
    await vi.advanceTimersByTimeAsync(FOLLOW_EVERY);
    Screen.scroll();
    await vi.advanceTimersByTimeAsync(0);
    expect(set).toHaveLength(1);
  });
});
