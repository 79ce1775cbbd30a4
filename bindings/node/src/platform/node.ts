/** Node: the native add-on. */

import { createRequire } from "node:module";
import { arch, env, platform, report, version } from "node:process";

import { ConfigError } from "../errors.js";
import type { KeepAlive, Native, Platform } from "../native.js";

/** The longest that a timer can be set to. */
const FOREVER = 2 ** 31 - 1;

const require = createRequire(import.meta.url);
let native: Native | undefined;

/** The name of this platform, as the packages with its add-on have it. */
function target(): string {
  if (platform !== "linux") return platform === "win32" ? `win32-${arch}-msvc` : `${platform}-${arch}`;
  const header = (report?.getReport() as { header?: { glibcVersionRuntime?: string } } | undefined)?.header;
  return `linux-${arch}-${header?.glibcVersionRuntime === undefined ? "musl" : "gnu"}`;
}

function load(): Native {
  if (native !== undefined) return native;
  const name = target();
  // One that was built here comes first.
  const places = [`./nolag.${name}.node`, `@nolag/core-rs-${name}`];
  const faults: string[] = [];
  for (const place of places) {
    try {
      native = require(place) as Native;
      return native;
    } catch (fault) {
      faults.push(String(fault instanceof Error ? fault.message.split("\n")[0] : fault));
    }
  }
  throw new ConfigError(
    `@nolag/core-rs has no native add-on that runs here (${name}, Node ${version}): ${faults.join("; ")}. ` +
      `If optional dependencies were left out, install them: npm install @nolag/core-rs-${name}`,
    "unsupported_runtime",
  );
}

function keepAlive(): KeepAlive {
  const timer = setInterval(() => {}, FOREVER);
  return {
    ref: () => void timer.ref(),
    unref: () => void timer.unref(),
    end: () => clearInterval(timer),
  };
}

export const node: Platform = {
  load,
  url: () => env.NOLAG_URL,
  defer: (work) => void setImmediate(work),
  keepAlive,
};
