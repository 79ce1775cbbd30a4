//! Puts a broker of the NoLag wire protocol to the statements `C-…` of its specification, from outside.
//!
//! Any broker will do: one that listens somewhere (`--url`), or a program that the suite starts itself (`--broker`), as
//! often as it needs, with the settings, token files and ends that a statement asks for. The suite shares no code with
//! our protocol crate or broker; frames are built and read as plain MessagePack values.
//!
//! - [`cases`]: one file per chapter, one function per statement, one table per file.
//! - [`client`], [`wire`], [`http`]: the raw client; [`observed`] checks every frame that comes through it.
//! - [`broker`]: starting and stopping brokers; [`suite`]: what a case gets; [`report`]: the table.
//! - [`vectors`]: the vectors of `protocol/vectors`.

mod broker;
mod cases;
mod client;
mod http;
mod observed;
mod report;
mod suite;
mod vectors;
mod wire;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::{ArgGroup, Parser};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

use broker::{Broker, BrokerCommand, Launch};
use http::Address;
use observed::Observed;
use report::{Outcome, Row};
use suite::{Case, Context, Needs, NotRun, Profile, Suite, Target};

/// How long one case may take in all.
const CASE_LIMIT: Duration = Duration::from_mins(1);

/// Puts a broker of the NoLag wire protocol to its conformance statements.
#[derive(Parser)]
#[command(version, group(ArgGroup::new("subject").args(["url", "broker", "list"]).required(true)))]
struct Args {
    /// A broker that listens already. Statements that need settings of their own are not run.
    #[arg(long, value_name = "ws://HOST:PORT/ws")]
    url: Option<String>,

    /// A broker to start, as often as needed: a path, or a command line split at white space. It is given the variables
    /// of wire protocol 25 and must print `listening on ws://<address>:<port>/ws` as its first line.
    #[arg(long, value_name = "COMMAND")]
    broker: Option<String>,

    /// The profile that the broker at the URL runs in, and that a started one is given.
    #[arg(long, value_enum, default_value = "extended")]
    profile: Profile,

    /// With --url: a token of one actor.
    #[arg(long, default_value = "dev-token-alice")]
    token: String,

    /// With --url: a token of another actor, with the same grants.
    #[arg(long, default_value = "dev-token-bob")]
    other_token: String,

    /// With --url: topics below this prefix are granted to both by one rule that ends in `#`.
    #[arg(long, default_value = "demo/general")]
    topic_prefix: String,

    /// With --url: the slug of a room of both.
    #[arg(long, default_value = "general")]
    room: String,

    /// With --url: the slug of a lobby of both that shows the room.
    #[arg(long, default_value = "lounge")]
    lobby: String,

    /// Only the statements whose number starts so; several are separated by commas.
    #[arg(long, value_name = "C-042,C-05", value_delimiter = ',')]
    only: Vec<String>,

    /// Prints the statements of the profile, and what each needs, without running them.
    #[arg(long)]
    list: bool,

    /// How many cases run at a time.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
}

