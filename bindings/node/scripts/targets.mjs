// The platforms that have a package with the native add-on, as Node names them.
export const TARGETS = [
  { name: "linux-x64-gnu", os: "linux", cpu: "x64", libc: "glibc" },
  { name: "linux-arm64-gnu", os: "linux", cpu: "arm64", libc: "glibc" },
  { name: "linux-x64-musl", os: "linux", cpu: "x64", libc: "musl" },
  { name: "linux-arm64-musl", os: "linux", cpu: "arm64", libc: "musl" },
  { name: "darwin-x64", os: "darwin", cpu: "x64" },
  { name: "darwin-arm64", os: "darwin", cpu: "arm64" },
  { name: "win32-x64-msvc", os: "win32", cpu: "x64" },
  { name: "win32-arm64-msvc", os: "win32", cpu: "arm64" },
];
