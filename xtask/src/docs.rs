//! Documents that follow the code: made from it, or compared with it.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use crate::{process, workspace};

/// Each generated document: where it lies, and what belongs into it.
fn documents() -> Vec<(PathBuf, String)> {
    vec![(workspace::root().join("docs/errors.md"), nolag_protocol::codes::markdown())]
}

/// Writes every document.
pub(crate) fn write() -> Result<()> {
    for (path, text) in documents() {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// Fails if a document is missing or differs from what the code says.
pub(crate) fn check() -> Result<()> {
    for (path, text) in documents() {
        let found = fs::read_to_string(&path).unwrap_or_default();
        // Git may have given the file the line ends of another system.
        if found.replace("\r\n", "\n") != text {
            bail!("{} is not what the code says: run `cargo xtask generate`", path.display());
        }
    }
    Ok(())
}

/// Fails if the README's table of settings and the broker's `--help` do not name the same flags.
pub(crate) async fn compare_settings() -> Result<()> {
    workspace::build(&["nolag-broker"]).await?;
    let mut help = Command::new(workspace::debug_binary("nolag-broker")?);
    help.arg("--help");
    let mut offered = flags(&process::output(help).await?);
    offered.retain(|flag| flag != "--help" && flag != "--version");

    let readme = fs::read_to_string(workspace::root().join("README.md")).context("cannot read README.md")?;
    let table: Vec<_> = readme.lines().filter(|line| line.starts_with("| `")).collect();
    let described = flags(&table.join("\n"));
    if let Some(flag) = offered.symmetric_difference(&described).next() {
        let side = if offered.contains(flag) { "is not in README.md" } else { "is in README.md only" };
        bail!("the broker's setting {flag} {side}");
    }
    Ok(())
}

/// Everything in a text that looks like `--a-flag`.
fn flags(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '-');
    words
        .filter(|word| word.starts_with("--") && word.len() > 2)
        .map(|word| word.trim_end_matches('-').to_owned())
        .collect()
}
