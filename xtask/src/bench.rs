//! `cargo xtask bench`: builds what is measured and what measures it, both as released, and runs them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Subcommand;
use tokio::process::Command;

use crate::{process, workspace};

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Fan-out, throughput, idle memory, and what other topics cost; about two minutes
    Broker {
        /// Fewer and shorter rounds, fewer connections; about half a minute
        #[arg(long)]
        quick: bool,
        /// Where to write the figures [default: target/bench/broker.json]; the picture lies beside it as .svg
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
}

/// Builds and measures.
pub(crate) async fn run(bench: Bench) -> Result<()> {
    let Bench::Broker { quick, json } = bench;
    process::run(workspace::cargo(["build", "--release", "-p", "nolag-broker", "-p", "nolag-bench"])).await?;
    let folder = workspace::target()?.join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut command = Command::new(workspace::release_binary("nolag-bench")?);
    command.arg("broker").arg("--broker").arg(workspace::release_binary("nolag-broker")?);
    command.arg("--json").arg(json.unwrap_or_else(|| folder.join("broker.json")));
    if quick {
        command.arg("--quick");
    }
    process::run(command).await
}
