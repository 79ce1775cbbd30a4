//! Programs that work for a while and print what they found.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::rust::{RustWork, Who};

/// How long anything that is waited for may take; a worker gives up before that.
const PATIENCE: Duration = Duration::from_secs(150);

/// What a worker found, by name.
pub(super) type Numbers = HashMap<String, f64>;

/// A running worker, which ends when it is dropped.
pub(super) struct Worker {
    name: String,
    lines: Lines<BufReader<ChildStdout>>,
    child: Child,
}

impl Worker {
    pub(super) fn start(mut command: Command) -> Result<Self> {
        let name = command.as_std().get_program().display().to_string();
        let arguments: Vec<_> = command.as_std().get_args().map(|word| word.to_string_lossy()).collect();
        let name = format!("{name} {}", arguments.join(" "));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot run {name}"))?;
        let lines = BufReader::new(child.stdout.take().context("its output is not piped")?).lines();
        Ok(Self { name, lines, child })
    }

    /// The next line that it prints.
    pub(super) async fn numbers(&mut self) -> Result<Numbers> {
        let line = timeout(PATIENCE, self.lines.next_line())
            .await
            .with_context(|| format!("{} says nothing", self.name))??
            .with_context(|| format!("{} ended without a word; it may say why above", self.name))?;
        serde_json::from_str(&line).with_context(|| format!("{} says {line}", self.name))
    }

    /// Waits for its end, which must be a success.
    pub(super) async fn end(mut self) -> Result<()> {
        let status = timeout(PATIENCE, self.child.wait())
            .await
            .with_context(|| format!("{} does not end", self.name))??;
        if !status.success() {
            bail!("{} failed ({status})", self.name);
        }
        Ok(())
    }
}

/// Runs a worker that prints one line.
pub(super) async fn run(command: Command) -> Result<Numbers> {
    let mut worker = Worker::start(command)?;
    let numbers = worker.numbers().await?;
    worker.end().await?;
    Ok(numbers)
}

/// The Rust client, or the bare loop.
pub(super) async fn rust(
    who: Who,
    work: RustWork,
    address: &str,
    count: usize,
    threads: bool,
) -> Result<Numbers> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("rust").arg(who.name()).arg(work.name());
    command.arg("--address").arg(address).arg("--count").arg(count.to_string());
    if threads {
        command.arg("--threads");
    }
    run(command).await
}

/// An interpreter, and the program in its language that puts a client to work.
pub(super) struct Client {
    interpreter: PathBuf,
    script: PathBuf,
    /// What the program is told whatever the work is.
    flags: Vec<String>,
}

/// What such a program is told.
pub(super) struct Task<'a> {
    pub(super) work: &'static str,
    pub(super) address: &'a str,
    pub(super) topic: &'a str,
    /// Messages, or connections.
    pub(super) count: usize,
    /// Publishes a second; none for as fast as it goes.
    pub(super) rate: Option<u32>,
}

impl Client {
    pub(super) fn new(interpreter: &Path, script: &Path, flags: Vec<String>) -> Self {
        Self { interpreter: interpreter.to_owned(), script: script.to_owned(), flags }
    }

    /// A command for a task.
    pub(super) fn command(&self, task: &Task<'_>) -> Command {
        let mut command = Command::new(&self.interpreter);
        command
            .arg(&self.script)
            .arg(task.work)
            .arg("--url")
            .arg(format!("ws://{}/ws", task.address))
            .arg("--topic")
            .arg(task.topic)
            .arg("--count")
            .arg(task.count.to_string());
        if let Some(rate) = task.rate {
            command.arg("--rate").arg(rate.to_string());
        }
        command.args(&self.flags);
        command
    }

    /// Carries out a task that prints one line.
    pub(super) async fn run(&self, task: &Task<'_>) -> Result<Numbers> {
        run(self.command(task)).await
    }

    /// How long a fresh Python takes for a statement, its start and its end included.
    pub(super) async fn statement(&self, statement: &str) -> Result<Duration> {
        let mut command = Command::new(&self.interpreter);
        command.arg("-c").arg(statement).stdin(Stdio::null()).kill_on_drop(true);
        let start = Instant::now();
        let status = timeout(PATIENCE, command.status())
            .await
            .with_context(|| format!("{} does not end", self.interpreter.display()))??;
        let time = start.elapsed();
        if !status.success() {
            bail!("{}: `{statement}` failed", self.interpreter.display());
        }
        Ok(time)
    }
}
