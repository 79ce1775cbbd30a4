//! Whether protocol and session build for browsers, and what the protocol weighs there: nothing else stands between the
//! browser client and its size goal so directly.

use std::fs;
use std::io::Write as _;

use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};
use tokio::process::Command;

use crate::test::Outcome;
use crate::{process, workspace};

const TARGET: &str = "wasm32-unknown-unknown";

/// Builds protocol and session for the browser's platform, and prints the size of a program that holds nothing but its codec.
pub(crate) async fn run() -> Result<Outcome> {
    if let Err(reason) = install_target().await {
        return Ok(Outcome::Skipped(format!("{reason:#}")));
    }
    process::run(workspace::cargo(["build", "--package", "nolag-protocol", "--release", "--target", TARGET]))
        .await?;
    // The session without a driver: what every platform shares.
    let session = ["check", "--package", "nolag-core", "--no-default-features", "--target", TARGET];
    process::run(workspace::cargo(session)).await?;
    let profile = ["--profile", "wasm", "--target", TARGET];
    process::run(workspace::cargo(["build", "--package", "wasm-size"].into_iter().chain(profile))).await?;

    let module = workspace::target()?.join(TARGET).join("wasm").join("wasm-size.wasm");
    let module = fs::read(&module).with_context(|| format!("cannot read {}", module.display()))?;
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(&module)?;
    let gzipped = gzip.finish()?.len();
    println!("decoding and encoding every frame: {} bytes of wasm, {gzipped} gzipped", module.len());
    Ok(Outcome::Passed)
}

/// Makes sure that the compiler has the target's standard library.
async fn install_target() -> Result<()> {
    let mut ask = Command::new("rustc");
    ask.args(["--print", "target-libdir", "--target", TARGET]).current_dir(workspace::root());
    if process::output(ask).await.is_ok_and(|folder| fs::exists(folder.trim_end()).unwrap_or(false)) {
        return Ok(());
    }
    let mut add = Command::new("rustup");
    add.args(["target", "add", TARGET]).current_dir(workspace::root());
    process::run(add)
        .await
        .with_context(|| format!("the compiler lacks the target {TARGET}, and rustup cannot add it"))
}
