//! The Rust client beside the bare loop, and the stand-in by itself.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::rust::{RustWork, Who};
use super::{Better, PROBE, Plan, Versus, stand_in, worker};
use crate::report::{Figure, Goal};
use crate::wire::{Connection, publish};

/// Messages that the stand-in is asked for, or given, in one round.
const MESSAGES: usize = 1_000_000;
/// Publishes in one write, and unanswered.
const GATHERED: usize = 512;

/// What the client takes beyond a bare loop.
pub(super) async fn rust(plan: &Plan) -> Result<Vec<Figure>> {
    let stand_in = stand_in::start().await?;
    let address = &stand_in.process.address;
    let mut figures = Vec::new();
    for (name, work, threads) in [
        ("Rust: receive, no acknowledgement asked", RustWork::Receive, false),
        ("Rust: receive and acknowledge", RustWork::ReceiveAcked, false),
        ("Rust: publish without waiting", RustWork::PublishWritten, false),
        ("Rust: publish, 64 in flight", RustWork::PublishAwaited, false),
        ("Rust: publish, 64 in flight, both on tokio's threads", RustWork::PublishAwaited, true),
    ] {
        let one = async |who, count| worker::rust(who, work, address, count, threads).await;
        let mut counts = [0; 2];
        for (count, who) in counts.iter_mut().zip([Who::Bare, Who::Client]) {
            *count = plan.count(&one(who, PROBE).await?)?;
        }
        let mut rounds = Vec::new();
        for _ in 0..plan.rounds {
            rounds.push([one(Who::Bare, counts[0]).await?, one(Who::Client, counts[1]).await?]);
        }
        let versus = Versus { work: name.to_owned(), names: ["bare loop", "client"], rounds };
        let goal = Some(Goal::at_least(0.7, "within 30 %"));
        figures.push(versus.figure(("messages", "/s"), "per_s", Better::More, goal)?);
        figures.push(versus.figure(("CPU per message", "µs"), "cpu_us", Better::Less, None)?);
    }
    Ok(figures)
}

/// How fast the stand-in serves someone who does next to nothing.
pub(super) async fn stand_in(plan: &Plan) -> Result<Vec<Figure>> {
    let stand_in = stand_in::start().await?;
    let process = &stand_in.process;
    let [mut told, mut told_cpu, mut told_acked, mut answered, mut answered_cpu] = [const { Vec::new() }; 5];
    let per_second = |start: Instant| MESSAGES as f64 / start.elapsed().as_secs_f64();
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / MESSAGES as f64;
    let (message, _) = publish("bench/room/sink", &"x".repeat(stand_in::PAYLOAD))?;
    let gathered = message.repeat(GATHERED);
    for _ in 0..plan.rounds {
        for (kind, told) in [("flood", &mut told), ("flood-acked", &mut told_acked)] {
            let mut reader = Connection::login(&process.address, "bench").await?;
            let (cpu, start) = (process.cpu()?, Instant::now());
            reader.subscribe([format!("bench/{MESSAGES}/{kind}")]).await?;
            // Some may have come with the answer, and have been passed over.
            let last = format!("{MESSAGES:08x}");
            let mut heard = 0;
            let mut over = false;
            while heard < MESSAGES * 99 / 100 && !over {
                reader
                    .receive(|frame| {
                        heard += 1;
                        over = frame.id.starts_with(last.as_bytes());
                    })
                    .await?;
            }
            told.push(per_second(start));
            if kind == "flood" {
                told_cpu.push(each(process.cpu()?.saturating_sub(cpu)));
            }
        }

        let mut writer = Connection::login(&process.address, "bench").await?;
        let (cpu, start) = (process.cpu()?, Instant::now());
        let mut unanswered = 0;
        for _ in 0..MESSAGES / GATHERED {
            writer.send(&gathered).await?;
            unanswered += GATHERED;
            while unanswered > GATHERED {
                writer.receive(|_| unanswered -= 1).await?;
            }
        }
        answered.push(per_second(start));
        answered_cpu.push(each(process.cpu()?.saturating_sub(cpu)));
    }
    let work = "the stand-in itself, to one that skims and has its frames ready";
    Ok(vec![
        Figure::new(work, "messages", "/s", told),
        Figure::new(work, "its CPU per message", "µs", told_cpu),
        Figure::new(work, "messages with an id", "/s", told_acked),
        Figure::new(work, "publishes answered", "/s", answered),
        Figure::new(work, "its CPU per publish", "µs", answered_cpu),
    ])
}
