// Builds dist/: the bundles, their types, and the native add-on of this platform if cargo has built it.
import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const dist = join(root, "dist");
rmSync(dist, { recursive: true, force: true });
mkdirSync(join(dist, "types"), { recursive: true });

const common = {
  absWorkingDir: root,
  entryPoints: { index: "src/node.ts" },
  outdir: "dist",
  bundle: true,
  platform: "node",
  target: "node18",
  sourcemap: true,
  // The build without a native part of its own; it is bundled, so that its registry of extensions is ours alone.
  alias: { msgpackr: join(root, "node_modules/msgpackr/index.js") },
};
await build({ ...common, format: "esm", outExtension: { ".js": ".mjs" } });
await build({
  ...common,
  format: "cjs",
  outExtension: { ".js": ".cjs" },
  define: { "import.meta.url": "moduleUrl" },
  banner: { js: 'const moduleUrl = require("node:url").pathToFileURL(__filename).href;' },
});

// Types: one set for each kind of module, as their resolution asks for.
const tsc = join(root, "node_modules/typescript/bin/tsc");
const emit = ["--noEmit", "false", "--declaration", "--emitDeclarationOnly", "--outDir", "dist/types"];
execFileSync(process.execPath, [tsc, "-p", "tsconfig.build.json", ...emit], { cwd: root, stdio: "inherit" });
for (const file of readdirSync(join(dist, "types"), { recursive: true })) {
  if (!file.endsWith(".d.ts")) continue;
  const text = readFileSync(join(dist, "types", file), "utf8");
  const path = join(dist, "types", file.replace(/\.d\.ts$/, ".d.cts"));
  writeFileSync(path, text.replaceAll(/((?:from |import\()"\.[^"]*)\.js"/g, '$1.cjs"'));
}

const addon = process.env.NOLAG_ADDON;
if (addon !== undefined) {
  if (!existsSync(addon)) throw new Error(`NOLAG_ADDON names ${addon}, which is not there`);
  const { target } = await import(join(root, "scripts/target.mjs"));
  copyFileSync(addon, join(dist, `nolag.${target()}.node`));
}
