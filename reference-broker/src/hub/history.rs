//! What was published lately, so that a subscription can continue where it stopped (features 2).
//!
//! Bounded three ways: messages of a base, their age, and the bytes of all. What is dropped leaves the number of the newest
//! one dropped behind, per base, so that a gap is told where there is one and nowhere else.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::address::{Interest, Origin, Place};
use crate::store::Record;

/// What a message costs beyond its payload, about.
const MESSAGE_OVERHEAD: usize = 256;

/// How many bases without messages are remembered for what they dropped.
const MAX_EMPTY: usize = 100_000;

/// The bounds of a history.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Messages of one base.
    pub(super) size: usize,
    /// Age of a message.
    pub(super) ttl: Duration,
    /// Bytes over all bases.
    pub(super) bytes: usize,
}

/// The messages that are kept, by number and by base.
#[derive(Debug)]
pub(super) struct History {
    bounds: Bounds,
    bytes: usize,
    by_seq: BTreeMap<u64, (Instant, Arc<Record>)>,
    by_base: BTreeMap<Arc<str>, Log>,
    empty: usize,
    /// The newest one dropped of all bases that are not remembered any more.
    forgotten: u64,
}

/// One base's.
#[derive(Debug, Default)]
struct Log {
    records: VecDeque<Arc<Record>>,
    /// The newest one dropped.
    dropped: u64,
    /// The newest one dropped that had a filter key by which it could reach one level below.
    dropped_keyed: u64,
}

impl History {
    /// An empty one; messages with numbers up to `forgotten` may have been dropped before.
    pub(super) fn new(bounds: Bounds, forgotten: u64) -> Self {
        Self { bounds, bytes: 0, by_seq: BTreeMap::new(), by_base: BTreeMap::new(), empty: 0, forgotten }
    }

    /// Whether anything is kept at all.
    pub(super) fn is_on(&self) -> bool {
        self.bounds.size > 0
    }

