//! Clients in Node against the stand-in: ours, and what a user would write with `ws` and `@msgpack/msgpack`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::alone::{connections, echoes, emitted, flood};
use super::stand_in;
use super::worker::Client;
use super::{Bench, Better, FULL, QUICK, Versus};
use crate::report::{self, Figure, Goal, Report};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The program that puts a client to work
    #[arg(long, value_name = "SCRIPT")]
    worker: PathBuf,
    /// Fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Where the figures go; the picture is written beside it
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
}

/// What one must know to read the table.
const NOTES: &str =
    "Payloads have 100 bytes. A ratio is taken within each round, and more of it is better: costs are plain : ours.
Plain is what a user writes with ws and @msgpack/msgpack: it keeps no subscription, queues nothing, and tries nothing again.
Against a stand-in, on the same machine, that names no rate. CPU is the client's process, all its threads.
";

/// Measures and reports.
pub(crate) async fn run(args: &Args) -> Result<()> {
    let client = |which: &str| {
        Client::new(Path::new("node"), &args.worker, vec!["--client".to_owned(), which.to_owned()])
    };
    let bench = Bench {
        plan: if args.quick { QUICK } else { FULL },
        published: client("plain"),
        ours: client("ours"),
    };
    let report =
        Report { subject: "NoLag in Node", notes: NOTES, quick: args.quick, figures: measure(&bench).await? };
    print!("{}", report.table());
    report::write(&report, &args.json)
}

async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let rate = ("messages", "/s");
    let cpu = ("CPU per message", "µs");
    for (work, rounds) in [
        ("receive, no acknowledgement asked", flood(bench, "flood").await?),
        ("receive, acknowledgement asked", flood(bench, "flood-acked").await?),
        ("emit without waiting", emitted(bench, "emit").await?),
        ("emit, 64 in flight", emitted(bench, "emit-awaited").await?),
    ] {
        let versus = Versus::node(work, rounds);
        figures.push(versus.figure(
            rate,
            "per_s",
            Better::More,
            Some(Goal::at_least(1.0, "plain loses what ours keeps")),
        )?);
        figures.push(versus.figure(cpu, "cpu_us", Better::Less, None)?);
    }
    let stand_in = stand_in::start().await?;
    let versus = Versus::node(
        "own echo, one in flight",
        echoes(bench, &stand_in.process.address, "bench/room/echo").await?,
    );
    figures.push(versus.figure(("p50", "ms"), "p50_ms", Better::Less, None)?);
    figures.push(versus.figure(("p99", "ms"), "p99_ms", Better::Less, None)?);
    let rounds = connections(bench).await?;
    let first = Versus::node("one connection", rounds.clone());
    figures.push(first.figure(("import and first message", "ms"), "first_ms", Better::Less, None)?);
    figures.push(first.figure(("memory", "KB"), "first_rss_kb", Better::Less, None)?);
    let further =
        Versus::node(format!("memory of each of {} further connections", bench.plan.further), rounds);
    figures.push(further.figure(("RSS", "KB"), "further_rss_kb", Better::Less, None)?);
    Ok(figures)
}
