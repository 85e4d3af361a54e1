/// <reference types="vite/client" />
import ts from 'typescript';
import { describe, expect, it } from 'vitest';

const SOURCES = import.meta.glob<string>('../src/**/*.{ts,tsx}', { query: '?raw', import: 'default', eager: true });
const NAMES = new Set(['nbdist', 'ipyparallel', 'TensorBoard']); // the same in every language
/** Properties, attributes and functions whose text users see. */
const SHOWN = new Set([
  'label', 'caption', 'title', 'body', 'okLabel', 'cancelLabel', 'placeholder', 'alt', 'aria-label', 'ariaLabel',
  'aria-description', 'textContent', 'tooltip', 'none'
]);
const SHOWING = new Set(['info', 'warning', 'error', 'emit', 'RefusedError', 'showErrorMessage', 'createTextNode']);
const TRANSLATING = new Set(['__', '_n', '_p', '_np']);

/** What in a source would be shown in English to everybody, or cannot be collected for translators. */
function faults(name: string, source: string): string[] {
  const file = ts.createSourceFile(name, source, ts.ScriptTarget.ES2022, true);
  const found: string[] = [];
  const note = (node: ts.Node, why: string): void => {
    const { line } = file.getLineAndCharacterOfPosition(node.getStart(file));
    found.push(`${name}:${line + 1}: ${why}: ${node.getText(file).slice(0, 80)}`);
  };
  const visit = (node: ts.Node): void => {
    if (ts.isJsxText(node) && saysSomething(node.text)) {
      note(node, 'text of an element');
    } else if (ts.isJsxAttribute(node) && SHOWN.has(node.name.getText(file)) && node.initializer) {
      said(node.initializer).forEach(one => note(one, 'attribute'));
    } else if (ts.isPropertyAssignment(node) && SHOWN.has(plain(node.name, file))) {
      said(node.initializer).forEach(one => note(one, 'property'));
    } else if (ts.isBinaryExpression(node) && node.operatorToken.kind === ts.SyntaxKind.EqualsToken) {
      if (ts.isPropertyAccessExpression(node.left) && SHOWN.has(node.left.name.text)) {
        said(node.right).forEach(one => note(one, 'assigned'));
      }
    } else if (ts.isCallExpression(node) || ts.isNewExpression(node)) {
      call(node);
    }
    ts.forEachChild(node, visit);
  };
  const call = (node: ts.CallExpression | ts.NewExpression): void => {
    const { expression: callee, arguments: given = [] } = node;
    const called = ts.isPropertyAccessExpression(callee) ? callee.name.text : callee.getText(file);
    const [first, second] = given;
    if (TRANSLATING.has(called) && ts.isPropertyAccessExpression(callee)) {
      const texts = called === '_n' || called === '_np' ? given.slice(0, 2) : given.slice(0, 1);
      texts.filter(text => !ts.isStringLiteralLike(text)).forEach(text => note(text, 'not collectable'));
      const wanted = Math.max(0, ...[...texts.map(text => text.getText(file)).join().matchAll(/%(\d)/g)].map(one => Number(one[1])));
      const there = given.length - texts.length;
      if (!given.some(ts.isSpreadElement) && there < wanted) {
        note(node, `%${wanted} has no value`);
      }
    } else if (called === 'setAttribute' && first && ts.isStringLiteral(first) && SHOWN.has(first.text) && second) {
      said(second).forEach(one => note(one, 'attribute'));
    } else if (SHOWING.has(called) && first && !callee.getText(file).startsWith('console')) {
      said(first).forEach(one => note(one, 'message'));
    }
  };
  visit(file);
  return found;
}

/** The texts that an expression may be, without those that go through the translator. */
function said(node: ts.Node): ts.Node[] {
  if (ts.isStringLiteral(node) || ts.isNoSubstitutionTemplateLiteral(node)) {
    return saysSomething(node.text) ? [node] : [];
  }
  if (ts.isTemplateExpression(node)) {
    const text = [node.head, ...node.templateSpans.map(span => span.literal)].map(part => part.text).join(' ');
    return saysSomething(text) ? [node] : [];
  }
  if (ts.isConditionalExpression(node)) {
    return [...said(node.whenTrue), ...said(node.whenFalse)];
  }
  if (ts.isBinaryExpression(node)) {
    return [...said(node.left), ...said(node.right)];
  }
  if (ts.isArrowFunction(node) && !ts.isBlock(node.body)) {
    return said(node.body);
  }
  if ((ts.isParenthesizedExpression(node) || ts.isJsxExpression(node)) && node.expression) {
    return said(node.expression);
  }
  return [];
}

function saysSomething(text: string): boolean {
  return /\p{L}{2}/u.test(text) && !NAMES.has(text.trim());
}

function plain(name: ts.PropertyName, file: ts.SourceFile): string {
  return ts.isStringLiteral(name) ? name.text : name.getText(file);
}

describe('the strings that users see', () => {
  it.each(Object.keys(SOURCES))('go through the translator in %s', path => {
    expect(faults(path.replace('../src/', ''), SOURCES[path]!)).toEqual([]);
  });
});

describe('the check itself', () => {
  it.each([
    ["const a = { label: 'Stop it' }", 'property'],
    ["const a = { label: () => `Stop ${it}` }", 'property'],
    ["const a = { label: on ? trans.__('Start') : 'Stop' }", 'property'],
    ["button.textContent = 'Stop';", 'assigned'],
    ["node.setAttribute('aria-label', 'Stop');", 'attribute'],
    ['const a = <b title="Stop" />;', 'attribute'],
    ['const a = <b>Stop</b>;', 'text of an element'],
    ["Notification.error('It failed');", 'message'],
    ["throw new RefusedError(`No ${thing}`);", 'message'],
    ['trans.__(label);', 'not collectable'],
    ['trans.__(`Stop ${it}`);', 'not collectable'],
    ["trans.__('Stop %1 and %2', one);", '%2 has no value'],
    ["trans._n('%1 of %2', '%1 of %2', one);", '%2 has no value']
  ])('objects to %s', (source, why) => {
    expect(faults('a.tsx', source)).toEqual([expect.stringContaining(why)]);
  });

  it.each([
    "const a = { label: trans.__('Stop %1', it), icon: 'stop', title: it.title };",
    "const a = <b title={trans.__('Stop')}>{trans.__('Stop')} · 12 s</b>;",
    "trans._n('%1 worker of %2', '%1 workers of %2', count, all);",
    "node.setAttribute('class', 'nbd-Row'); button.className = 'nbd-Button';",
    "const a = { title: 'nbdist' };"
  ])('has nothing against %s', source => {
    expect(faults('a.tsx', source)).toEqual([]);
  });
});
