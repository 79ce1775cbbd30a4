//! `cargo xtask test`: every test there is, in parts. All parts run, and one that fails fails the whole at the end.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use tokio::process::Command;
use tokio::time::timeout;

use crate::python::{self, Environment};
use crate::{coverage, docs, node, process, wasm, workspace};

/// How long a part may take, building included.
const PATIENCE: Duration = Duration::from_mins(20);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to run, in the order given; everything if nothing is named
    parts: Vec<Part>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Part {
    /// rustfmt
    Format,
    /// clippy, warnings being errors
    Lint,
    /// The licences and sources of dependencies
    Deny,
    /// Unit and integration tests of every crate
    Rust,
    /// Documents follow the code, every statement has its test, and rustdoc has nothing to complain about
    Docs,
    /// The protocol builds for browsers; its size
    Wasm,
    /// The conformance suite against the broker, in both profiles
    Conformance,
    /// Our Python client, and the published one against the broker
    Python,
    /// Our JavaScript client in Node
    Node,
}

/// What became of a part that did not fail.
pub(crate) enum Outcome {
    Passed,
    /// It cannot run here, for this reason.
    Skipped(String),
}

/// Runs the parts, prints a summary, and fails if any of them did.
pub(crate) async fn run(args: Args) -> Result<()> {
    let parts = if args.parts.is_empty() { Part::value_variants().to_vec() } else { args.parts };
    let mut results = Vec::new();
    for part in parts {
        println!("\n=== {} ===", part.name());
        let start = Instant::now();
        let outcome = timeout(PATIENCE, part.run())
            .await
            .unwrap_or_else(|_| Err(anyhow!("not done after {} minutes", PATIENCE.as_secs() / 60)));
        match &outcome {
            Ok(Outcome::Passed) => {}
            Ok(Outcome::Skipped(reason)) => println!("skipped: {reason}"),
            Err(error) => println!("failed: {error:#}"),
        }
        results.push((part, start.elapsed(), outcome));
    }
    summary(&results)
}

fn summary(results: &[(Part, Duration, Result<Outcome>)]) -> Result<()> {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    println!("\n=== summary ===");
    for (part, time, outcome) in results {
        let outcome = match outcome {
            Ok(Outcome::Passed) => {
                passed += 1;
                "passed".to_owned()
            }
            Ok(Outcome::Skipped(reason)) => {
                skipped += 1;
                format!("skipped: {reason}")
            }
            Err(error) => {
                failed += 1;
                format!("failed: {error:#}")
            }
        };
        println!("{:<12} {:>7.1} s  {outcome}", part.name(), time.as_secs_f64());
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed > 0 {
        bail!("{failed} of {} parts failed", results.len());
    }
    Ok(())
}

impl Part {
    /// The word that selects it on the command line.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    async fn run(self) -> Result<Outcome> {
        match self {
            Part::Format => process::run(workspace::cargo(["fmt", "--all", "--check"])).await?,
            Part::Lint => {
                let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
                process::run(workspace::cargo(clippy)).await?;
            }
            Part::Deny => return deny().await,
            Part::Rust => process::run(workspace::cargo(["test", "--workspace"])).await?,
            Part::Docs => {
                docs::check()?;
                coverage::check()?;
                docs::compare_settings().await?;
                let mut rustdoc = workspace::cargo([
                    "doc",
                    "--no-deps",
                    "-p",
                    "nolag-protocol",
                    "-p",
                    "nolag-core",
                    "-p",
                    "nolag-broker",
                ]);
                rustdoc.env("RUSTDOCFLAGS", "-D warnings");
                process::run(rustdoc).await?;
            }
            Part::Wasm => return wasm::run().await,
            Part::Conformance => conformance().await?,
            Part::Python => python().await?,
            Part::Node => return node::run().await,
        }
        Ok(Outcome::Passed)
    }
}

async fn deny() -> Result<Outcome> {
    if process::output(workspace::cargo(["deny", "--version"])).await.is_err() {
        return Ok(Outcome::Skipped(
            "cargo-deny is not installed (cargo install --locked cargo-deny)".to_owned(),
        ));
    }
    // Advisories are left out: they change without a change of ours, and need the network.
    let check = ["deny", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
    process::run(workspace::cargo(check)).await?;
    Ok(Outcome::Passed)
}

async fn conformance() -> Result<()> {
    workspace::build(&["nolag-broker", "nolag-conformance"]).await?;
    let broker = workspace::debug_binary("nolag-broker")?;
    for profile in ["extended", "kraken"] {
        println!("profile {profile}");
        let mut suite = Command::new(workspace::debug_binary("nolag-conformance")?);
        suite.arg("--broker").arg(&broker).args(["--profile", profile]).current_dir(workspace::root());
        process::run(suite).await?;
    }
    Ok(())
}

async fn python() -> Result<()> {
    workspace::build(&["nolag-broker"]).await?;
    let wheel = python::wheel(false).await?;
    let tools = "bindings/python/tests/requirements.txt";

    println!("our client");
    let ours = Environment::prepare("test", &[tools]).await?;
    ours.add(&wheel, &["bindings/python/tests/requirements-published.txt"]).await?;
    step(ours.command("ruff"), &["check"]).await?;
    step(ours.command("ruff"), &["format", "--check"]).await?;
    // The package's own Python, and then what others make of the package as it is installed.
    let mut own = ours.command("mypy");
    own.env("MYPYPATH", "bindings/python/python");
    step(own, &["-p", "nolag"]).await?;
    step(ours.command("mypy"), &["bindings/python/tests", "examples", "bench/python"]).await?;
    step(ours.command("pyright"), &[]).await?;
    // Elsewhere, because in the repository it would find the sources.
    let mut completeness = ours.command("pyright");
    completeness.current_dir(ours.folder());
    step(completeness, &["--verifytypes", "nolag", "--ignoreexternal"]).await?;
    let allowed = "bindings/python/tests/stubtest-allowlist.txt";
    step(ours.command("stubtest"), &["nolag", "--ignore-disjoint-bases", "--allowlist", allowed]).await?;
    pytest(&ours, "bindings/python/tests").await?;

    println!("the published client");
    let published =
        Environment::prepare("test-published", &[tools, "conformance/python/requirements.txt"]).await?;
    step(published.command("mypy"), &["conformance/python"]).await?;
    pytest(&published, "conformance/python").await
}

/// Runs a program with some more arguments, and says so.
async fn step(mut program: Command, args: &[&str]) -> Result<()> {
    program.args(args);
    println!("{}", process::name(&program));
    process::run(program).await
}

async fn pytest(environment: &Environment, folder: &str) -> Result<()> {
    let mut pytest = environment.command("pytest");
    pytest.env("NOLAG_BROKER", workspace::debug_binary("nolag-broker")?);
    step(pytest, &[folder]).await
}
