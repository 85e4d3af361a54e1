import { defineConfig } from 'vitest/config';
import { fileURLToPath } from 'node:url';

export default defineConfig({
  resolve: { alias: { '@widget': fileURLToPath(new URL('../widget/src', import.meta.url)) } },
  // What a test imports first is compiled then: on a busy machine that takes longer than vitest's five seconds.
  test: {
    environment: 'happy-dom',
    isolate: false,
    setupFiles: ['test/setup.ts'],
    include: ['test/**/*.test.{ts,tsx}'],
    testTimeout: 60_000,
    hookTimeout: 60_000
  }
});
