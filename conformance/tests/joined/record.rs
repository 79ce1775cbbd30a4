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

/// What the features that client and broker have in common promise.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Promise {
    /// What is missed comes later, or a gap says why not (features 2).
    pub(crate) recover: bool,
    /// A publish that is sent again arrives once (features 3).
    pub(crate) dedupe: bool,
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
    pub(crate) called: Instant,
    pub(crate) ended: Option<Ended>,
}

impl Publish {
    /// Whether the broker may have seen it more than once, as far as the caller can tell.
    fn may_be_doubled(&self) -> bool {
        self.confirmed && !matches!(self.ended, Some(Ended::Accepted { attempts: 1 }))
    }

    fn is_accepted(&self) -> bool {
        matches!(self.ended, Some(Ended::Accepted { .. }))
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
    /// One of these keys, or any message where empty.
    pub(crate) filters: Vec<&'static str>,
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
    /// When a broker ended that had what is lost with it.
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
        for (index, tenure) in self.tenures.iter().enumerate() {
            let pattern = PATTERNS[tenure.pattern].0;
            let mut complain = |what: String| {
                faults.push(format!("subscription {index} of client {} to {pattern}: {what}", tenure.client));
            };
            self.unwanted(tenure, &mut complain);
            self.doubled(tenure, promise, &mut complain);
            self.disordered(tenure, promise, &mut complain);
            self.missing(tenure, &mut complain);
            self.unfounded_gaps(tenure, promise, &mut complain);
        }
        faults
    }

    /// Nothing that the filters exclude; but until the subscribe is answered what an earlier one of the topic asked for may still come.
    fn unwanted(&self, tenure: &Tenure, complain: &mut impl FnMut(String)) {
        for got in &tenure.got {
            let publish = &self.publishes[got.publish];
            let of_earlier = tenure.began.is_none_or(|began| publish.called <= began);
            if !tenure.wants(publish) && !of_earlier {
                complain(format!("got {}, which it does not want", got.publish));
            }
        }
    }

    /// Each publish once; without `dedupe` those that were sent once.
    fn doubled(&self, tenure: &Tenure, promise: Promise, complain: &mut impl FnMut(String)) {
        let mut seen = BTreeSet::new();
        for got in &tenure.got {
            let publish = &self.publishes[got.publish];
            // What recognised a repeated publish may have been lost since.
            let recognised = promise.dedupe && self.losses.iter().all(|loss| *loss < publish.called);
            if !seen.insert(got.publish) && (recognised || !publish.may_be_doubled()) {
                complain(format!("got {} twice", got.publish));
            }
        }
    }

    /// The messages of one publisher on one topic come in the order of the calls. Without `dedupe` a publish that was sent again counts
    /// for nothing: its first copy may have been missed.
    fn disordered(&self, tenure: &Tenure, promise: Promise, complain: &mut impl FnMut(String)) {
        let mut last = BTreeMap::new();
        for got in tenure.got.iter().filter(|got| !got.retained) {
            let publish = &self.publishes[got.publish];
            if !publish.confirmed || publish.may_be_doubled() && !(promise.dedupe && self.losses.is_empty()) {
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
    fn missing(&self, tenure: &Tenure, complain: &mut impl FnMut(String)) {
        let Some(began) = tenure.began.filter(|_| tenure.is_live()) else { return };
        let got: BTreeSet<usize> = tenure.got.iter().map(|got| got.publish).collect();
        for (number, publish) in self.publishes.iter().enumerate() {
            if !publish.is_accepted()
                || publish.called <= began
                || !tenure.wants(publish)
                || got.contains(&number)
            {
                continue;
            }
            // The messages of the same publisher and topic that show where it is missing: those that were sent once.
            let neighbours = || {
                tenure.got.iter().filter(|_| !tenure.slow).filter(|got| {
                    let other = &self.publishes[got.publish];
                    let same = (other.client, other.topic) == (publish.client, publish.topic);
                    same && other.confirmed && !other.may_be_doubled() && !got.retained
                })
            };
            let before = neighbours().filter(|got| got.publish < number).map(|got| got.at).max();
            let after = neighbours().filter(|got| got.publish > number).map(|got| got.at).min();
            let from = before.unwrap_or(began).max(publish.called);
            let told =
                tenure.gaps.iter().any(|(at, _)| *at >= from && after.is_none_or(|after| *at <= after));
            if !told {
                complain(format!("never got {number}, and no gap was told between its neighbours"));
            }
        }
    }

    /// A gap has a reason that this run can have.
    fn unfounded_gaps(&self, tenure: &Tenure, promise: Promise, complain: &mut impl FnMut(String)) {
        for (at, reason) in &tenure.gaps {
            let founded = match reason.as_str() {
                "unsupported" => !promise.recover,
                "epoch" => promise.recover && self.losses.iter().any(|loss| loss <= at),
                _ => false,
            };
            if !founded {
                complain(format!("was told of a gap, {reason}, that cannot be"));
            }
        }
    }
}
