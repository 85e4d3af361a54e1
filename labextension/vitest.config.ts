import { defineConfig } from 'vitest/config';
import { fileURLToPath } from 'node:url';

export default defineConfig({
  resolve: { alias: { '@widget': fileURLToPath(new URL('../widget/src', import.meta.url)) } },
  test: { environment: 'happy-dom', include: ['test/**/*.test.{ts,tsx}'] }
});
