import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["*.test.mjs"],
    testTimeout: 30000,
    reporters: ["json"],
    outputFile: process.env.HEADRACE_CONFORMANCE_REPORT,
    cache: false,
  },
});
