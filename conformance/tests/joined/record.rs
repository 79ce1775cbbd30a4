//! What a run has seen, and whether that is as promised.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use tokio::time::Instant;

use crate::presence::Rosters;

/// The topics that are published to.
pub(crate) const TOPICS: [&str; 3] = ["demo/hall/news", "demo/hall/talk", "demo/loft/news"];

/// What is subscribed to, and which of [`TOPICS`] that takes in.
pub(crate) const PATTERNS: [(&str, &[usize]); 5] = [
    ("demo/hall/news", &[0]),
    ("demo/hall/talk", &[1]),
    ("demo/loft/news", &[2]),
    ("demo/+/news", &[0, 2]),
    ("demo/#", &[0, 1, 2]),
];

/// Filter keys of publishes.
pub(crate) const KEYS: [&str; 2] = ["red", "green"];

/// What the features that client and broker have in common promise, as this broker is set up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Promise {
    /// What is missed comes later, or a gap says why not (features 2).
    pub(crate) recover: bool,
    /// A publish that is sent again arrives once (features 3).
    pub(crate) dedupe: bool,
    /// What was acknowledged outlives the broker.
    pub(crate) durable: bool,
    /// The history is short, so that a gap may be due to it.
    pub(crate) bounded: bool,
    /// Few messages are replayed, so that a gap may be due to it.
    pub(crate) limited: bool,
}

/// How a publish ended for its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The broker took it, after so many sendings.
    Accepted { attempts: u32 },
    /// It was sent, and nothing is promised.
    Written,
    /// With this code.
    Failed(String),
    /// Its caller lost patience.
    Abandoned,
}

pub(crate) struct Publish {
    /// The client that made it; one that is replaced has another number.
    pub(crate) client: usize,
    pub(crate) topic: usize,
    pub(crate) key: Option<&'static str>,
    pub(crate) confirmed: bool,
    /// Its own client does not get it.
    pub(crate) silent: bool,
    pub(crate) called: Instant,
    pub(crate) ended: Option<(Instant, Ended)>,
}

impl Publish {
    /// Whether the broker may have seen it more than once, as far as the caller can tell.
    fn may_be_doubled(&self) -> bool {
        self.confirmed && !matches!(self.ended, Some((_, Ended::Accepted { attempts: 1 })))
    }

    fn is_accepted(&self) -> bool {
        matches!(self.ended, Some((_, Ended::Accepted { .. })))
    }
}

/// A message as a subscriber got it.
pub(crate) struct Got {
    pub(crate) at: Instant,
    /// Of which publish, by its index.
    pub(crate) publish: usize,
    /// It was brought by the subscribe.
    pub(crate) retained: bool,
}

/// One subscription of one client, from its subscribe to its end.
pub(crate) struct Tenure {
    pub(crate) client: usize,
    pub(crate) pattern: usize,
    /// It takes its time to read, so that the times of its messages tell nothing of when they came.
    pub(crate) slow: bool,
    /// The last message may not be done with when it ends, and comes again to whoever continues.
    pub(crate) repeats: bool,
    /// One of these keys, or any message where empty.
    pub(crate) filters: Vec<&'static str>,
    /// The one, of an earlier client, that it continues.
    pub(crate) continues: Option<usize>,
    /// When the subscribe was answered.
    pub(crate) began: Option<Instant>,
    /// When it was given up.
    pub(crate) ended: Option<Instant>,
    pub(crate) got: Vec<Got>,
    /// When a gap was told, and why.
    pub(crate) gaps: Vec<(Instant, String)>,
}

impl Tenure {
    /// Whether it is wanted, and answered.
    pub(crate) fn is_live(&self) -> bool {
        self.began.is_some() && self.ended.is_none()
    }

    fn wants(&self, publish: &Publish) -> bool {
        PATTERNS[self.pattern].1.contains(&publish.topic)
            && (self.filters.is_empty() || publish.key.is_some_and(|key| self.filters.contains(&key)))
            && !(publish.silent && publish.client == self.client)
    }
}

