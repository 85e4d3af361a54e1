import { nullTranslator } from '@jupyterlab/translation';
import { describe, expect, it } from 'vitest';
import { type CellFacts, type Step, wrap } from '../src/notebook/wrap';

const trans = nullTranslator.load('nbdist');
const decide = (source: string, other: Partial<CellFacts> = {}, flags = ''): Step =>
  wrap({ type: 'code', source, editable: true, language: 'python', ...other }, flags, trans);
const why = (step: Step): string => (step.do === 'refuse' ? step.why : `not refused: ${JSON.stringify(step)}`);

describe('wrap', () => {
  it('puts %%distribute above code', () => {
    expect(decide('model.fit(data)')).toEqual({ do: 'wrap', line: '%%distribute\n' });
  });

  it('takes the flags from the settings', () => {
    expect(decide('x = 1', {}, '  --sync --seed 7 ')).toEqual({ do: 'wrap', line: '%%distribute --sync --seed 7\n' });
  });

  it.each(['# a comment\nx = 1', '\n\nx = 1', '"""text"""', '%time f()', '!ls', '%matplotlib inline\nx = 1', 'a %% b'])(
    'wraps %j',
    source => expect(decide(source).do).toBe('wrap')
  );

  it.each(['%%distribute', '%%distribute --sync\nx = 1', '\n \n%%distribute\nx = 1', '%%distribute?'])(
    'runs %j as it is',
    source => expect(decide(source)).toEqual({ do: 'run' })
  );

  it('runs a read-only cell that needs no other line', () => {
    expect(decide('%%distribute\nx', { editable: false })).toEqual({ do: 'run' });
    expect(why(decide('x', { editable: false }))).toContain('read-only');
  });

  it.each(['%%sweep lr=[1,2]\nx', '%%bash\nls', '\n%%time\nx', '%%distributed\nx'])('refuses %j', source => {
    expect(why(decide(source))).toContain(`begins with ${source.trim().split(/\s/)[0]},`);
  });

  it('refuses a %%distribute that is not at the beginning', () => {
    expect(why(decide('# mine\n%%distribute\nx'))).toContain('in line 2');
  });

  it.each(['%load_ext nbdist', '%reload_ext nbdist', '%cluster start --workers 2', '%cluster', '%graph'])(
    'refuses a cell with %s',
    line => expect(why(decide(`x = 1\n${line}\ny`))).toContain(`“${line}”`)
  );

  it('does not mind names that begin alike', () => {
    expect(decide('%load_ext nbdistinct\n%clusters').do).toBe('wrap');
  });

  it.each(['', '  \n\t\n'])('refuses the empty cell %j', source => {
    expect(why(decide(source))).toContain('empty');
  });

  it.each(['markdown', 'raw'])('refuses a %s cell', type => {
    expect(why(decide('x', { type }))).toContain('code cell');
  });

  it.each(['R', 'julia'])('refuses a notebook in %s', language => {
    expect(why(decide('x', { language }))).toContain(language);
  });

  it.each(['', 'python', 'Python', 'ipython', 'python3'])('takes the language %j for Python, or unknown', language => {
    expect(decide('x', { language }).do).toBe('wrap');
  });
});
