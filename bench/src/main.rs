//! Measures the broker with a load generator that costs less than what it measures, and clients against a broker that does;
//! on loopback only.
//!
//! | module | |
//! | --- | --- |
//! | `broker` | the broker's run: what is measured, in which order, for how long |
//! | `clients` | the clients' run, and all that only it needs |
//! | `process` | the processes under measurement: started, their CPU time and memory, ended |
//! | `wire` | the protocol, as much as generators and stand-ins need |
//! | `load` | publishers and audiences |
//! | `bare` | the loop that writes ready bytes, to compare with |
//! | `report` | table, JSON and picture |

#![allow(clippy::cast_precision_loss, reason = "no count of a short run comes near 2^53")]

mod bare;
mod broker;
mod clients;
mod load;
mod process;
mod report;
mod wire;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Measures the NoLag broker and its clients", version)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Fan-out, throughput, idle memory, and what other topics cost
    Broker(broker::Args),
    /// The published Python client beside ours, and the Rust client beside a bare loop
    Clients(clients::Args),
    /// Our client in Node beside plain JavaScript
    Node(clients::node::Args),
    /// The bare loop: writes one ready frame to many sockets; started by `broker`
    #[command(hide = true)]
    BareWriter(bare::Args),
    /// The stand-in broker; started by `clients`
    #[command(hide = true)]
    StandIn,
    /// The Rust client or a bare loop, at one work; started by `clients`
    #[command(hide = true)]
    Rust(clients::rust::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse().what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(what: What) -> Result<()> {
    match what {
        What::BareWriter(args) => bare::write(&args),
        What::StandIn => clients::stand_in::serve(),
        What::Rust(args) => clients::rust::run(&args),
        What::Broker(args) => {
            rlimit::increase_nofile_limit(u64::MAX).context("cannot lift the limit on open files")?;
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(broker::run(&args))
        }
        What::Clients(args) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(clients::run(&args))
        }
        What::Node(args) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(clients::node::run(&args))
        }
    }
}