impl Args {
    fn selects(&self, case: &Case) -> bool {
        case.profiles.includes(self.profile)
            && (self.only.is_empty() || self.only.iter().any(|prefix| case.id.starts_with(prefix.trim())))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = tokio::select! {
        outcome = run(&args) => outcome,
        // Returning drops every broker, which kills it.
        () = stopped() => Err(anyhow!("stopped by a signal")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("nolag-conformance: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Ends with SIGINT or SIGTERM.
async fn stopped() {
    match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(mut interrupt), Ok(mut terminate)) => {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        }
        _ => std::future::pending().await,
    }
}

/// Runs the selected cases and prints the table. Gives whether all statements hold that must.
async fn run(args: &Args) -> Result<bool> {
    let mut cases: Vec<Case> = cases::all().into_iter().filter(|case| args.selects(case)).collect();
    if args.list {
        cases.sort_by_key(|case| case.id);
        for case in &cases {
            println!(
                "{}  {}{}",
                case.id,
                case.text,
                if case.needs == Needs::Broker { " [--broker]" } else { "" }
            );
        }
        return Ok(true);
    }
    let suite = Arc::new(prepare(args).await?);
    let began = Instant::now();
    let count = cases.len();
    let mut rows = run_all(cases, &suite, usize::from(args.jobs)).await;
    add_observed(&mut rows, &suite.target.observed);
    if let Some(broker) = &suite.shared
        && broker.output().contains("panicked at")
    {
        eprintln!("the broker's own output tells of a panic:\n{}", broker.output());
    }
    let succeeds = report::succeeds(&rows);
    eprintln!("{count} statements in {:.1} s", began.elapsed().as_secs_f32());
    println!("{}", report::table(rows));
    Ok(succeeds)
}

async fn prepare(args: &Args) -> Result<Suite> {
    let observed = Arc::new(Observed::default());
    let command = args.broker.as_deref().map(BrokerCommand::parse).transpose()?;
    let shared = match &command {
        Some(command) => {
            Some(Broker::start(command, args.profile.name(), Launch::demo(), observed.clone()).await?)
        }
        None => None,
    };
    let target = match &shared {
        Some(broker) => Target {
            address: broker.address.clone(),
            token: "dev-token-alice".to_owned(),
            other_token: "dev-token-bob".to_owned(),
            prefix: "demo/general".to_owned(),
            room: "general".to_owned(),
            lobby: "lounge".to_owned(),
            observed,
        },
        None => Target {
            address: Address::parse(args.url.as_deref().context("neither --url nor --broker")?)?,
            token: args.token.clone(),
            other_token: args.other_token.clone(),
            prefix: args.topic_prefix.trim_end_matches(['#', '/']).to_owned(),
            room: args.room.clone(),
            lobby: args.lobby.clone(),
            observed,
        },
    };
    Ok(Suite { profile: args.profile, command, target, shared, turn: Arc::new(Mutex::new(())) })
}

/// Runs the cases, a few at a time.
async fn run_all(cases: Vec<Case>, suite: &Arc<Suite>, jobs: usize) -> Vec<Row> {
    let seats = Arc::new(Semaphore::new(jobs));
    let mut running = JoinSet::new();
    for case in cases {
        let (seats, context) = (seats.clone(), Context(suite.clone()));
        running.spawn(async move {
            // The semaphore is never closed.
            let _seat = seats.acquire().await;
            Row { id: case.id, text: case.text, outcome: run_one(&case, context).await }
        });
    }
    let mut rows = Vec::new();
    while let Some(row) = running.join_next().await {
        rows.extend(row);
    }
    rows
}

async fn run_one(case: &Case, context: Context) -> Outcome {
    match case.needs {
        Needs::Broker if !context.can_start() => return Outcome::NotRun("needs --broker".to_owned()),
        Needs::Broker | Needs::Nothing => {}
    }
    // A task of its own, so that a panic ends the case and nothing else.
    let task = tokio::spawn(tokio::time::timeout(CASE_LIMIT, (case.run)(context)));
    match task.await {
        Ok(Ok(Ok(()))) => Outcome::Holds,
        Ok(Ok(Err(error))) => match error.downcast_ref::<NotRun>() {
            Some(reason) => Outcome::NotRun(reason.to_string()),
            None => Outcome::DoesNot(format!("{error:#}")),
        },
        Ok(Err(_)) => Outcome::DoesNot(format!("the case took more than {CASE_LIMIT:?}")),
        Err(panic) => Outcome::DoesNot(format!("the case itself failed: {panic}")),
    }
}

/// Adds to the statements about every server frame what was seen in the whole run.
fn add_observed(rows: &mut [Row], observed: &Observed) {
    for row in rows {
        let seen = match row.id {
            "C-007" => observed.canonical(),
            "C-008" => observed.utf8(),
            "C-017" => observed.size(),
            _ => continue,
        };
        if let (Outcome::Holds, Err(error)) = (&row.outcome, seen) {
            row.outcome =
                Outcome::DoesNot(format!("{error:#} (among {} frames of the run)", observed.frames()));
        }
    }
}
