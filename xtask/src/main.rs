//! The chores of this repository, one command each: `cargo xtask --help` lists them.

mod bench;
mod coverage;
mod docs;
mod node;
mod process;
mod python;
mod quickstart;
mod test;
mod wasm;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The chores of this repository")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Build the broker, start it with its demo tokens, and let alice send bob a message
    Quickstart {
        /// With the JavaScript client in Node, instead of the Python one
        #[arg(long)]
        node: bool,
    },
    /// Run every test, or the named parts; installs what they need
    Test(test::Args),
    /// Write the documents that are made from code
    Generate {
        /// Write nothing; fail if a document is not what the code says
        #[arg(long)]
        check: bool,
    },
    /// Print which statements of the specification are tested, and by what; fail if one is not that should be
    CoverageOfSpec(coverage::Args),
    /// Measure, and print the figures beside their goals
    #[command(subcommand)]
    Bench(bench::Bench),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    // Whichever side ends first, the other is dropped, and with it every process it had started.
    let outcome = tokio::select! {
        outcome = carry_out(cli.chore) => outcome,
        () = process::interrupted() => {
            eprintln!("interrupted: stopping what was started");
            return ExitCode::from(130);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn carry_out(chore: Chore) -> Result<()> {
    match chore {
        Chore::Quickstart { node: false } => quickstart::run().await,
        Chore::Quickstart { node: true } => quickstart::run_node().await,
        Chore::Test(args) => test::run(args).await,
        Chore::Generate { check: false } => docs::write(),
        Chore::Generate { check: true } => docs::check(),
        Chore::CoverageOfSpec(args) => coverage::run(&args),
        Chore::Bench(bench) => bench::run(bench).await,
    }
}
