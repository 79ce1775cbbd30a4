//! Kept messages on their way to one subscription: each becomes a frame when the connection has taken those before it, so that a
//! replay is no backlog (features 2).

use std::sync::Arc;
use std::vec::IntoIter;

use bytes::Bytes;
use nolag_protocol::frame::{ReplayEnd, ReplayStart};

use super::address::Interest;
use super::envelope::{Coming, Envelope};
use crate::store::Record;

/// The frames of kept messages.
pub(super) struct Replay {
    interest: Arc<Interest>,
    extended: bool,
    coming: Coming,
    start: Option<Bytes>,
    records: IntoIter<Arc<Record>>,
    end: Option<Bytes>,
}

impl Replay {
    /// Retained messages, as a subscribe brings them.
    pub(super) fn retained(interest: &Arc<Interest>, extended: bool, records: Vec<Arc<Record>>) -> Self {
        Self {
            interest: interest.clone(),
            extended,
            coming: Coming::Retained,
            start: None,
            records: records.into_iter(),
            end: None,
        }
    }

    /// What was missed, or history; oldest first, between a start and an end.
    pub(super) fn framed(interest: &Arc<Interest>, extended: bool, records: Vec<Arc<Record>>) -> Self {
        let (topic, count) = (Some(&*interest.topic), Some(records.len() as u64));
        let start = records.first().zip(records.last()).map(|(oldest, newest)| {
            let (oldest_timestamp, newest_timestamp) = (Some(oldest.timestamp), Some(newest.timestamp));
            ReplayStart { topic, count, oldest_timestamp, newest_timestamp }.to_vec().into()
        });
        let end = start.is_some().then(|| ReplayEnd { topic, count, replayed: count }.to_vec().into());
        Self {
            interest: interest.clone(),
            extended,
            coming: Coming::Replayed,
            start,
            records: records.into_iter(),
            end,
        }
    }

    /// How many messages it brings.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }
}

impl Iterator for Replay {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if let Some(start) = self.start.take() {
            return Some(start);
        }
        let frame = self.records.by_ref().find_map(|record| {
            let message = Envelope::from(&*record);
            // What it wanted when the replay began it wants now: interests do not change.
            let delivery = self.interest.wants(&message.origin)?;
            Some(message.frame(record.seq, self.extended, &delivery, self.coming))
        });
        frame.or_else(|| self.end.take())
    }
}
