import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["tests/**/*.test.ts"],
    setupFiles: ["tests/kit/setup.ts"],
    testTimeout: 30_000,
    hookTimeout: 30_000,
    // Two cores are what the smallest machines have.
    maxWorkers: 2,
  },
});
