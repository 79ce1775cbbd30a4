//! Clients in Python and Node against the stand-in.

use std::time::Duration;

use anyhow::{Result, bail};

use super::stand_in::{self, StandIn};
use super::worker::{Client, Numbers, Task};
use super::{Bench, Better, PROBE, Versus, number};
use crate::report::{Figure, Goal};

/// Taking messages with a plain handler.
pub(super) async fn receive(bench: &Bench) -> Result<Vec<Figure>> {
    let plain = flood(bench, "flood").await?;
    let acked = flood(bench, "flood-acked").await?;
    let both = [
        ("receive, no acknowledgement asked", plain, 10.0, "published 2.6.0: 72,500/s elsewhere", Some(6.0)),
        ("receive, acknowledgement asked", acked, 8.0, "the published one never acknowledges", None),
    ];
    let mut figures = Vec::new();
    for (work, rounds, rate, why, cpu) in both {
        let versus = Versus::python(work, rounds);
        let goal = Some(Goal::at_least(rate, why));
        figures.push(versus.figure(("messages", "/s"), "per_s", Better::More, goal)?);
        let goal = cpu.map(|least| Goal::at_least(least, "published 2.6.0: 13.8 µs elsewhere"));
        figures.push(versus.figure(("CPU per message", "µs"), "cpu_us", Better::Less, goal)?);
        if work.ends_with(", acknowledgement asked") {
            let ours = Figure::new(work, "acknowledged by ours", "%", versus.rounds_of(1, "acked")?);
            figures.push(Figure::new(
                work,
                "acknowledged by the published one",
                "%",
                versus.rounds_of(0, "acked")?,
            ));
            figures.push(ours.goal(Goal::at_least(100.0, "every one")));
        }
    }
    Ok(figures)
}

/// Each client takes floods in turns.
pub(super) async fn flood(bench: &Bench, kind: &str) -> Result<Vec<[Numbers; 2]>> {
    let mut stand_in = stand_in::start().await?;
    let mut one = async |client: &Client, count: usize| -> Result<Numbers> {
        let address = stand_in.process.address.clone();
        let topic = format!("bench/{count}/{kind}");
        let task = Task { work: "receive", address: &address, topic: &topic, count, rate: None };
        let mut numbers = client.run(&task).await?;
        let (_, acks) = stand_in.counted().await?;
        numbers.insert("acked".to_owned(), 100.0 * acks as f64 / count as f64);
        Ok(numbers)
    };
    let counts = [
        bench.plan.count(&one(&bench.published, PROBE).await?)?,
        bench.plan.count(&one(&bench.ours, PROBE).await?)?,
    ];
    let mut rounds = Vec::new();
    for _ in 0..bench.plan.rounds {
        rounds.push([one(&bench.published, counts[0]).await?, one(&bench.ours, counts[1]).await?]);
    }
    Ok(rounds)
}

/// Publishing, without waiting and with 64 that wait for their answer.
pub(super) async fn emit(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (name, work, least, why) in [
        ("emit without waiting", "emit", 6.0, "published 2.6.0: 30,100/s elsewhere"),
        ("emit, 64 in flight", "emit-awaited", 5.0, "published 2.6.0: 12,200/s elsewhere"),
    ] {
        let rounds = emitted(bench, work).await?;
        let versus = Versus::python(name, rounds);
        let goal = Some(Goal::at_least(least, why));
        figures.push(versus.figure(("messages", "/s"), "per_s", Better::More, goal)?);
        figures.push(versus.figure(("CPU per message", "µs"), "cpu_us", Better::Less, None)?);
    }
    Ok(figures)
}

/// Each client emits in turns.
pub(super) async fn emitted(bench: &Bench, work: &'static str) -> Result<Vec<[Numbers; 2]>> {
    let mut stand_in = stand_in::start().await?;
    let counts = [
        bench.plan.count(&emits(&bench.published, work, &mut stand_in, PROBE).await?)?,
        bench.plan.count(&emits(&bench.ours, work, &mut stand_in, PROBE).await?)?,
    ];
    let mut rounds = Vec::new();
    for _ in 0..bench.plan.rounds {
        rounds.push([
            emits(&bench.published, work, &mut stand_in, counts[0]).await?,
            emits(&bench.ours, work, &mut stand_in, counts[1]).await?,
        ]);
    }
    Ok(rounds)
}

/// Emits, and counts what came.
async fn emits(client: &Client, work: &'static str, stand_in: &mut StandIn, count: usize) -> Result<Numbers> {
    let address = stand_in.process.address.clone();
    let numbers =
        client.run(&Task { work, address: &address, topic: "bench/room", count, rate: None }).await?;
    let (came, _) = stand_in.counted().await?;
    let errors = number(&numbers, "errors")?;
    // What tells the end without waiting is a message, too.
    let expected = count as u64 + u64::from(work == "emit");
    if came != expected || errors > 0.0 {
        bail!("of {expected} messages {came} came, and {errors} were answered with errors");
    }
    Ok(numbers)
}