/// Everything that clients did and saw.
pub(crate) struct Record {
    start: Instant,
    /// How many clients there were.
    pub(crate) clients: usize,
    pub(crate) publishes: Vec<Publish>,
    pub(crate) tenures: Vec<Tenure>,
    pub(crate) rosters: Rosters,
    /// What nobody should have been told.
    pub(crate) oddities: Vec<String>,
    /// When a broker ended, and with it all that it knew; or with a disk what was not acknowledged yet.
    pub(crate) losses: Vec<Instant>,
    /// What happened, for people; kept only where somebody will read it.
    pub(crate) story: Option<String>,
}

impl Record {
    pub(crate) fn new(with_story: bool) -> Self {
        Self {
            start: Instant::now(),
            clients: 0,
            publishes: Vec::new(),
            tenures: Vec::new(),
            rosters: Rosters::default(),
            oddities: Vec::new(),
            losses: Vec::new(),
            story: with_story.then(String::new),
        }
    }

    /// Adds a line to the story.
    pub(crate) fn tell(&mut self, what: impl FnOnce() -> String) {
        let at = self.start.elapsed().as_millis();
        if let Some(story) = &mut self.story {
            let _ = writeln!(story, "{at:>8} ms  {}", what()); // a string takes everything
        }
    }

    /// What is wrong, if anything.
    pub(crate) fn faults(&self, promise: Promise) -> Vec<String> {
        let mut faults = self.oddities.clone();
        let continued: BTreeSet<usize> = self.tenures.iter().filter_map(|tenure| tenure.continues).collect();
        for index in (0..self.tenures.len()).filter(|index| !continued.contains(index)) {
            let tenure = &self.tenures[index];
            let pattern = PATTERNS[tenure.pattern].0;
            let run = Run { record: self, promise, tenures: self.chain(index) };
            run.check(&mut |what| {
                faults.push(format!("subscription {index} of client {} to {pattern}: {what}", tenure.client));
            });
        }
        faults
    }

    /// A subscription with those that it continues, oldest first.
    fn chain(&self, index: usize) -> Vec<&Tenure> {
        let before = |index: &usize| self.tenures[*index].continues;
        let mut chain: Vec<_> =
            std::iter::successors(Some(index), before).map(|index| &self.tenures[index]).collect();
        chain.reverse();
        chain
    }
}

/// One application's subscription, over the clients that had it one after the other.
struct Run<'r> {
    record: &'r Record,
    promise: Promise,
    /// Oldest first; never empty.
    tenures: Vec<&'r Tenure>,
}

