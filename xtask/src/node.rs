//! Our npm package, and programs of Node's.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use crate::test::Outcome;
use crate::{process, workspace};

/// The oldest Node that the tools of the tests run on; the package itself takes 18.
const OLDEST: u32 = 20;
const FOLDER: &str = "bindings/node";
const EXAMPLES: &str = "examples/node";

/// Builds the package, checks it, and runs its tests against the broker.
pub(crate) async fn run() -> Result<Outcome> {
    if let Err(reason) = find().await {
        return Ok(Outcome::Skipped(format!("{reason:#}")));
    }
    workspace::build(&["nolag-broker"]).await?;
    build(false).await?;
    for script in ["lint", "test"] {
        let mut npm = npm(FOLDER, ["run", script]);
        npm.env("NOLAG_BROKER", workspace::debug_binary("nolag-broker")?);
        process::run(npm).await.with_context(|| format!("npm run {script}"))?;
    }
    Ok(Outcome::Passed)
}

/// Builds the package with its add-on, as released or with the development profile, and has the examples find it.
pub(crate) async fn build(release: bool) -> Result<()> {
    let profile = if release { "release" } else { "dev" };
    process::run(workspace::cargo(["build", "-p", "nolag-node", "--profile", profile])).await?;
    if is_stale()? {
        process::run(npm(FOLDER, ["ci", "--ignore-scripts", "--no-audit", "--no-fund"])).await?;
    }
    let mut script = npm(FOLDER, ["run", "build"]);
    script.env("NOLAG_ADDON", addon(if release { "release" } else { "debug" })?);
    process::run(script).await?;
    process::run(npm(
        EXAMPLES,
        ["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"],
    ))
    .await
}

/// One of the examples.
pub(crate) fn example(name: &str) -> Command {
    let mut node = Command::new("node");
    node.arg(Path::new(EXAMPLES).join(name)).current_dir(workspace::root());
    node
}

/// Fails, with what to do, unless there are Node and npm.
pub(crate) async fn find() -> Result<()> {
    let mut node = Command::new("node");
    node.arg("--version");
    let version = process::output(node).await.context("Node is not installed (https://nodejs.org)")?;
    let major = version.trim().trim_start_matches('v').split('.').next().and_then(|major| major.parse().ok());
    if major.is_none_or(|major: u32| major < OLDEST) {
        bail!("Node {} is too old for the tools of the tests: they need {OLDEST}", version.trim());
    }
    process::output(npm(FOLDER, ["--version"])).await.context("npm is not installed")?;
    Ok(())
}

/// Whether the installed tools are not those of the lock file.
fn is_stale() -> Result<bool> {
    let folder = workspace::root().join(FOLDER);
    let written = |name: &str| fs::metadata(folder.join(name)).and_then(|file| file.modified());
    // npm writes it when it has installed everything.
    let Ok(installed) = written("node_modules/.package-lock.json") else { return Ok(true) };
    Ok(installed < written("package-lock.json").context("there is no package-lock.json")?)
}

/// The add-on as cargo leaves it.
fn addon(folder: &str) -> Result<PathBuf> {
    use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
    Ok(workspace::target()?.join(folder).join(format!("{DLL_PREFIX}nolag_node{DLL_SUFFIX}")))
}

fn npm<S: AsRef<OsStr>>(folder: &str, args: impl IntoIterator<Item = S>) -> Command {
    let mut npm = Command::new(if cfg!(windows) { "npm.cmd" } else { "npm" });
    npm.args(args).current_dir(workspace::root().join(folder));
    npm
}
