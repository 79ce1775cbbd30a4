//! Python clients through the broker: a process that publishes and one that receives.

use std::path::Path;

use anyhow::{Context, Result};

use super::alone::{echo_figures, echoes};
use super::worker::{Client, Numbers, Task, Worker};
use super::{Bench, Better, PROBE, Versus, number};
use crate::load::TOPIC;
use crate::process::Process;
use crate::report::{Figure, Goal};

/// Publishes a second of a run that is paced.
const RATE: u32 = 2_000;

/// Echo, paced and flat out, with messages that carry an id and ask for an acknowledgement.
pub(super) async fn broker(bench: &Bench, (program, log): (&Path, &Path)) -> Result<Vec<Figure>> {
    let broker = Process::broker(program, true, log).await?;
    let address = &broker.address;
    let trips = echoes(bench, address, TOPIC).await?;
    let versus = Versus::python("through the broker: own echo, one in flight", trips);
    let mut figures = echo_figures(&versus, [None, None])?;

    for rate in [Some(RATE), None] {
        let count = async |python| match rate {
            Some(rate) => Ok(usize::try_from(bench.plan.busy.as_millis() * u128::from(rate) / 1_000)?),
            None => bench.plan.count(&from_one_to_another(python, address, PROBE, None).await?),
        };
        let counts = [count(&bench.published).await?, count(&bench.ours).await?];
        let mut rounds = Vec::new();
        for _ in 0..bench.plan.rounds {
            rounds.push([
                from_one_to_another(&bench.published, address, counts[0], rate).await?,
                from_one_to_another(&bench.ours, address, counts[1], rate).await?,
            ]);
        }
        let work = match rate {
            Some(_) => "through the broker: one to one, 2,000 a second",
            None => "through the broker: one to one, 64 in flight",
        };
        let versus = Versus::python(work, rounds);
        if rate.is_none() {
            figures.push(versus.figure(("delivered", "/s"), "per_s", Better::More, None)?);
        }
        figures.extend(echo_figures(&versus, [None, None])?);
        let sides = [("CPU per publish", "publisher_cpu_us"), ("CPU per delivery", "subscriber_cpu_us")];
        for (name, key) in sides {
            figures.push(versus.figure((name, "µs"), key, Better::Less, None)?);
        }
        for (name, key) in [("lost", "lost"), ("delivered twice", "twice"), ("refused", "refused")] {
            for (place, who) in versus.names.into_iter().enumerate() {
                let all =
                    versus.rounds.iter().map(|round| number(&round[place], key)).sum::<Result<f64>>()?;
                let figure = Figure::new(work, format!("{name}, {who}, all rounds"), "", vec![all]);
                let ours = who == "ours";
                figures.push(if ours { figure.goal(Goal::at_most(0.0, "none")) } else { figure });
            }
        }
    }
    Ok(figures)
}

/// Publishes in one process and receives in another.
async fn from_one_to_another(
    client: &Client,
    address: &str,
    count: usize,
    rate: Option<u32>,
) -> Result<Numbers> {
    let task = |work| Task { work, address, topic: TOPIC, count, rate };
    let mut subscriber = Worker::start(client.command(&task("consume")))?;
    subscriber.numbers().await.context("the subscriber is not ready")?;
    let sent = client.run(&task("produce")).await?;
    let received = subscriber.numbers().await?;
    subscriber.end().await?;

    let distinct = number(&received, "distinct")?;
    let seconds = (number(&received, "last_ns")? - number(&sent, "first_ns")?) / 1e9;
    Ok(Numbers::from(
        [
            ("per_s", distinct / seconds),
            ("p50_ms", number(&received, "p50_ms")?),
            ("p99_ms", number(&received, "p99_ms")?),
            ("publisher_cpu_us", number(&sent, "cpu_us")?),
            ("subscriber_cpu_us", number(&received, "cpu_us")?),
            ("lost", count as f64 - distinct),
            ("twice", number(&received, "received")? - distinct),
            ("refused", number(&sent, "errors")?),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    ))
}
