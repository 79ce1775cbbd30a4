//! Measures clients: the published Python client beside ours, and the Rust client beside a bare loop; alone, against a stand-in
//! that is faster than any of them, and the Python clients also through the broker. What is compared runs in turns, each time
//! in a fresh process; a figure is the median of its rounds.
//!
//! | module | |
//! | --- | --- |
//! | `alone` | Python clients against the stand-in, and what they share with Node's |
//! | `through` | Python clients through the broker |
//! | `node` | Node clients against the stand-in |
//! | `native` | the Rust client against the bare loop, and how fast the stand-in itself is |
//! | `stand_in` | the broker that stands in |
//! | `rust` | what the Rust client and the bare loop do, in processes of their own |
//! | `worker` | starts whatever works, and hears what it found |

mod alone;
mod native;
pub(crate) mod node;
pub(crate) mod rust;
pub(crate) mod stand_in;
mod through;
mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::report::{self, Figure, Goal, Report};
use worker::{Client, Numbers};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure; everything if nothing is named
    works: Vec<Work>,
    /// A Python that has the published client
    #[arg(long, value_name = "PYTHON")]
    published: PathBuf,
    /// A Python that has our client
    #[arg(long, value_name = "PYTHON")]
    ours: PathBuf,
    /// The program that uses a Python client
    #[arg(long, value_name = "SCRIPT")]
    worker: PathBuf,
    /// The broker's program
    #[arg(long)]
    broker: PathBuf,
    /// Fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Run the Python clients on uvloop, which both must have
    #[arg(long)]
    uvloop: bool,
    /// Where the figures go; the picture and the broker's log are written beside it
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Work {
    /// How fast the stand-in itself is
    StandIn,
    /// Rust: receive and publish, beside a bare loop
    Rust,
    /// Python: take messages, with and without acknowledging them
    Receive,
    /// Python: emit, without waiting and with 64 in flight
    Emit,
    /// Python: the own message back, one at a time
    Echo,
    /// Python: import, in fresh interpreters
    Import,
    /// Python: memory of connections
    Memory,
    /// Python: from one process to another through the broker
    Broker,
}

/// How long and how often.
struct Plan {
    rounds: usize,
    /// How long a client is busy in a round.
    busy: Duration,
    /// Round trips of one round.
    trips: usize,
    /// Fresh interpreters of each kind.
    imports: usize,
    /// Connections beyond the first one.
    further: usize,
}

const FULL: Plan =
    Plan { rounds: 5, busy: Duration::from_millis(1500), trips: 3_000, imports: 15, further: 200 };

const QUICK: Plan =
    Plan { rounds: 3, busy: Duration::from_millis(500), trips: 1_000, imports: 5, further: 100 };

/// Messages by which it is found out how many keep a client busy for long enough.
const PROBE: usize = 20_000;

/// What one must know to read the table.
const NOTES: &str =
    "Payloads have 100 bytes. A ratio is taken within each round, and more of it is better: costs are published : ours.
Alone: against a stand-in, on the same machine, that names no rate. CPU is the client's process, all its threads.
";

struct Bench {
    plan: Plan,
    published: Client,
    ours: Client,
}

/// Measures what is asked for and reports it.
pub(crate) async fn run(args: &Args) -> Result<()> {
    let log = args.json.with_extension("log");
    std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    // Our `emit` waits for the broker's answer unless it is given a callback.
    let python = |interpreter, waits: bool| {
        let flags = [("--callback", waits), ("--uvloop", args.uvloop)];
        let flags = flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| (*flag).to_owned());
        Client::new(interpreter, &args.worker, flags.collect())
    };
    let bench = Bench {
        plan: if args.quick { QUICK } else { FULL },
        published: python(&args.published, false),
        ours: python(&args.ours, true),
    };
    let broker =
        args.broker.canonicalize().with_context(|| format!("cannot run {}", args.broker.display()))?;
    let works = if args.works.is_empty() { Work::value_variants() } else { &args.works };
    let mut figures = Vec::new();
    for work in works {
        let name = work.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        eprintln!("measuring: {name}");
        figures.extend(
            bench.measure(*work, (&broker, &log)).await.with_context(|| format!("cannot measure {name}"))?,
        );
    }
    let report = Report { subject: "NoLag clients", notes: NOTES, quick: args.quick, figures };
    print!("{}", report.table());
    report::write(&report, &args.json)?;
    if log.metadata().is_ok_and(|log| log.len() > 0) {
        println!("the broker had something to say: {}", log.display());
    }
    Ok(())
}

impl Bench {
    /// `broker` is the program, and where it logs.
    async fn measure(&self, work: Work, broker: (&Path, &Path)) -> Result<Vec<Figure>> {
        match work {
            Work::StandIn => native::stand_in(&self.plan).await,
            Work::Rust => native::rust(&self.plan).await,
            Work::Receive => alone::receive(self).await,
            Work::Emit => alone::emit(self).await,
            Work::Echo => alone::echo(self).await,
            Work::Import => alone::import(self).await,
            Work::Memory => alone::memory(self).await,
            Work::Broker => through::broker(self, broker).await,
        }
    }
}

impl Plan {
    /// How many messages keep a client busy for as long as a round takes, after it did [`PROBE`].
    fn count(&self, probe: &Numbers) -> Result<usize> {
        let probe = Duration::from_secs_f64(PROBE as f64 / number(probe, "per_s")?);
        let often = self.busy.as_micros() / probe.as_micros().max(1);
        Ok(PROBE * usize::try_from(often)?.clamp(1, 500))
    }
}

/// What the rival and ours found in the same rounds.
struct Versus {
    work: String,
    /// What they are called.
    names: [&'static str; 2],
    rounds: Vec<[Numbers; 2]>,
}

/// Whether a figure is better if there is more of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    More,
    Less,
}

impl Versus {
    fn node(work: impl Into<String>, rounds: Vec<[Numbers; 2]>) -> Self {
        Self { work: work.into(), names: ["plain", "ours"], rounds }
    }

    fn python(work: impl Into<String>, rounds: Vec<[Numbers; 2]>) -> Self {
        Self { work: work.into(), names: ["published", "ours"], rounds }
    }

    /// How much better ours is, which should reach the goal.
    fn figure(
        &self,
        (name, unit): (&str, &'static str),
        key: &str,
        better: Better,
        goal: Option<Goal>,
    ) -> Result<Figure> {
        let [rival, ours] = self.names;
        let (names, over, under) =
            if better == Better::More { ([ours, rival], 1, 0) } else { ([rival, ours], 0, 1) };
        let rounds = [self.rounds_of(over, key)?, self.rounds_of(under, key)?];
        let figure = Figure::ratio(&self.work, name, names, unit, rounds);
        Ok(match goal {
            Some(goal) => figure.goal(goal),
            None => figure,
        })
    }

    /// What one of the two found, the rival being 0 and ours 1, in each round.
    fn rounds_of(&self, place: usize, key: &str) -> Result<Vec<f64>> {
        self.rounds.iter().map(|round| number(&round[place], key)).collect()
    }
}

fn number(numbers: &Numbers, key: &str) -> Result<f64> {
    numbers.get(key).copied().with_context(|| format!("no {key} in {numbers:?}"))
}
