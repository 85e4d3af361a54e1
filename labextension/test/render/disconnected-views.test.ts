/** Text in the place of a live view after its kernel has ended. */

import { expect, test } from 'vitest';
import { showSavedText } from '../../src/render/disconnected-views';

const WIDGET = 'application/vnd.jupyter.widget-view+json';
const WORDS = "Live view of digits (r-7); to reconnect, run nb.attach('r-7')";

/** An output as JupyterLab has it. */
function output(shown: string, data: Record<string, unknown>) {
  const node = document.createElement('div');
  const drawn = node.appendChild(document.createElement('div'));
  drawn.dataset['mimeType'] = WIDGET;
  drawn.textContent = shown;
  return { node, drawn, area: { model: { length: 1, get: () => ({ data }) }, widgets: [{ node }] } };
}

test.each([
  ['Loading widget...', WORDS, false, WORDS],
  ['Loading widget...', [WORDS], false, WORDS],
  ['Loading widget...', WORDS, true, 'Loading widget...'], // the kernel may still send it
  ['Error displaying widget: model not found', WORDS, true, WORDS],
  ['Loading widget...', 'IntSlider(value=0)', false, 'Loading widget...'], // of another package
  ['running 120 / 500', WORDS, false, 'running 120 / 500'] // it is there
])('%s, %s, connected %s', (shown, words, connected, expected) => {
  const { drawn, area } = output(shown, { [WIDGET]: {}, 'text/plain': words });
  showSavedText(area, connected);
  expect(drawn.textContent).toBe(expected);
});
