//! Python programs in virtual environments of their own, below cargo's target folder.

use std::env::{self, consts::EXE_SUFFIX};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use crate::{process, workspace};

/// The oldest Python that the published client runs on.
const OLDEST: (u32, u32) = (3, 10);

/// How to get a Python, for those who have none.
const HOW_TO_GET: &str = "Debian and Ubuntu: apt install python3 python3-venv; Fedora: dnf install python3; macOS: brew install python; \
                          Windows: winget install Python.Python.3.13; or set PYTHON to the one to use";

/// A virtual environment that holds what its requirement files name.
pub(crate) struct Environment(PathBuf);

impl Environment {
    /// Makes the environment `name`, or takes the one that is there if it was made from the same files by the same Python.
    pub(crate) async fn prepare(name: &str, requirements: &[&str]) -> Result<Self> {
        let (python, version) = find_python().await?;
        let folder = workspace::target()?.join("python").join(name);
        let files: Vec<PathBuf> = requirements.iter().map(|file| workspace::root().join(file)).collect();
        let mut made_of = version;
        for file in &files {
            made_of +=
                &fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        }

        let environment = Self(folder);
        let note = environment.0.join("made-of.txt");
        if fs::read_to_string(&note).is_ok_and(|noted| noted == made_of) {
            return Ok(environment);
        }
        environment.make(&python, &files).await?;
        fs::write(&note, made_of).with_context(|| format!("cannot write {}", note.display()))?;
        Ok(environment)
    }

    async fn make(&self, python: &OsString, requirements: &[PathBuf]) -> Result<()> {
        let mut venv = Command::new(python);
        venv.args(["-m", "venv", "--clear"]).arg(&self.0);
        process::run(venv).await.context(
            "this Python has no venv module, or it does not work here (Debian and Ubuntu: apt install python3-venv)",
        )?;
        let mut pip = self.command("python");
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--quiet"]);
        for file in requirements {
            pip.arg("--requirement").arg(file);
        }
        process::run(pip).await.context("pip could not install what is needed; it says why above")
    }

    /// A command of this environment, to be run in the root of the workspace.
    pub(crate) fn command(&self, program: &str) -> Command {
        let folder = if cfg!(windows) { "Scripts" } else { "bin" };
        let mut command = Command::new(self.0.join(folder).join(format!("{program}{EXE_SUFFIX}")));
        // Python's output appears as it comes, also when it is piped.
        command.current_dir(workspace::root()).env("PYTHONUNBUFFERED", "1");
        command
    }
}

/// The Python to use, and its version with where it lies.
async fn find_python() -> Result<(OsString, String)> {
    let names = match env::var_os("PYTHON") {
        Some(chosen) => vec![chosen],
        None => vec!["python3".into(), "python".into()],
    };
    let mut too_old = None;
    for name in names {
        let mut ask = Command::new(&name);
        ask.args(["-c", "import sys; print(*sys.version_info[:3], sys.executable)"])
            .current_dir(Path::new("."));
        let Ok(answer) = process::output(ask).await else { continue };
        let mut words = answer.split_whitespace().map_while(|word| word.parse::<u32>().ok());
        match (words.next(), words.next()) {
            (Some(major), Some(minor)) if (major, minor) >= OLDEST => return Ok((name, answer)),
            (Some(major), Some(minor)) => too_old = Some(format!("{major}.{minor}")),
            _ => {}
        }
    }
    let (major, minor) = OLDEST;
    match too_old {
        Some(found) => bail!("Python {found} is too old, {major}.{minor} or newer is needed ({HOW_TO_GET})"),
        None => bail!("Python is missing, {major}.{minor} or newer is needed ({HOW_TO_GET})"),
    }
}
