// The name of this platform, as the packages with its add-on have it.
import process from "node:process";

export function target() {
  const { arch, platform } = process;
  if (platform !== "linux") return platform === "win32" ? `win32-${arch}-msvc` : `${platform}-${arch}`;
  const isGnu = process.report?.getReport().header.glibcVersionRuntime !== undefined;
  return `linux-${arch}-${isGnu ? "gnu" : "musl"}`;
}
