//! `cargo xtask bench`: builds what is measured and what measures it, both as released, and runs them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Subcommand;
use tokio::process::Command;

use crate::python::Environment;
use crate::{node, process, python, workspace};

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// The broker: fan-out, throughput, idle memory, and what other topics cost; about two minutes
    Broker {
        #[command(flatten)]
        run: Run,
    },
    /// The clients: the published Python client beside ours, the Rust client beside a bare loop; about five minutes
    Clients {
        /// What to measure; everything if nothing is named
        #[arg(value_parser = ["stand-in", "rust", "receive", "emit", "echo", "import", "memory", "broker"])]
        works: Vec<String>,
        /// Run the Python clients on uvloop
        #[arg(long)]
        uvloop: bool,
        /// A Python that has the published client, instead of one that is made for this
        #[arg(long, value_name = "PYTHON")]
        published: Option<PathBuf>,
        /// A Python that has our client, instead of one that is made for this
        #[arg(long, value_name = "PYTHON")]
        ours: Option<PathBuf>,
        #[command(flatten)]
        run: Run,
    },
    /// Our client in Node beside plain JavaScript, over ws and @msgpack/msgpack; about two minutes
    Node {
        #[command(flatten)]
        run: Run,
    },
}

#[derive(clap::Args)]
pub(crate) struct Run {
    /// Fewer and shorter rounds, fewer connections; less than half of the time
    #[arg(long)]
    quick: bool,
    /// Where to write the figures [default: target/bench/<what>.json]; the picture lies beside it as .svg
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Builds and measures.
pub(crate) async fn run(bench: Bench) -> Result<()> {
    process::run(workspace::cargo(["build", "--release", "-p", "nolag-broker", "-p", "nolag-bench"])).await?;
    let mut command = Command::new(workspace::release_binary("nolag-bench")?);
    let (what, run) = match bench {
        Bench::Broker { run } => {
            command.arg("broker");
            ("broker", run)
        }
        Bench::Clients { works, uvloop, published, ours, run } => {
            let (published, ours) = pythons(uvloop, published, ours).await?;
            command.arg("clients").args(works).arg("--published").arg(published).arg("--ours").arg(ours);
            command.arg("--worker").arg(workspace::root().join("bench/python/worker.py"));
            if uvloop {
                command.arg("--uvloop");
            }
            ("clients", run)
        }
        Bench::Node { run } => {
            node::find().await?;
            node::build(true).await?;
            command.arg("node").arg("--worker").arg(workspace::root().join("bench/node/worker.mjs"));
            ("node", run)
        }
    };
    if what != "node" {
        command.arg("--broker").arg(workspace::release_binary("nolag-broker")?);
    }
    let json = match run.json {
        Some(json) => json,
        None => {
            let folder = workspace::target()?.join("bench");
            fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            folder.join(format!("{what}.json"))
        }
    };
    command.arg("--json").arg(json);
    if run.quick {
        command.arg("--quick");
    }
    process::run(command).await
}

/// The interpreters that have the two Python clients.
async fn pythons(
    uvloop: bool,
    published: Option<PathBuf>,
    ours: Option<PathBuf>,
) -> Result<(PathBuf, PathBuf)> {
    const UVLOOP: &str = "bench/python/requirements-uvloop.txt";
    const PUBLISHED: &str = "bench/python/requirements-published.txt";
    let published = match published {
        Some(python) => python,
        None => {
            let (name, with) = if uvloop {
                ("bench-published-uvloop", &[PUBLISHED, UVLOOP][..])
            } else {
                ("bench-published", &[PUBLISHED][..])
            };
            Environment::prepare(name, with).await?.program("python")
        }
    };
    let ours = match ours {
        Some(python) => python,
        None => {
            let wheel = python::wheel(true).await?;
            let (name, with) =
                if uvloop { ("bench-ours-uvloop", &[UVLOOP][..]) } else { ("bench-ours", &[][..]) };
            let environment = Environment::prepare(name, with).await?;
            environment.add(&wheel, &[]).await?;
            environment.program("python")
        }
    };
    Ok((published, ours))
}