/// The own message back, one at a time.
pub(super) async fn echo(bench: &Bench) -> Result<Vec<Figure>> {
    let stand_in = stand_in::start().await?;
    let rounds = echoes(bench, &stand_in.process.address, "bench/room/echo").await?;
    let versus = Versus::python("own echo, one in flight", rounds);
    let goals = [Goal::at_least(1.0, "not above"), Goal::at_least(2.0, "half")];
    echo_figures(&versus, goals.map(Some))
}

pub(super) async fn echoes(bench: &Bench, address: &str, topic: &str) -> Result<Vec<[Numbers; 2]>> {
    let task = Task { work: "echo", address, topic, count: bench.plan.trips, rate: None };
    let mut rounds = Vec::new();
    for _ in 0..bench.plan.rounds {
        rounds.push([bench.published.run(&task).await?, bench.ours.run(&task).await?]);
    }
    Ok(rounds)
}

pub(super) fn echo_figures(versus: &Versus, [p50, p99]: [Option<Goal>; 2]) -> Result<Vec<Figure>> {
    Ok(vec![
        versus.figure(("p50", "ms"), "p50_ms", Better::Less, p50)?,
        versus.figure(("p99", "ms"), "p99_ms", Better::Less, p99)?,
    ])
}

/// What an import adds to the start of an interpreter, and to that of one that has asyncio.
pub(super) async fn import(bench: &Bench) -> Result<Vec<Figure>> {
    async fn one(client: &Client) -> Result<Numbers> {
        let [bare, asyncio, nolag] = [
            client.statement("pass").await?,
            client.statement("import asyncio").await?,
            client.statement("import nolag").await?,
        ];
        let beyond = |less: Duration| (nolag.as_secs_f64() - less.as_secs_f64()) * 1e3;
        Ok(Numbers::from([
            ("import_ms".to_owned(), beyond(bare)),
            ("beyond_asyncio_ms".to_owned(), beyond(asyncio)),
        ]))
    }
    // The first ones fill caches.
    for client in [&bench.published, &bench.ours] {
        one(client).await?;
    }
    let mut rounds = Vec::new();
    for _ in 0..bench.plan.imports {
        rounds.push([one(&bench.published).await?, one(&bench.ours).await?]);
    }
    let work = "import, beyond a bare interpreter";
    let versus = Versus::python(work, rounds);
    let goal = Goal::at_least(4.0, "published 2.6.0: 207 ms elsewhere");
    let asyncio = "beyond one with asyncio";
    Ok(vec![
        versus.figure(("import", "ms"), "import_ms", Better::Less, Some(goal))?,
        // Of what is next to nothing there is no ratio.
        Figure::new(work, format!("{asyncio}, published"), "ms", versus.rounds_of(0, "beyond_asyncio_ms")?),
        Figure::new(work, format!("{asyncio}, ours"), "ms", versus.rounds_of(1, "beyond_asyncio_ms")?),
    ])
}

/// Memory of the first connection, and of each that follows.
pub(super) async fn memory(bench: &Bench) -> Result<Vec<Figure>> {
    let count = bench.plan.further;
    let rounds = connections(bench).await?;
    let further = Versus::python(format!("memory of each of {count} further connections"), rounds.clone());
    let goals = ["published 2.6.0: 18 MB elsewhere", "published 2.6.0: 26 KB elsewhere"]
        .map(|why| Some(Goal::at_least(2.0, why)));
    let [first_goal, further_goal] = goals;
    let first = Versus::python("memory of one connection, above an interpreter with asyncio", rounds);
    Ok(vec![
        first.figure(("RSS", "KB"), "first_rss_kb", Better::Less, first_goal)?,
        first.figure(("PSS", "KB"), "first_pss_kb", Better::Less, None)?,
        further.figure(("RSS", "KB"), "further_rss_kb", Better::Less, further_goal)?,
    ])
}

/// Each client opens connections in turns.
pub(super) async fn connections(bench: &Bench) -> Result<Vec<[Numbers; 2]>> {
    let stand_in = stand_in::start().await?;
    let address = &stand_in.process.address;
    let count = bench.plan.further;
    let task = Task { work: "connections", address, topic: "bench/room/idle", count, rate: None };
    let mut rounds = Vec::new();
    for _ in 0..bench.plan.rounds {
        rounds.push([bench.published.run(&task).await?, bench.ours.run(&task).await?]);
    }
    Ok(rounds)
}
