//! What is measured of the broker, in which order and for how long. Things that are compared run in turns, so that a slow
//! moment of the machine meets both; a figure is the median of its rounds.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use crate::load::{self, Audience, Pace, Publisher, Round, Watch, round};
use crate::process::Process;
use crate::report::{Figure, Goal, Report};
use crate::{bare, report};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The broker's program
    #[arg(long)]
    broker: PathBuf,
    /// Fewer and shorter rounds, fewer connections
    #[arg(long)]
    quick: bool,
    /// Where the figures go; the picture and the broker's log are written beside it
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
}

/// How long, how often, how many.
struct Plan {
    rounds: usize,
    paced: Duration,
    flat_out: Duration,
    idle_connections: usize,
}

const FULL: Plan = Plan {
    rounds: 4,
    paced: Duration::from_secs(4),
    flat_out: Duration::from_secs(2),
    idle_connections: 10_000,
};

const QUICK: Plan = Plan {
    rounds: 2,
    paced: Duration::from_secs(2),
    flat_out: Duration::from_millis(800),
    idle_connections: 2_000,
};

/// Publishes a second of the paced fan-out.
const RATE: u32 = 45;
/// A publisher that goes flat out, as those did that measured the rivals.
const FLAT_OUT: Pace = Pace::InFlight(64);
/// The same with fewer system calls, of the generator's and of the broker's.
const GATHERED: Pace = Pace::Gathered(64);
/// Other topics, and the connections that share their subscriptions.
const OTHER_TOPICS: usize = 100_000;
const BYSTANDERS: usize = 100;
/// How long connections lie idle before the broker's memory is read.
const SETTLE: Duration = Duration::from_secs(2);

/// What one must know to read the table.
const NOTES: &str =
    "A rate is what broker and generator do together on the same cores; CPU is the broker's alone.
Rivals were measured on another machine, where the bare loop took 6.3 µs a write: a hint, no verdict.
";

