/** Programs that a test runs in processes of their own, as users would. */

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { onTestFinished } from "vitest";

export const PACKAGE = resolve(import.meta.dirname, "../../dist/index.mjs");

export interface Ended {
  code: number | null;
  signal: string | null;
  output: string;
}

/** Runs a file until it ends by itself; one that does not end in time is killed, and its signal tells. */
export function run(file: string, url: string, flags: string[] = [], patienceMs = 20_000): Promise<Ended> {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [...flags, file], {
      env: { ...process.env, NOLAG_URL: url },
      timeout: patienceMs,
      killSignal: "SIGKILL",
    });
    let output = "";
    child.stdout.on("data", (text) => (output += text));
    child.stderr.on("data", (text) => (output += text));
    child.on("close", (code, signal) => resolve({ code, signal, output }));
  });
}

/** Writes a module that imports the package, and runs it. */
export function runText(text: string, url: string, flags?: string[], patienceMs?: number): Promise<Ended> {
  const folder = mkdtempSync(join(tmpdir(), "nolag-program-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, "program.mjs");
  writeFileSync(file, `import { NoLag } from ${JSON.stringify(PACKAGE)};\n${text}`);
  return run(file, url, flags, patienceMs);
}
