import { vi } from 'vitest';

// One environment serves all files of a process: a file that mocks a module must not get the one that was loaded before.
vi.resetModules();
