//! Client and broker joined in one process, in virtual time, with a network between them that cuts, delays, freezes and half-opens.
//!
//! Both are the real ones, whole: the client with its driver, the broker with its connections, on a disk that outlives it or without
//! one. Random schedules of publishes, subscribes, unsubscribes and clients that come and go, of cuts and of brokers that are killed or
//! drained, end in calm weather. Then
//! every call has come to its end; every subscription that is wanted is there, and no other; every publish that was acknowledged has
//! reached whoever wanted it, once and in order, or a gap was told; and nothing is left over on either side. What of that
//! the features in force do not promise is not asked for: see [`record::Promise`].
//!
//! `NOLAG_SIM_SEED=n cargo test -p nolag-conformance --test joined` replays one schedule and tells its story, `NOLAG_SIM_RUNS=n` sets how
//! many there are.

mod disk;
mod network;
mod place;
mod presence;
mod readers;
mod record;
mod rest;
mod world;

use std::cell::Cell;
use std::panic::{catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// How many schedules there are unless somebody asks for more: what fits half a minute.
const RUNS: u64 = 500;

/// Seeds that have found a failure once.
const SAVED: &[u64] = &[];

thread_local! {
    /// Whether anything on this thread has panicked, tasks included, which the runtime would keep to itself.
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |panic| {
            PANICKED.set(true);
            print(panic);
        }));
    });
}

/// Carries out the schedule of a seed on a clock of its own: what is wrong in the end, and what happened if that is wanted.
fn run(seed: u64, with_story: bool) -> (Vec<String>, Option<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(world::run(seed, with_story))
}

/// Whether the schedule of a seed ended as it should.
fn holds(seed: u64, with_story: bool) -> bool {
    watch_panics();
    PANICKED.set(false);
    let faults = match catch_unwind(|| run(seed, with_story)) {
        Ok((faults, story)) => {
            eprint!("{}", story.unwrap_or_default());
            faults
        }
        Err(_) => vec!["it panicked".to_owned()],
    };
    for fault in &faults {
        eprintln!("seed {seed}: {fault}");
    }
    faults.is_empty() && !PANICKED.get()
}

/// With features and without (F-01), against both profiles (K-059): every call ends once (API-051, FC-11), subscriptions are there again
/// (API-027, K-020, FC-06, FC-07), publishes keep their order over losses (K-029, FC-09) and arrive once (F-09, API-044), what was missed comes
/// later, once and in order, or a gap says why not (F-03, F-05, F-06, API-035), also in a client that takes the place of another (API-101), and
/// rosters are true (FC-12).
#[test]
fn random_schedules() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = number("NOLAG_SIM_SEED") {
        assert!(holds(seed, true), "the schedule of seed {seed} failed");
        return;
    }
    // A soak goes on after a failure, to find others.
    let soak = number("NOLAG_SIM_RUNS");
    let seeds: Vec<u64> = SAVED.iter().copied().chain(0..soak.unwrap_or(RUNS)).collect();
    let (next, failures) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while soak.is_some() || failures.load(Ordering::Relaxed) == 0 {
            let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            if !holds(*seed, false) {
                failures.fetch_add(1, Ordering::Relaxed);
                eprintln!("the schedule of seed {seed} failed; replay it with NOLAG_SIM_SEED={seed}");
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    assert_eq!(failures.into_inner(), 0, "schedules failed");
}

/// A seed tells the whole story, but for the order of what happens in the same millisecond: else a failure could not be replayed.
#[test]
fn the_same_again() {
    let story = |seed| {
        let mut lines: Vec<String> = run(seed, true).1.unwrap().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    for seed in 0..20 {
        let (first, second) = (story(seed), story(seed));
        let parting = first.iter().zip(&second).find(|(one, other)| one != other);
        assert_eq!(parting, None, "two runs of seed {seed} part");
    }
}
