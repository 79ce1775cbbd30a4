//! Where things are: the repository's root, cargo's target folder, the programs that cargo built.

use std::env::{self, consts::EXE_SUFFIX};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tokio::process::Command;

use crate::process;

/// The folder of the workspace's `Cargo.toml`.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// The folder that this program was built into, `target/debug` unless cargo is told otherwise: whatever cargo builds
/// next without `--release` lies beside it.
fn profile_dir() -> Result<PathBuf> {
    let own = env::current_exe().context("cannot tell where xtask itself lies")?;
    Ok(own.parent().context("xtask lies in no folder")?.to_path_buf())
}

/// Cargo's target folder.
pub(crate) fn target() -> Result<PathBuf> {
    Ok(profile_dir()?.parent().context("xtask was not built by cargo")?.to_path_buf())
}

/// A program of this workspace as the development profile builds it.
pub(crate) fn debug_binary(name: &str) -> Result<PathBuf> {
    Ok(profile_dir()?.join(format!("{name}{EXE_SUFFIX}")))
}

/// A program of this workspace as `--release` builds it.
pub(crate) fn release_binary(name: &str) -> Result<PathBuf> {
    Ok(target()?.join("release").join(format!("{name}{EXE_SUFFIX}")))
}

/// A command of the same cargo that runs us, in the root of the workspace.
pub(crate) fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    forget_package(&mut command);
    command
}

/// Takes from a command what cargo says about xtask to xtask: some build scripts look at it, and what depends on them would be
/// compiled anew whenever a chore follows a build by hand.
pub(crate) fn forget_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
}

/// Builds programs of this workspace with the development profile.
pub(crate) async fn build(packages: &[&str]) -> Result<()> {
    let packages = packages.iter().flat_map(|name| ["--package", name]);
    process::run(cargo(["build"].into_iter().chain(packages))).await
}
