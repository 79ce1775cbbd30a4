//! A message as frames are made of it, whether it was published just now or kept.

use std::sync::Arc;

use bytes::Bytes;
use nolag_protocol::features::Feature;
use nolag_protocol::frame::{Data, Message};

use super::address::{Delivery, Origin};
use crate::store::Record;

/// A message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope<'a> {
    /// Where it was published, and by what right.
    pub(crate) origin: Origin<'a>,
    /// The payload, as receivers get it.
    pub(crate) data: &'a [u8],
    /// Its id, when messages are recorded.
    pub(crate) msg_id: Option<&'a str>,
    /// The publisher.
    pub(crate) from: &'a str,
    /// What kind of publisher.
    pub(crate) from_type: &'a str,
    /// When it arrived, in ms since 1970.
    pub(crate) timestamp: u64,
    /// The publish's `traceparent`.
    pub(crate) trace: Option<&'a str>,
}

/// Why a message comes to a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coming {
    /// It was published just now.
    Live,
    /// It was retained, and a subscribe brings it.
    Retained,
    /// It was missed, or is history.
    Replayed,
    /// It is handed to a member of a group, which has to acknowledge it.
    Handed {
        /// It may have been handed out before.
        again: bool,
    },
}

impl Envelope<'_> {
    /// The frame for receivers with the interest of the delivery.
    pub(super) fn frame(&self, seq: u64, extended: bool, delivery: &Delivery<'_>, coming: Coming) -> Bytes {
        let source = delivery.source_topic();
        let features = delivery.interest.features;
        let handed = matches!(coming, Coming::Handed { .. });
        let message = Message {
            topic: &delivery.interest.topic,
            data: Data::new(self.data),
            msg_id: self.msg_id,
            // Where messages are redelivered others have nothing to acknowledge (features 6).
            requires_ack: (handed || (self.msg_id.is_some() && !features.has(Feature::Redeliver)))
                .then_some(true),
            is_replay: (coming == Coming::Replayed).then_some(true),
            from: Some(self.from),
            from_type: Some(self.from_type),
            filter: delivery.filter.as_deref(),
            timestamp: extended.then_some(self.timestamp),
            source_topic: source.as_deref().filter(|_| extended),
            retained: (coming == Coming::Retained && extended).then_some(true),
            seq: features.has(Feature::Recover).then_some(seq),
            redelivered: (coming == Coming::Handed { again: true }).then_some(true),
            trace: self.trace.filter(|_| features.has(Feature::Trace)),
        };
        // Room for the envelope, so that the frame is not moved while it grows.
        let mut frame = Vec::with_capacity(self.data.len() + 320);
        message.encode(&mut frame);
        frame.into()
    }

    /// What is kept of it. What it shares with `like` is not stored twice.
    pub(super) fn record(&self, seq: u64, silent: Option<&str>, like: Option<&Record>) -> Record {
        let shared = |text: &str, known: Option<&Arc<str>>| match known {
            Some(known) if **known == *text => known.clone(),
            _ => Arc::from(text),
        };
        Record {
            seq,
            timestamp: self.timestamp,
            base: shared(self.origin.base, like.map(|like| &like.base)),
            topic: shared(self.origin.topic, like.map(|like| &like.topic)),
            exact: self.origin.exact,
            key: self.origin.key.map(|key| shared(key, like.and_then(|like| like.key.as_ref()))),
            reaches_below: self.origin.reaches_below,
            // Copied: a slice would keep the whole buffer that the frame was read into.
            data: Bytes::copy_from_slice(self.data),
            msg_id: self.msg_id.map(Arc::from),
            from: shared(self.from, like.map(|like| &like.from)),
            from_type: shared(self.from_type, like.map(|like| &like.from_type)),
            silent: silent.map(Arc::from),
            trace: self.trace.map(Arc::from),
        }
    }
}

impl<'a> From<&'a Record> for Envelope<'a> {
    fn from(record: &'a Record) -> Self {
        Self {
            origin: Origin {
                base: &record.base,
                topic: &record.topic,
                exact: record.exact,
                key: record.key.as_deref(),
                reaches_below: record.reaches_below,
            },
            data: &record.data,
            msg_id: record.msg_id.as_deref(),
            from: &record.from,
            from_type: &record.from_type,
            timestamp: record.timestamp,
            trace: record.trace.as_deref(),
        }
    }
}
