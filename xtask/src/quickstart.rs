//! `cargo xtask quickstart`: from a fresh clone to the first message, and to one after the broker was killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{BufReader, Lines};
use tokio::process::{ChildStdout, Command};
use tokio::time::timeout;

use crate::process::{Broker, Process};
use crate::python::{self, Environment};
use crate::{node, workspace};

/// What bob prints when alice's message has reached him.
const ARRIVED: &str = "bob got: {'text': 'hello from alice'}";

/// How long anything that is waited for may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Builds and starts the broker, runs the examples against it with our Python client, and ends them all.
pub(crate) async fn run() -> Result<()> {
    println!("1. Building the broker and the Python client (some minutes the first time)");
    workspace::build(&["nolag-broker"]).await?;
    let wheel = python::wheel(false).await?;
    let python = Environment::prepare("quickstart", &[]).await?;
    python.add(&wheel, &[]).await?;

    let (program, folder) = (workspace::debug_binary("nolag-broker")?, folder()?);
    let broker = start(&program, &folder).await?;

    println!("3. alice sends bob a message: examples/quickstart.py");
    let mut example = Example::python(&python, "examples/quickstart.py", &broker)?;
    example.until("the message", |line| line == ARRIVED).await?;
    example.end().await?;

    println!("4. bob subscribes once, and the broker is killed and started again: examples/restart.py");
    let mut example = Example::python(&python, "examples/restart.py", &broker)?;
    example.until("a message", |line| line.starts_with("bob got: ")).await?;
    let port = broker.kill().await?;
    println!("   (the broker was killed)");
    example.until("word that the connection is lost", |line| line.starts_with("bob lost ")).await?;
    let _broker = Broker::start(&program, &folder, port).await?;
    println!("   (the broker was started again)");
    example.until("word that bob is back", |line| line == "bob is back").await?;
    example.until("another message", |line| line.starts_with("bob got: ")).await?;

    println!(
        "\nIt works, and what was started is stopped. \
         \"Quick start by hand\" in README.md says how to run broker and client yourself."
    );
    Ok(())
}

/// The same with the JavaScript client, but for the broker's death.
pub(crate) async fn run_node() -> Result<()> {
    println!("1. Building the broker and the JavaScript client (some minutes the first time)");
    node::find().await?;
    workspace::build(&["nolag-broker"]).await?;
    node::build(false).await?;
    let broker = start(&workspace::debug_binary("nolag-broker")?, &folder()?).await?;

    println!("3. bob subscribes: examples/node/subscriber.mjs");
    let mut bob = Example::start(node::example("subscriber.mjs"), "subscriber.mjs", &broker)?;
    bob.until("word that bob is subscribed", |line| line == "bob is subscribed").await?;
    println!("4. alice sends bob a message: examples/node/publisher.mjs");
    let mut alice = Example::start(node::example("publisher.mjs"), "publisher.mjs", &broker)?;
    alice.until("word that alice has published", |line| line == "alice published").await?;
    alice.end().await?;
    bob.until("the message", |line| line == "bob got: { text: 'hello from alice' }").await?;

    println!("\nIt works, and what was started is stopped. README.md says how to go on.");
    Ok(())
}

/// A folder for the broker, so that no auth.json lies there by chance.
fn folder() -> Result<PathBuf> {
    let folder = workspace::target()?.join("quickstart");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

async fn start(program: &Path, folder: &Path) -> Result<Broker> {
    let broker = Broker::start(program, folder, 0).await?;
    println!(
        "2. The broker listens on {}, with the demo tokens dev-token-alice and dev-token-bob",
        broker.url
    );
    Ok(broker)
}

/// A running example, whose output is shown.
struct Example {
    name: &'static str,
    process: Process,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    fn python(python: &Environment, name: &'static str, broker: &Broker) -> Result<Self> {
        let mut program = python.command("python");
        program.arg(name);
        Self::start(program, name, broker)
    }

    fn start(mut program: Command, name: &'static str, broker: &Broker) -> Result<Self> {
        program.env("NOLAG_URL", &broker.url).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::start(program)?;
        let lines = process.lines().context("the program's output is not piped")?;
        Ok(Self { name, process, lines })
    }

    /// Waits for a line that is `what` we are waiting for.
    async fn until(&mut self, what: &str, is_it: impl Fn(&str) -> bool) -> Result<()> {
        let search = async {
            while let Some(line) = self.next_line().await? {
                if is_it(&line) {
                    return Ok(());
                }
            }
            bail!("{} ended, and {what} had not come", self.name)
        };
        timeout(PATIENCE, search)
            .await
            .with_context(|| format!("waited {} s for {what}, and it did not come", PATIENCE.as_secs()))?
    }

    /// Waits until it ends by itself.
    async fn end(mut self) -> Result<()> {
        let end = async {
            while self.next_line().await?.is_some() {}
            self.process.success(self.name).await
        };
        timeout(PATIENCE, end).await.with_context(|| format!("{} does not end", self.name))?
    }

    async fn next_line(&mut self) -> Result<Option<String>> {
        let line = self.lines.next_line().await?;
        if let Some(line) = &line {
            println!("   {line}");
        }
        Ok(line)
    }
}