impl Run<'_> {
    fn check(&self, complain: &mut impl FnMut(String)) {
        self.unwanted(complain);
        self.doubled(complain);
        self.disordered(complain);
        self.missing(complain);
        self.unfounded_gaps(complain);
    }

    fn publish(&self, got: &Got) -> &Publish {
        &self.record.publishes[got.publish]
    }

    fn got(&self) -> impl Iterator<Item = &Got> {
        self.tenures.iter().flat_map(|tenure| &tenure.got)
    }

    /// Whether nothing was lost that makes the broker recognise this publish when it is sent again.
    fn is_recognised(&self, publish: &Publish) -> bool {
        let ended = publish.ended.as_ref().map(|(at, _)| *at);
        let forgets = |loss: &&Instant| {
            **loss >= publish.called && !(self.promise.durable && ended.is_some_and(|ended| ended < **loss))
        };
        self.promise.dedupe && !self.record.losses.iter().any(|loss| forgets(&loss))
    }

    /// Nothing that the filters exclude; but until the subscribe is answered what an earlier one of the topic asked for may still come.
    fn unwanted(&self, complain: &mut impl FnMut(String)) {
        for tenure in &self.tenures {
            for got in &tenure.got {
                let publish = self.publish(got);
                let of_earlier = tenure.began.is_none_or(|began| publish.called <= began);
                if !tenure.wants(publish) && !of_earlier {
                    complain(format!("got {}, which it does not want", got.publish));
                }
            }
        }
    }

    /// Each publish once; without `dedupe` those that were sent once.
    fn doubled(&self, complain: &mut impl FnMut(String)) {
        let mut seen = BTreeSet::new();
        for (index, tenure) in self.tenures.iter().enumerate() {
            // What one was not done with, and what is retained, comes again to the next.
            let repeats = index.checked_sub(1).and_then(|before| {
                let before = self.tenures[before];
                before.got.last().filter(|_| before.repeats).map(|got| got.publish)
            });
            for got in &tenure.got {
                let publish = self.publish(got);
                let may_come_again = repeats == Some(got.publish) || index > 0 && got.retained;
                let is_new = seen.insert(got.publish);
                if !is_new && !may_come_again && (self.is_recognised(publish) || !publish.may_be_doubled()) {
                    complain(format!("got {} twice", got.publish));
                }
            }
        }
    }

    /// The messages of one publisher on one topic come in the order of the calls. A publish that may have been taken twice counts
    /// for nothing: its first copy may have been missed.
    fn disordered(&self, complain: &mut impl FnMut(String)) {
        let mut last = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for got in self.got().filter(|got| !got.retained) {
            let publish = self.publish(got);
            if !publish.confirmed
                || publish.may_be_doubled() && !self.is_recognised(publish)
                || !seen.insert(got.publish)
            {
                continue;
            }
            if let Some(before) = last.insert((publish.client, publish.topic), got.publish)
                && before > got.publish
            {
                complain(format!("got {before} before {}", got.publish));
            }
        }
    }

    /// Every publish that was accepted and is wanted came, or a gap was told between the messages around it.
    fn missing(&self, complain: &mut impl FnMut(String)) {
        let (Some(first), Some(last)) = (self.tenures.first(), self.tenures.last()) else { return };
        let Some(began) = first.began.filter(|_| last.is_live()) else { return };
        let got: BTreeSet<usize> = self.got().map(|got| got.publish).collect();
        for (number, publish) in self.record.publishes.iter().enumerate() {
            let is_owed = publish.is_accepted() && publish.called > began;
            let is_wanted = self.tenures.iter().all(|tenure| tenure.wants(publish));
            if !is_owed || !is_wanted || got.contains(&number) {
                continue;
            }
            // The messages of the same publisher and topic that show where it is missing: those that were sent once.
            let neighbours = || {
                let quick = self.tenures.iter().filter(|tenure| !tenure.slow);
                quick.flat_map(|tenure| &tenure.got).filter(|got| {
                    let other = self.publish(got);
                    let same = (other.client, other.topic) == (publish.client, publish.topic);
                    same && other.confirmed && !other.may_be_doubled() && !got.retained
                })
            };
            let before = neighbours().filter(|got| got.publish < number).map(|got| got.at).max();
            let after = neighbours().filter(|got| got.publish > number).map(|got| got.at).min();
            let from = before.unwrap_or(began).max(publish.called);
            let mut gaps = self.tenures.iter().flat_map(|tenure| &tenure.gaps);
            if !gaps.any(|(at, _)| *at >= from && after.is_none_or(|after| *at <= after)) {
                complain(format!("never got {number}, and no gap was told between its neighbours"));
            }
        }
    }

    /// A gap has a reason that this run can have.
    fn unfounded_gaps(&self, complain: &mut impl FnMut(String)) {
        let Promise { recover, durable, bounded, limited, .. } = self.promise;
        for (at, reason) in self.tenures.iter().flat_map(|tenure| &tenure.gaps) {
            let founded = match reason.as_str() {
                "unsupported" => !recover,
                "epoch" => recover && !durable && self.record.losses.iter().any(|loss| loss <= at),
                "expired" => recover && bounded,
                "too_many" => recover && limited,
                _ => false,
            };
            if !founded {
                complain(format!("was told of a gap, {reason}, that cannot be"));
            }
        }
    }
}
