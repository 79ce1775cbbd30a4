//! The processes under measurement: started, read from `/proc`, ended when dropped.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// How long a process may take from its start to the line that names its address.
const START: Duration = Duration::from_secs(20);

/// Linux counts CPU time in hundredths of a second, on every architecture.
const TICK: Duration = Duration::from_millis(10);

/// A process that listens.
pub(crate) struct Process {
    /// Its `host:port`.
    pub(crate) address: String,
    pid: u32,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Process {
    /// Starts a broker on a free port with its demo tokens, no publish limit, and messages recorded or not. What it logs is
    /// added to a file.
    pub(crate) async fn broker(program: &Path, record: bool, log: &Path) -> Result<Self> {
        let log = File::options()
            .append(true)
            .open(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(program);
        command
            .args(["--port", "0"])
            .env_clear()
            .env("PUBLISH_RATE_LIMIT", "0")
            .env("RECORD_MESSAGES", record.to_string())
            .env("LOG_LEVEL", "warn")
            .stderr(log)
            // Where cargo puts programs nobody puts an auth.json.
            .current_dir(program.parent().context("the broker's path names no file")?);
        Self::start(command).await
    }

    /// Starts a program whose first line ends with its address.
    pub(crate) async fn start(mut command: Command) -> Result<Self> {
        let name = command.as_std().get_program().display().to_string();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        let pid = child.id().context("the process has ended")?;
        let input = child.stdin.take().context("no standard input")?;
        let output = child.stdout.take().context("no standard output")?;
        let mut lines = BufReader::new(output).lines();
        let first = timeout(START, lines.next_line())
            .await
            .with_context(|| format!("{name} does not say where it listens"))??
            .with_context(|| format!("{name} ended at once"))?;
        let address = first.strip_prefix("listening on ").unwrap_or(&first);
        let address = address.trim_start_matches("ws://").trim_end_matches("/ws").to_owned();
        Ok(Self { address, pid, input, lines, _child: child })
    }

    /// Says one line to it and waits for its answer.
    pub(crate) async fn ask(&mut self, line: &str) -> Result<String> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        self.lines.next_line().await?.context("the process has ended")
    }

    /// The CPU time that it has used so far, in user and kernel mode.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        cpu(&self.pid.to_string())
    }

    /// The memory that it holds, in bytes.
    pub(crate) fn memory(&self) -> Result<u64> {
        let status = proc(&self.pid.to_string(), "status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().context("VmRSS is no number")?;
        Ok(kib * 1024)
    }
}

/// The CPU time that a process has used so far, in user and kernel mode; `self` is this one.
pub(crate) fn cpu(pid: &str) -> Result<Duration> {
    let stat = proc(pid, "stat")?;
    // The name in parentheses may hold anything; the fields behind it are numbers, user and system time the 12th and 13th.
    let (_, fields) = stat.rsplit_once(')').context("no name in /proc/…/stat")?;
    let mut ticks = fields.split_whitespace().skip(11).map_while(|field| field.parse::<u32>().ok());
    let (user, system) = ticks.next().zip(ticks.next()).context("no times in /proc/…/stat")?;
    Ok(TICK * (user + system))
}

fn proc(pid: &str, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {path} (measuring needs Linux)"))
}
