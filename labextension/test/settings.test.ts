import { describe, expect, it } from 'vitest';
import { Signal } from '@lumino/signaling';
import { DEFAULTS, PLUGIN, Settings } from '../src/settings';
import schema from '../schema/plugin.json';

/** A registry that has one plugin's settings, or objects to them. */
class Registry {
  composite: object = { ...DEFAULTS };
  readonly changed = new Signal<Registry, void>(this);
  objections: object[] | null = null;

  load(plugin: string): Promise<never> {
    expect(plugin).toBe(PLUGIN);
    return this.objections ? Promise.reject(this.objections) : Promise.resolve(this as never);
  }

  set(values: object): void {
    this.composite = { ...this.composite, ...values };
    this.changed.emit();
  }
}

describe('Settings', () => {
  it('are the defaults where there is no registry', () => {
    expect(new Settings().values).toEqual(DEFAULTS);
  });

  it('follow the registry', async () => {
    const [registry, settings] = [new Registry(), new Settings()];
    registry.composite = { ...DEFAULTS, workers: 5 };
    await settings.follow(registry);
    expect(settings.values.workers).toBe(5);
    let changes = 0;
    settings.changed.connect(() => (changes += 1));
    registry.set({ flags: '--seed 7' });
    expect([changes, settings.values.flags, settings.values.workers]).toEqual([1, '--seed 7', 5]);
  });

  it('fall back to the defaults, and say why, where the user has set something unfit', async () => {
    const [registry, settings] = [new Registry(), new Settings()];
    registry.objections = [{ instancePath: '/workers', message: 'must be >= 1' }, { message: 'more' }];
    await settings.follow(registry);
    expect(settings.values).toEqual(DEFAULTS);
    expect(settings.error).toBe('workers must be >= 1; more');
  });
});

describe('the schema', () => {
  it('has the same settings and defaults', () => {
    const defaults = Object.entries(schema.properties).map(([name, { default: value }]) => [name, value]);
    expect(Object.fromEntries(defaults)).toEqual(DEFAULTS);
  });

  it('describes each one', () => {
    for (const [name, setting] of Object.entries(schema.properties)) {
      expect(setting.title, name).toBeTruthy();
      expect(setting.description, name).toMatch(/\.$/);
    }
  });

  it.each(['', '--sync', ' --strategy ps --seed 7'])('takes the flags %j', flags => {
    expect(flags).toMatch(new RegExp(schema.properties.flags.pattern));
  });

  it.each(['sync', '--sync\nimport os', 'x --sync'])('refuses the flags %j', flags => {
    expect(flags).not.toMatch(new RegExp(schema.properties.flags.pattern));
  });
});
