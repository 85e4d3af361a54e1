import type { CommandRegistry } from '@lumino/commands';

/** What a command can be called with, for those who look it up: a type and a sentence for each argument. */
export function described(
  properties: Record<string, readonly [type: 'string' | 'boolean' | 'integer', sentence: string]> = {}
): Partial<CommandRegistry.Description> {
  const all = { ...properties, quiet: ['boolean', 'Leave it to the caller to show what goes wrong.'] as const };
  const each = Object.entries(all).map(([name, [type, description]]) => [name, { type, description }]);
  return { args: { type: 'object', properties: Object.fromEntries(each) } };
}
