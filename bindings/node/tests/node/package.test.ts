/** The package as it is published, installed into empty projects. */

import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { broker } from "../kit/under-test.js";

const ROOT = resolve(import.meta.dirname, "../..");
const BIN = join(ROOT, "node_modules/.bin");
let folder = "";
let packed = "";

function execute(command: string, args: string[], env: Record<string, string> = {}): string {
  return execFileSync(command, args, { cwd: folder, env: { ...process.env, ...env }, encoding: "utf8" });
}

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "nolag-package-"));
  execFileSync(process.execPath, [join(ROOT, "scripts/pack.mjs"), join(folder, "packed")], { stdio: "inherit" });
  packed = join(folder, "packed");
  writeFileSync(join(folder, "package.json"), '{ "private": true }');
  const files = readdirSync(packed).map((file) => join("packed", file));
  execute("npm", ["install", "--no-audit", "--no-fund", "--ignore-scripts", ...files.map((file) => `./${file}`)]);
}, 120_000);

afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe("installed", () => {
  test("API-082: with import, require and the default export", async () => {
    const { url } = await broker();
    const body = `
      for (const make of makers) {
        const client = make("dev-token-alice", { url: process.env.NOLAG_URL });
        client.connect().then(() => client.publish("demo/general/messages", 1)).then((receipt) => {
          console.log(receipt.outcome); client.disconnect();
        });
      }`;
    writeFileSync(
      join(folder, "esm.mjs"),
      `import NoLag, { NoLag as named, NoLagError, VERSION } from "@nolag/core-rs";\nconst makers = [NoLag, named];${body}`,
    );
    writeFileSync(
      join(folder, "cjs.cjs"),
      `const { NoLag, default: byDefault } = require("@nolag/core-rs");\nconst makers = [NoLag, byDefault];${body}`,
    );
    for (const file of ["esm.mjs", "cjs.cjs"]) {
      expect(execute(process.execPath, [file], { NOLAG_URL: url })).toBe("accepted\naccepted\n");
    }
  });

  test("TypeScript in its strictest, from modules of both kinds", () => {
    const program = `
      import { NoLag, type Message, type NoLagClient, type Receipt, AuthError } from "@nolag/core-rs";
      import byDefault from "@nolag/core-rs";
      export async function main(): Promise<void> {
        const client: NoLagClient = NoLag(async ({ reason }) => ({ token: reason }), { url: "ws://localhost", qos: 1 });
        const again: NoLag = new NoLag("t");
        client.on("error", (error) => console.log(error.code, error instanceof AuthError && error.hint));
        client.on("presence:join", (actor) => actor.actorTokenId.toUpperCase());
        client.on("demo/general/x", (data: { text: string }, meta) => console.log(data.text, meta.from));
        const receipt: Receipt = await client.publish("a/b/c", { n: 1 }, { qos: 2 });
        console.log(receipt.outcome, again.status, byDefault("t").actorId);
        for await (const message of client.messages<{ text: string }>("a/b/c")) {
          const typed: Message<{ text: string }> = message;
          console.log(typed.data.text);
          // @ts-expect-error it has no such field
          console.log(typed.data.nothing);
        }
        // @ts-expect-error a misspelled option
        NoLag("t", { urll: "x" });
        await using closed = NoLag("t");
        void closed;
      }`;
    writeFileSync(join(folder, "esm.mts"), program);
    writeFileSync(join(folder, "cjs.cts"), program);
    const flags = [
      "--noEmit",
      "--strict",
      "--exactOptionalPropertyTypes",
      "--target",
      "es2022",
      "--module",
      "nodenext",
    ];
    const lib = [
      "--lib",
      "es2023,esnext.disposable,dom",
      "--types",
      "node",
      "--typeRoots",
      join(ROOT, "node_modules/@types"),
    ];
    execute(join(BIN, "tsc"), [...flags, ...lib, "esm.mts", "cjs.cts"]);
  });

  test("publint and @arethetypeswrong/cli find nothing", () => {
    const own = readdirSync(packed).find((file) => /^nolag-core-rs-\d/.test(file)) as string;
    execute(join(BIN, "publint"), ["run", join(packed, own), "--strict"]);
    execute(join(BIN, "attw"), [join(packed, own), "--no-emoji"]);
  });

  test("it says what to do where the add-on is missing", () => {
    const name = readdirSync(join(folder, "node_modules/@nolag")).find((entry) => entry !== "core-rs") as string;
    rmSync(join(folder, "node_modules/@nolag", name), { recursive: true });
    writeFileSync(
      join(folder, "missing.mjs"),
      `import { NoLag } from "@nolag/core-rs";
       NoLag("t", { url: "ws://localhost" }).connect().catch((error) => console.log(error.name, error.code, error.message));`,
    );
    const told = execute(process.execPath, ["missing.mjs"]);
    expect(told).toMatch(/^ConfigError unsupported_runtime .*npm install @nolag\/core-rs-/);
  });

  test("the package holds what it needs and no more", () => {
    const main = join(folder, "node_modules/@nolag/core-rs");
    const manifest = JSON.parse(readFileSync(join(main, "package.json"), "utf8"));
    expect(manifest.dependencies ?? {}).toEqual({});
    expect(readdirSync(main).sort()).toEqual(["README.md", "dist", "package.json"]);
    expect(statSync(join(main, "dist/index.mjs")).size).toBeLessThan(250_000);
  });
});