    pub(super) fn len(&self) -> usize {
        self.by_seq.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number below which nothing is kept.
    pub(super) fn first(&self) -> Option<u64> {
        self.by_seq.first_key_value().map(|(seq, _)| *seq)
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Arc<Record>> {
        self.by_seq.get(&seq).map(|(_, record)| record)
    }

    /// The newest message of a base.
    pub(super) fn newest(&self, base: &str) -> Option<&Record> {
        self.by_base.get(base)?.records.back().map(|record| &**record)
    }

    /// Keeps a message that arrived at `at`; numbers and times rise.
    pub(super) fn push(&mut self, record: Arc<Record>, at: Instant) {
        if !self.is_on() {
            return;
        }
        self.bytes += cost(&record);
        self.by_seq.insert(record.seq, (at, record.clone()));
        let forgotten = self.forgotten;
        let log = self.by_base.entry(record.base.clone()).or_insert_with(|| {
            self.empty += 1;
            // It may have been known before, and have dropped as much.
            Log { dropped: forgotten, dropped_keyed: forgotten, ..Log::default() }
        });
        if log.records.is_empty() {
            self.empty -= 1;
        }
        log.records.push_back(record);
        if log.records.len() > self.bounds.size
            && let Some(oldest) = log.drop_oldest()
        {
            self.bytes -= cost(&oldest);
            self.by_seq.remove(&oldest.seq);
        }
        self.expire(at);
    }

    /// Drops what is too old at this time, or too much.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((_, (at, record))) = self.by_seq.first_key_value()
            && (self.bytes > self.bounds.bytes || now.saturating_duration_since(*at) >= self.bounds.ttl)
        {
            let base = record.base.clone();
            // The oldest of all is the oldest of its base.
            self.by_seq.pop_first();
            if let Some(log) = self.by_base.get_mut(&base)
                && let Some(oldest) = log.drop_oldest()
            {
                self.bytes -= cost(&oldest);
                self.empty += usize::from(log.records.is_empty());
            }
        }
        if self.empty > 2 * MAX_EMPTY {
            self.forget_half();
        }
    }

    /// Forgets those bases without messages that have dropped none for the longest.
    fn forget_half(&mut self) {
        let empty = self.by_base.values().filter(|log| log.records.is_empty());
        let mut dropped: Vec<u64> = empty.map(|log| log.dropped).collect();
        let middle = dropped.len() / 2;
        let (_, limit, _) = dropped.select_nth_unstable(middle);
        self.forgotten = self.forgotten.max(*limit);
        let limit = *limit;
        self.by_base.retain(|_, log| !log.records.is_empty() || log.dropped > limit);
        self.empty = self.by_base.values().filter(|log| log.records.is_empty()).count();
    }

    /// Whether a message of the interest's topics with a higher number than `seq` was dropped, or may have been.
    pub(super) fn has_dropped(&self, interest: &Interest, seq: u64) -> bool {
        let mut known = false;
        for (base, log) in self.logs(interest) {
            known |= *base == interest.base;
            // Whether a base was a rule's own topic is not remembered; it is named otherwise than topics below others.
            let dropped = match interest.place(base) {
                Place::Within => log.dropped,
                Place::Above => log.dropped_keyed,
                Place::Elsewhere => continue,
            };
            if dropped > seq {
                return true;
            }
        }
        // A pattern, or a topic with others below, may have had bases that are forgotten.
        let whole = known && !interest.wildcard && !interest.descends;
        !whole && self.forgotten > seq
    }

    /// The messages above a number that an interest wants, in no order.
    pub(super) fn wanted(&self, interest: &Interest, seq: u64) -> impl Iterator<Item = &Arc<Record>> {
        self.logs(interest).flat_map(move |(_, log)| {
            let from = log.records.partition_point(|record| record.seq <= seq);
            log.records.range(from..).filter(|record| interest.wants(&origin(record)).is_some())
        })
    }

    /// The newest `count` messages that an interest wants, oldest first.
    pub(super) fn newest_wanted(
        &self,
        interest: &Interest,
        count: usize,
        wants: impl Fn(&Record) -> bool,
    ) -> Vec<Arc<Record>> {
        let of_logs = self.logs(interest).flat_map(|(_, log)| {
            let wanted = |record: &&Arc<Record>| interest.wants(&origin(record)).is_some() && wants(record);
            log.records.iter().rev().filter(wanted).take(count)
        });
        let mut found: Vec<Arc<Record>> = of_logs.cloned().collect();
        found.sort_unstable_by_key(|record| record.seq);
        found.split_off(found.len().saturating_sub(count))
    }

    /// The bases that an interest may concern: those that begin with its levels before the first wildcard, and the one above
    /// them, whose filter keys are one more level.
    fn logs(&self, interest: &Interest) -> impl Iterator<Item = (&Arc<str>, &Log)> {
        let prefix = interest.fixed_levels();
        let above = prefix.rsplit_once('/').and_then(|(above, _)| self.by_base.get_key_value(above));
        let at = self.by_base.get_key_value(prefix);
        let start = format!("{prefix}/");
        let deep = interest.wildcard || interest.descends;
        let below = deep.then(|| self.by_base.range::<str, _>((Bound::Included(&*start), Bound::Unbounded)));
        let below = below.into_iter().flatten().take_while(move |(base, _)| base.starts_with(&start));
        above.into_iter().chain(at).chain(below)
    }
}

impl Log {
    fn drop_oldest(&mut self) -> Option<Arc<Record>> {
        let oldest = self.records.pop_front()?;
        self.dropped = oldest.seq;
        if oldest.key.is_some() && oldest.reaches_below {
            self.dropped_keyed = oldest.seq;
        }
        if self.records.capacity() > 64 && self.records.len() < self.records.capacity() / 4 {
            self.records.shrink_to(self.records.len() * 2);
        }
        Some(oldest)
    }
}

fn cost(record: &Record) -> usize {
    record.data.len() + MESSAGE_OVERHEAD
}

fn origin(record: &Record) -> Origin<'_> {
    super::Envelope::from(record).origin
}
