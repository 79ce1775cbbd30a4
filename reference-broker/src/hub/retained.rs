//! The last retained message of each routing key (wire protocol 15.5), in memory, bounded in number and bytes.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use tokio::time::Instant;

use super::address::{Interest, Origin};
use crate::outgoing::ConnectionId;
use crate::store::Record;

/// How many bytes of payload are kept, oldest out first. The number of messages is a setting; this bounds what
/// they may weigh together.
const MAX_BYTES: usize = 256 * 1024 * 1024;

/// The messages, oldest out first.
#[derive(Debug)]
pub(super) struct Retained {
    max: usize,
    bytes: usize,
    by_key: BTreeMap<String, Kept>,
    /// Routing keys by age.
    ages: BTreeMap<u64, String>,
    next_age: u64,
}

/// One retained message.
#[derive(Debug)]
pub(super) struct Kept {
    age: u64,
    until: Instant,
    pub(super) record: Arc<Record>,
    /// The connection that shall not get it back.
    pub(super) silent: Option<ConnectionId>,
}

/// What a retained message is kept under: its base, and its filter key as one more level.
pub(super) fn routing_key(origin: &Origin<'_>) -> String {
    match origin.key {
        Some(key) => format!("{}/{key}", origin.base),
        None => origin.base.to_owned(),
    }
}

impl Retained {
    pub(super) fn new(max: usize) -> Self {
        Self { max, bytes: 0, by_key: BTreeMap::new(), ages: BTreeMap::new(), next_age: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Keeps a message until then in the place of the one before, and tells which keys lost theirs for it.
    pub(super) fn set(
        &mut self,
        now: Instant,
        key: String,
        record: Arc<Record>,
        until: Instant,
        silent: Option<ConnectionId>,
    ) -> Vec<String> {
        self.remove(&key);
        let age = self.next_age;
        self.next_age += 1;
        self.bytes += record.data.len();
        self.ages.insert(age, key.clone());
        self.by_key.insert(key, Kept { age, until, record, silent });
        let mut lost = Vec::new();
        while let Some((_, oldest)) = self.ages.first_key_value()
            && (self.by_key.len() > self.max
                || self.bytes > MAX_BYTES
                || self.by_key.get(oldest).is_some_and(|kept| kept.until <= now))
        {
            let oldest = oldest.clone();
            self.remove(&oldest);
            lost.push(oldest);
        }
        lost
    }

    /// Keeps none under this key.
    pub(super) fn clear(&mut self, key: &str) {
        self.remove(key);
    }

    fn remove(&mut self, routing_key: &str) {
        if let Some(kept) = self.by_key.remove(routing_key) {
            self.ages.remove(&kept.age);
            self.bytes -= kept.record.data.len();
        }
    }

    /// The messages that an interest may want, in the order of their keys; whether it does is for
    /// [`Interest::wants`] to say.
    pub(super) fn matching(&self, interest: &Interest, now: Instant) -> impl Iterator<Item = &Kept> {
        let prefix = interest.fixed_levels();
        let at = self.by_key.get_key_value(prefix);
        let below = format!("{prefix}/");
        let below = self
            .by_key
            .range::<str, _>((Bound::Included(&*below), Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(&below))
            .collect::<Vec<_>>();
        at.into_iter().chain(below).map(|(_, kept)| kept).filter(move |kept| kept.until > now)
    }
}
