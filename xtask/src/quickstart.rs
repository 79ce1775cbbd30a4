//! `cargo xtask quickstart`: from a fresh clone to the first message.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::timeout;

use crate::process::{Broker, Process};
use crate::python::Environment;
use crate::workspace;

/// What bob prints when alice's message has reached him.
const ARRIVED: &str = "bob got: {'text': 'hello from alice'}";

/// How long alice and bob may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Builds and starts the broker, runs `examples/quickstart.py` against it, and ends both.
pub(crate) async fn run() -> Result<()> {
    println!("1. Preparing Python with the published client");
    let python = Environment::prepare("quickstart", &["examples/requirements.txt"]).await?;

    println!("2. Building the broker");
    workspace::build(&["nolag-broker"]).await?;

    // A folder of its own, so that no auth.json lies there by chance.
    let folder = workspace::target()?.join("quickstart");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let broker = Broker::start(&workspace::debug_binary("nolag-broker")?, &folder).await?;
    println!(
        "3. The broker listens on {}, with the demo tokens dev-token-alice and dev-token-bob",
        broker.url
    );

    println!("4. alice and bob: examples/quickstart.py");
    let mut program = python.command("python");
    program.arg("examples/quickstart.py").env("NOLAG_URL", &broker.url).stdout(Stdio::piped());
    let mut program = Process::start(program)?;
    if !timeout(PATIENCE, arrived(&mut program)).await.context("alice and bob did not end in time")?? {
        bail!("the message did not arrive: nothing printed {ARRIVED:?}");
    }

    println!("It works, and what was started is stopped. README.md says how to run the broker by hand.");
    Ok(())
}

/// Shows what the program prints, and tells whether the message was among it.
async fn arrived(program: &mut Process) -> Result<bool> {
    let mut lines = program.lines().context("the program's output is not piped")?;
    let mut arrived = false;
    while let Some(line) = lines.next_line().await? {
        println!("{line}");
        arrived |= line == ARRIVED;
    }
    program.success("examples/quickstart.py").await?;
    Ok(arrived)
}