/// Measures everything and reports it.
pub(crate) async fn run(args: &Args) -> Result<()> {
    let plan = if args.quick { QUICK } else { FULL };
    let program =
        args.broker.canonicalize().with_context(|| format!("cannot run {}", args.broker.display()))?;
    let log = args.json.with_extension("log");
    File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let bench = Bench { program, log, plan };
    let mut figures = Vec::new();
    for (name, measured) in [
        ("1 → 1,000, paced, against the bare loop", Box::pin(bench.paced()) as Measurement<'_>),
        ("1 → 1,000, 1 → 100 and 1 → 1, flat out", Box::pin(bench.flat_out())),
        ("idle connections", Box::pin(bench.idle())),
        ("other topics", Box::pin(bench.other_topics())),
    ] {
        eprintln!("measuring: {name}");
        let log = bench.log.display();
        let context = || format!("cannot measure {name} (the broker's log: {log})");
        figures.extend(measured.await.with_context(context)?);
    }
    let report = Report { subject: "NoLag broker", notes: NOTES, quick: args.quick, figures };
    print!("{}", report.table());
    report::write(&report, &args.json)?;
    if bench.log.metadata().is_ok_and(|log| log.len() > 0) {
        println!("the broker had something to say: {}", bench.log.display());
    }
    Ok(())
}

type Measurement<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Vec<Figure>>> + 'a>>;

struct Bench {
    program: PathBuf,
    log: PathBuf,
    plan: Plan,
}

impl Bench {
    async fn broker(&self, record: bool) -> Result<Process> {
        Process::broker(&self.program, record, &self.log).await
    }

    async fn paced(&self) -> Result<Vec<Figure>> {
        const LISTENERS: usize = 1_000;
        let broker = self.broker(false).await?;
        let audience = Audience::new(load::listeners(&broker.address, LISTENERS).await?);
        let mut publisher = Publisher::connect(&broker.address).await?;
        // A short round warms both up and yields the bytes that the bare loop writes.
        round(&broker, &audience, &mut publisher, Pace::Rate(RATE), self.plan.flat_out / 2).await?;
        let frame = audience.sample().context("no message came")?;
        let mut bare = bare::start(LISTENERS, &frame).await?;
        let bare_audience = Audience::new(load::plain(&bare.address, LISTENERS).await?);

        let [mut ours, mut least, mut ratio, mut p50, mut p99] = [const { Vec::new() }; 5];
        let writes = u64::from(RATE) * self.plan.paced.as_secs();
        for _ in 0..self.plan.rounds {
            let watch = Watch::start(&bare, &bare_audience)?;
            bare.ask(&format!("{RATE} {writes}")).await?;
            let bare_round = watch.finish(&bare, &bare_audience, writes).await?;
            let round = round(&broker, &audience, &mut publisher, Pace::Rate(RATE), self.plan.paced).await?;
            ratio.push(round.cpu_per_delivery() / bare_round.cpu_per_delivery());
            least.push(bare_round.cpu_per_delivery());
            ours.push(round.cpu_per_delivery());
            p50.push(round.latency(50));
            p99.push(round.latency(99));
        }
        let work = "1 → 1,000 at 45 a second";
        Ok(vec![
            Figure::new(work, "CPU per delivery", "µs", ours).goal(Goal::at_most(10.2, "0.6 × Centrifugo")),
            Figure::new(work, "bare loop, CPU per write", "µs", least),
            Figure::new(work, "CPU, broker : bare loop", "×", ratio).goal(Goal::at_most(1.5, "")),
            Figure::new(work, "latency, p50", "ms", p50),
            Figure::new(work, "latency, p99", "ms", p99).goal(Goal::at_most(18.9, "0.7 × Centrifugo")),
        ])
    }

    async fn flat_out(&self) -> Result<Vec<Figure>> {
        let broker = self.broker(false).await?;
        let recording = self.broker(true).await?;
        let mut publisher = Publisher::connect(&broker.address).await?;
        let mut recorded_publisher = Publisher::connect(&recording.address).await?;

        let audience = Audience::new(load::listeners(&broker.address, 1_000).await?);
        let mut thousand = Vec::new();
        for _ in 0..self.plan.rounds {
            thousand.push(self.round(&broker, &audience, &mut publisher, FLAT_OUT).await?);
        }

        drop(audience);
        let audience = Audience::new(load::listeners(&broker.address, 100).await?);
        let recorded_audience = Audience::new(load::listeners(&recording.address, 100).await?);
        let [mut hundred, mut recorded] = [const { Vec::new() }; 2];
        for _ in 0..self.plan.rounds {
            hundred.push(self.round(&broker, &audience, &mut publisher, FLAT_OUT).await?);
            let round = self.round(&recording, &recorded_audience, &mut recorded_publisher, FLAT_OUT).await?;
            recorded.push(round);
        }

        drop(audience);
        let audience = Audience::new(load::listeners(&broker.address, 1).await?);
        let [mut one, mut gathered] = [const { Vec::new() }; 2];
        for _ in 0..self.plan.rounds {
            one.push(self.round(&broker, &audience, &mut publisher, FLAT_OUT).await?);
            gathered.push(self.round(&broker, &audience, &mut publisher, GATHERED).await?);
        }

        let rate = |work, name, rounds: &[Round]| {
            Figure::new(work, name, "/s", rounds.iter().map(Round::rate).collect())
        };
        let cost = |work, name, rounds: &[Round]| {
            Figure::new(work, name, "µs", rounds.iter().map(Round::cpu_per_delivery).collect())
        };
        let ratio = recorded.iter().zip(&hundred).map(|(on, off)| on.rate() / off.rate()).collect();
        let generator = thousand.iter().chain(&hundred).chain(&one).map(Round::generator).collect();
        Ok(vec![
            rate("1 → 1,000 flat out", "deliveries", &thousand).goal(Goal::at_least(234_000.0, "5 × kraken")),
            cost("1 → 1,000 flat out", "CPU per delivery", &thousand),
            rate("1 → 100 flat out", "deliveries", &hundred).goal(Goal::at_least(214_800.0, "6 × kraken")),
            cost("1 → 100 flat out", "CPU per delivery", &hundred),
            Figure::new("1 → 100 flat out", "recording on : off", "×", ratio)
                .goal(Goal::at_least(0.85, "kraken: a fifth")),
            rate("1 → 1, 64 in flight", "messages", &one).goal(Goal::at_least(91_200.0, "8 × kraken")),
            cost("1 → 1, 64 in flight", "CPU per message", &one),
            rate("1 → 1, 64 in flight", "messages, if writes are gathered", &gathered),
            Figure::new("all that goes flat out", "CPU, generator : broker", "×", generator),
        ])
    }

    /// One round of the length for going flat out.
    async fn round(
        &self,
        broker: &Process,
        audience: &Audience,
        publisher: &mut Publisher,
        pace: Pace,
    ) -> Result<Round> {
        round(broker, audience, publisher, pace, self.plan.flat_out).await
    }

    async fn idle(&self) -> Result<Vec<Figure>> {
        let count = self.plan.idle_connections;
        let broker = self.broker(false).await?;
        let before = broker.memory()?;
        let connections = load::listeners(&broker.address, count).await?;
        sleep(SETTLE).await;
        let each = broker.memory()?.saturating_sub(before) as f64 / 1024.0 / count as f64;
        drop(connections);
        let work = format!("{},000 idle connections, subscribed", count / 1_000);
        Ok(vec![
            Figure::new(work, "memory of each", "KB", vec![each]).goal(Goal::at_most(10.0, "kraken: 25")),
        ])
    }

    async fn other_topics(&self) -> Result<Vec<Figure>> {
        let alone = self.broker(false).await?;
        let crowded = self.broker(false).await?;
        let bystanders = load::bystanders(&crowded.address, BYSTANDERS, OTHER_TOPICS / BYSTANDERS).await?;
        let audience = Audience::new(load::listeners(&alone.address, 1).await?);
        let crowded_audience = Audience::new(load::listeners(&crowded.address, 1).await?);
        let mut publisher = Publisher::connect(&alone.address).await?;
        let mut crowded_publisher = Publisher::connect(&crowded.address).await?;
        let [mut costs, mut ratio] = [const { Vec::new() }; 2];
        for _ in 0..self.plan.rounds {
            // Gathered, so that finding the receivers is not lost among the costs of system calls.
            let alone = self.round(&alone, &audience, &mut publisher, GATHERED).await?;
            let crowded = self.round(&crowded, &crowded_audience, &mut crowded_publisher, GATHERED).await?;
            costs.push(alone.cpu_per_publish());
            ratio.push(crowded.cpu_per_publish() / alone.cpu_per_publish());
        }
        drop(bystanders);
        Ok(vec![
            Figure::new("a publish", "CPU, 1 topic", "µs", costs),
            Figure::new("a publish", "CPU, 100,000 other topics : 1 topic", "×", ratio)
                .goal(Goal::at_most(1.5, "")),
        ])
    }
}
