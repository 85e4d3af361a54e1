import { afterEach, describe, expect, it, vi } from 'vitest';
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { nullTranslator } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import type { Client } from '../../src/api/client';
import type { DisplayFile } from '../../src/api/items';
import { Displays } from '../../src/pages/displays';

const HOSTILE = '<img src=x onerror=alert(1)>';
const place = document.createElement('div');
document.body.append(place);

/** JupyterLab's renderers, which write what they were given. */
class Registry {
  trusted: boolean[] = [];
  disposed = 0;

  preferredMimeType(data: Record<string, string>, safe: string): string | undefined {
    expect(safe).toBe('ensure');
    return ['text/html', 'image/png', 'text/plain'].find(type => type in data);
  }

  createModel(options: { data: Record<string, string>; trusted: boolean }): unknown {
    this.trusted.push(options.trusted);
    return options;
  }

  createRenderer(type: string): Widget {
    const widget = new Widget();
    widget.disposed.connect(() => void this.disposed++);
    const renderModel = async (model: { data: Record<string, string> }): Promise<void> => {
      widget.node.textContent = `${type}: ${model.data[type]}`;
    };
    return Object.assign(widget, { renderModel });
  }
}

const file = (path: string, modified = 1): DisplayFile => ({ task: '/job:worker/task:1', path, bytes: 1, modified });

function made(files: Record<string, unknown>, registry: Registry | null = new Registry()) {
  const asked: string[] = [];
  const client = {
    runFile: async (_: string, path: string) => {
      asked.push(path);
      if (files[path] instanceof Error) {
        throw files[path];
      }
      return files[path];
    }
  };
  const trans = nullTranslator.load('nbdist');
  const displays = new Displays('r1', client as unknown as Client, registry as unknown as IRenderMimeRegistry | null, trans);
  const show = async (...shown: DisplayFile[]): Promise<string> => {
    place.replaceChildren(...displays.elements(shown));
    await vi.waitFor(() => expect(place.querySelectorAll('.nbd-Page-display:empty')).toHaveLength(0));
    return place.textContent ?? '';
  };
  return { displays, asked, show, registry };
}

describe('displayed objects', () => {
  afterEach(() => place.replaceChildren());

  it('are drawn by the application, untrusted, under their task', async () => {
    const { show, registry } = made({ a: { data: { 'text/html': HOSTILE, 'text/plain': 'x' } } });
    expect(await show(file('a'))).toBe(`worker 1text/html: ${HOSTILE}`);
    expect(registry?.trusted).toEqual([false]);
    expect(place.querySelectorAll('img')).toHaveLength(0);
  });

  it('are fetched again only if they have changed', async () => {
    const { show, asked, registry, displays } = made({ a: { data: { 'text/html': 'A' } }, b: { data: { 'text/html': 'B' } } });
    await show(file('a'), file('b'));
    await show(file('a'), file('b'));
    expect(asked).toEqual(['a', 'b']);
    await show(file('a', 2));
    expect(asked).toEqual(['a', 'b', 'a']);
    expect(registry?.disposed).toBe(2);
    displays.dispose();
    expect(registry?.disposed).toBe(3);
  });

  it('that are SVG are pictures, in which no script runs', async () => {
    const { show } = made({ a: { data: { 'image/svg+xml': '<svg onload="alert(1)"/>', 'text/plain': 'a graph' } } });
    await show(file('a'));
    const [image] = place.querySelectorAll('img');
    expect([image?.alt, image?.getAttribute('src')]).toEqual([
      'a graph',
      `data:image/svg+xml;charset=utf-8,${encodeURIComponent('<svg onload="alert(1)"/>')}`
    ]);
    expect(place.querySelectorAll('svg')).toHaveLength(0);
  });

  it('that cannot be read say so', async () => {
    const { show } = made({ a: new Error('no such file'), b: [3], c: { data: { 'text/plain': HOSTILE } } }, null);
    const text = await new Promise<string>(resolve => {
      void show(file('a'), file('c')).then(resolve);
    });
    expect(text).toBe(`worker 1no such fileworker 1${HOSTILE}`);
    place.replaceChildren();
  });

  it('are the newest ones', async () => {
    const { show } = made({}, null);
    const many = Array.from({ length: 43 }, (_, n) => file(String(n)));
    expect((await show(...many)).startsWith('3 earlier objects are below Files')).toBe(true);
    expect(place.querySelectorAll('.nbd-Page-display')).toHaveLength(40);
  });
});
