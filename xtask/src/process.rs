//! Child processes that end with us, and the broker as one of them.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
#[cfg(windows)]
use process_wrap::tokio::JobObject;
#[cfg(unix)]
use process_wrap::tokio::ProcessGroup;
use process_wrap::tokio::{ChildWrapper, CommandWrap};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdout, Command};
use tokio::time::timeout;

/// How long the broker may take from its start to its first line.
const BROKER_START: Duration = Duration::from_secs(20);

/// Ends when someone wants us to stop: Ctrl-C, a polite signal to end, or a closed terminal.
pub(crate) async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()), signal(SignalKind::hangup()))
        else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
    #[cfg(not(unix))]
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// A running child. It leads a group of its own, so that dropping it ends what it has started, too: a test runner's broker,
/// a compiler of cargo's.
pub(crate) struct Process(Box<dyn ChildWrapper>);

impl Process {
    /// Starts a program.
    pub(crate) fn start(command: Command) -> Result<Self> {
        let name = name(&command);
        let mut command = CommandWrap::from(command);
        #[cfg(unix)]
        command.wrap(ProcessGroup::leader());
        #[cfg(windows)]
        command.wrap(JobObject);
        Ok(Self(command.spawn().with_context(|| format!("cannot run `{name}`"))?))
    }

    /// The lines that it prints; once, and only if its output was piped.
    pub(crate) fn lines(&mut self) -> Option<Lines<BufReader<ChildStdout>>> {
        Some(BufReader::new(self.0.stdout().take()?).lines())
    }

    /// Ends it without a word, and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.0.start_kill().context("cannot end a program")?;
        self.0.wait().await.context("cannot wait for a program to end")?;
        Ok(())
    }

    /// Waits for its end, which must be a success.
    pub(crate) async fn success(&mut self, name: &str) -> Result<()> {
        let status = self.0.wait().await.with_context(|| format!("cannot wait for `{name}`"))?;
        if !status.success() {
            bail!("`{name}` failed ({status})");
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        let _ = self.0.start_kill();
    }
}

/// Runs a program to its end, its output going where ours goes.
pub(crate) async fn run(command: Command) -> Result<()> {
    let name = name(&command);
    Process::start(command)?.success(&name).await
}

/// Runs a program to its end, unseen, and returns what it printed.
pub(crate) async fn output(mut command: Command) -> Result<String> {
    let name = name(&command);
    let output = command.kill_on_drop(true).output().await.with_context(|| format!("cannot run `{name}`"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{name}` failed ({}): {}",
            output.status,
            errors.trim_end().lines().last().unwrap_or("no word why")
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{name}` printed no text"))
}

/// A command as one would type it, without the folders of its program.
pub(crate) fn name(command: &Command) -> String {
    let command = command.as_std();
    let program = Path::new(command.get_program()).file_name().unwrap_or_else(|| OsStr::new("?"));
    let words: Vec<_> =
        [program].into_iter().chain(command.get_args()).map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// A broker with its demo tokens, ended when dropped.
pub(crate) struct Broker {
    /// Where clients connect.
    pub(crate) url: String,
    process: Process,
}

impl Broker {
    /// Starts it on this port, on a free one if it is 0, and waits until it listens. No setting and no token file of the
    /// caller's reaches it.
    pub(crate) async fn start(program: &Path, working_dir: &Path, port: u16) -> Result<Self> {
        let mut command = Command::new(program);
        command
            .args(["--port", &port.to_string()])
            .env_clear()
            .envs(std::env::var_os("SystemRoot").map(|root| ("SystemRoot", root)))
            .current_dir(working_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = Process::start(command)?;
        let mut lines = process.lines().context("the broker's output is not piped")?;
        let first = timeout(BROKER_START, lines.next_line())
            .await
            .with_context(|| format!("the broker said nothing for {} s", BROKER_START.as_secs()))??
            .context("the broker ended before it listened; it says why above")?;
        let url = first
            .strip_prefix("listening on ")
            .with_context(|| format!("the broker began with {first:?}, not with its address"))?
            .to_owned();
        // Reading on keeps the broker from waiting for a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { url, process })
    }

    /// Kills it, and returns the port that it had.
    pub(crate) async fn kill(mut self) -> Result<u16> {
        self.process.kill().await?;
        // ws://127.0.0.1:<port>/ws
        let port = self.url.rsplit(':').next().and_then(|rest| rest.split('/').next());
        port.and_then(|port| port.parse().ok()).with_context(|| format!("{} names no port", self.url))
    }
}
