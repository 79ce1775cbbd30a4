// Packs what is published: node scripts/pack.mjs <folder> packs the package itself, and this platform's, into the folder.
// dist/ must have been built, with the add-on in it.
import { execFileSync } from "node:child_process";
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { target } from "./target.mjs";
import { TARGETS } from "./targets.mjs";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const out = resolve(process.argv[2] ?? "packed");
mkdirSync(out, { recursive: true });
const staged = mkdtempSync(join(tmpdir(), "nolag-pack-"));
const own = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));

function pack(folder, manifest) {
  writeFileSync(join(folder, "package.json"), `${JSON.stringify(manifest, null, 2)}\n`);
  execFileSync("npm", ["pack", "--silent", "--pack-destination", out], {
    cwd: folder,
    stdio: "inherit",
    shell: process.platform === "win32",
  });
}

try {
  const main = join(staged, "main");
  cpSync(join(root, "dist"), join(main, "dist"), { recursive: true, filter: (path) => !path.endsWith(".node") });
  copyFileSync(join(root, "README.md"), join(main, "README.md"));
  const { devDependencies: _, scripts: __, ...published } = own;
  const optionalDependencies = Object.fromEntries(TARGETS.map(({ name }) => [`${own.name}-${name}`, own.version]));
  pack(main, { ...published, optionalDependencies });

  const here = TARGETS.find(({ name }) => name === target());
  if (here === undefined) throw new Error(`there is no package for ${target()}`);
  const platform = join(staged, "platform");
  const file = `nolag.${here.name}.node`;
  mkdirSync(platform);
  copyFileSync(join(root, "dist", file), join(platform, file));
  const { version, license, repository, engines } = own;
  pack(platform, {
    name: `${own.name}-${here.name}`,
    version,
    description: `The native add-on of ${own.name} for ${here.name}.`,
    license,
    repository,
    engines,
    main: file,
    files: [file],
    os: [here.os],
    cpu: [here.cpu],
    ...(here.libc && { libc: [here.libc] }),
  });
} finally {
  rmSync(staged, { recursive: true, force: true });
}
