//! The last retained message of each routing key (wire protocol 15.5), in memory, bounded in number and bytes.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use tokio::time::Instant;

use super::Publication;
use super::address::{Interest, Origin};
use crate::outgoing::ConnectionId;

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
    base: String,
    topic: String,
    exact: bool,
    key: Option<String>,
    reaches_below: bool,
    data: Bytes,
    msg_id: Option<String>,
    from: String,
    from_type: String,
    timestamp: u64,
    silent: Option<ConnectionId>,
}

impl Kept {
    pub(super) fn origin(&self) -> Origin<'_> {
        Origin {
            base: &self.base,
            topic: &self.topic,
            exact: self.exact,
            key: self.key.as_deref(),
            reaches_below: self.reaches_below,
        }
    }

    pub(super) fn silent(&self) -> Option<ConnectionId> {
        self.silent
    }

    pub(super) fn publication(&self) -> Publication<'_> {
        Publication {
            origin: self.origin(),
            data: &self.data,
            msg_id: self.msg_id.as_deref(),
            from: &self.from,
            from_type: &self.from_type,
            timestamp: self.timestamp,
            silent: self.silent,
            retain: None,
        }
    }
}

impl Retained {
    pub(super) fn new(max: usize) -> Self {
        Self { max, bytes: 0, by_key: BTreeMap::new(), ages: BTreeMap::new(), next_age: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Keeps a message until then in the place of the one before; without a time it only clears.
    pub(super) fn set(&mut self, message: &Publication<'_>, until: Option<Instant>) {
        let origin = &message.origin;
        let routing_key = match origin.key {
            Some(key) => format!("{}/{key}", origin.base),
            None => origin.base.to_owned(),
        };
        self.remove(&routing_key);
        let Some(until) = until else { return };
        let age = self.next_age;
        self.next_age += 1;
        self.bytes += message.data.len();
        self.ages.insert(age, routing_key.clone());
        self.by_key.insert(
            routing_key,
            Kept {
                age,
                until,
                base: origin.base.to_owned(),
                topic: origin.topic.to_owned(),
                exact: origin.exact,
                key: origin.key.map(str::to_owned),
                reaches_below: origin.reaches_below,
                // Copied: a slice would keep the whole buffer that the frame was read into.
                data: Bytes::copy_from_slice(message.data),
                msg_id: message.msg_id.map(str::to_owned),
                from: message.from.to_owned(),
                from_type: message.from_type.to_owned(),
                timestamp: message.timestamp,
                silent: message.silent,
            },
        );
        let now = Instant::now();
        while let Some((_, oldest)) = self.ages.first_key_value()
            && (self.by_key.len() > self.max
                || self.bytes > MAX_BYTES
                || self.by_key.get(oldest).is_some_and(|kept| kept.until <= now))
        {
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, routing_key: &str) {
        if let Some(kept) = self.by_key.remove(routing_key) {
            self.ages.remove(&kept.age);
            self.bytes -= kept.data.len();
        }
    }

    /// The messages that an interest may want, in the order of their keys; whether it does is for
    /// [`Interest::wants`] to say.
    pub(super) fn matching(&self, interest: &Interest, now: Instant) -> impl Iterator<Item = &Kept> {
        // Every routing key that could be wanted begins with the levels before the first wildcard.
        let levels = interest.base.split('/').enumerate();
        let fixed: usize = levels
            .take_while(|(index, level)| {
                !interest.wildcard || *index < interest.app_levels || !matches!(*level, "+" | "#")
            })
            .map(|(_, level)| level.len() + 1)
            .sum();
        let prefix = &interest.base[..fixed.saturating_sub(1)];
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
