//! Our Python package, and Python programs in virtual environments of their own, below cargo's target folder.

use std::collections::hash_map::DefaultHasher;
use std::env::{self, consts::EXE_SUFFIX};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use crate::{process, workspace};

/// The oldest Python that the published client runs on.
const OLDEST: (u32, u32) = (3, 10);

/// How to get a Python, for those who have none.
const HOW_TO_GET: &str = "Debian and Ubuntu: apt install python3 python3-venv; Fedora: dnf install python3; macOS: brew install python; \
                          Windows: winget install Python.Python.3.13; or set PYTHON to the one to use";

/// Builds our package `nolag`, as released or with the development profile, and returns the wheel.
pub(crate) async fn wheel(release: bool) -> Result<PathBuf> {
    let tools = Environment::prepare("build", &["bindings/python/requirements-build.txt"]).await?;
    let target = workspace::target()?;
    let out = target.join("wheels").join(if release { "release" } else { "debug" });
    // What is found there afterwards is what was built now, whatever its version.
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    let mut maturin = tools.command("maturin");
    maturin
        .args(["build", "--manifest-path", "bindings/python/Cargo.toml"])
        // It is installed on the machine that it is built on.
        .args(["--auditwheel", "skip"])
        .arg("--interpreter")
        .arg(tools.program("python"))
        .arg("--target-dir")
        .arg(target)
        .arg("--out")
        .arg(&out);
    if release {
        maturin.arg("--release");
    }
    workspace::forget_package(&mut maturin);
    process::run(maturin).await.context("the Python package does not build; maturin says why above")?;
    let built = fs::read_dir(&out).with_context(|| format!("cannot read {}", out.display()))?;
    for file in built {
        let file = file?.path();
        if file.extension() == Some(OsStr::new("whl")) {
            return Ok(file);
        }
    }
    bail!("maturin left no wheel in {}", out.display())
}

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
        if requirements.is_empty() {
            return Ok(());
        }
        let mut arguments = Vec::new();
        for file in requirements {
            arguments.extend([OsStr::new("--requirement"), file.as_os_str()]);
        }
        self.install(&arguments).await
    }

    /// Installs a wheel, and beside it, without what they would bring along, the packages that requirement files name; does
    /// nothing if they are there.
    pub(crate) async fn add(&self, wheel: &Path, companions: &[&str]) -> Result<()> {
        let mut made_of = DefaultHasher::new();
        fs::read(wheel).with_context(|| format!("cannot read {}", wheel.display()))?.hash(&mut made_of);
        let mut arguments = vec![OsStr::new("--force-reinstall"), OsStr::new("--no-deps"), wheel.as_os_str()];
        let files: Vec<PathBuf> = companions.iter().map(|file| workspace::root().join(file)).collect();
        for file in &files {
            fs::read(file).with_context(|| format!("cannot read {}", file.display()))?.hash(&mut made_of);
            arguments.extend([OsStr::new("--requirement"), file.as_os_str()]);
        }
        let made_of = made_of.finish().to_string();

        let note = self.0.join("added.txt");
        if fs::read_to_string(&note).is_ok_and(|noted| noted == made_of) {
            return Ok(());
        }
        self.install(&arguments).await?;
        fs::write(&note, made_of).with_context(|| format!("cannot write {}", note.display()))
    }

    async fn install(&self, arguments: &[&OsStr]) -> Result<()> {
        let mut pip = self.command("python");
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--quiet"]).args(arguments);
        process::run(pip).await.context("pip could not install what is needed; it says why above")
    }

    /// A command of this environment, to be run in the root of the workspace.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.program(program));
        // What it runs by name, such as pyright its Python, comes from here, too.
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = [self.programs()].into_iter().chain(env::split_paths(&path));
        if let Ok(path) = env::join_paths(folders) {
            command.env("PATH", path);
        }
        // Python's output appears as it comes, also when it is piped.
        command.current_dir(workspace::root()).env("VIRTUAL_ENV", &self.0).env("PYTHONUNBUFFERED", "1");
        command
    }

    /// Where it lies.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    fn programs(&self) -> PathBuf {
        self.0.join(if cfg!(windows) { "Scripts" } else { "bin" })
    }

    /// Where a program of this environment lies.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs().join(format!("{name}{EXE_SUFFIX}"))
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
