//! Who is subscribed to what, and how a publish finds them (wire protocol 13 to 16).
//!
//! All publishes and subscriptions pass one lock. Under it a publish walks the tables, encodes one frame for
//! each distinct subscription string that it reaches, and pushes that to the receivers' queues; nothing waits
//! and nothing is written there. So every receiver sees the publishes of the broker in one order, and a
//! subscription's reply stands before its first message.
//!
//! The cost of a publish is that of its receivers: a topic is found by its name, its ancestors by theirs, and
//! wildcard patterns by walking the levels.
//!
//! - [`address`]: what a subscription and a message are to each other
//! - [`table`]: subscriptions by base and by pattern
//! - [`members`]: those that one place of a table holds: everybody, and groups that share
//! - [`retained`]: the last message of each routing key

mod address;
mod members;
mod retained;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nolag_protocol::frame::{Data, Message};
use parking_lot::Mutex;
use tokio::time::Instant;

pub(crate) use address::{Interest, Origin};

use crate::config::{Profile, Settings};
use crate::metrics::Metrics;
use crate::outgoing::{ConnectionId, Outgoing};
use members::SubscriptionId;
use retained::Retained;
use table::Table;

/// The subscriptions of all connections, and the retained messages.
pub(crate) struct Hub {
    extended: bool,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

struct State {
    table: Table,
    retained: Retained,
    next_id: SubscriptionId,
}

/// A subscription in force. [`Hub::unsubscribe`] takes it out.
#[derive(Debug)]
pub(crate) struct Subscription {
    id: SubscriptionId,
    pub(crate) interest: Arc<Interest>,
}

/// A message on its way to the subscribers.
pub(crate) struct Publication<'a> {
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
    /// The connection that shall not get it back.
    pub(crate) silent: Option<ConnectionId>,
    /// Keep it for later subscribers for so long.
    pub(crate) retain: Option<Duration>,
}

impl Publication<'_> {
    /// The frame for receivers that subscribed with `topic`.
    fn frame(&self, extended: bool, delivery: &address::Delivery<'_>, retained: bool) -> Bytes {
        let source = delivery.source_topic();
        let message = Message {
            topic: &delivery.interest.topic,
            data: Data::new(self.data),
            msg_id: self.msg_id,
            requires_ack: self.msg_id.map(|_| true),
            is_replay: None,
            from: Some(self.from),
            from_type: Some(self.from_type),
            filter: delivery.filter.as_deref(),
            timestamp: extended.then_some(self.timestamp),
            source_topic: source.as_deref().filter(|_| extended),
            retained: (retained && extended).then_some(true),
            seq: None,
            redelivered: None,
            trace: None,
        };
        // Room for the envelope, so that the frame is not moved while it grows.
        let mut frame = Vec::with_capacity(self.data.len() + 320);
        message.encode(&mut frame);
        frame.into()
    }
}

impl Hub {
    pub(crate) fn new(settings: &Settings, metrics: Arc<Metrics>) -> Self {
        let state =
            State { table: Table::default(), retained: Retained::new(settings.retain_max), next_id: 1 };
        Self { extended: settings.profile == Profile::Extended, metrics, state: Mutex::new(state) }
    }

    /// Puts a subscription in the place of `previous`, if there is one; then queues the reply and the retained
    /// messages that it has a right to.
    ///
    /// `fresh` restricts those to what `previous` did not see already, as after a change of filters.
    pub(crate) fn subscribe(
        &self,
        outgoing: &Arc<Outgoing>,
        interest: Interest,
        previous: Option<Subscription>,
        fresh: bool,
        reply: Bytes,
    ) -> Subscription {
        let interest = Arc::new(interest);
        let mut state = self.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        match &previous {
            Some(previous) => state.table.remove(&previous.interest, previous.id),
            None => {
                self.metrics.subscriptions.inc();
            }
        }
        state.table.insert(&interest, id, outgoing);
        outgoing.push(reply);
        let seen = previous.filter(|_| fresh).map(|previous| previous.interest);
        for kept in state.retained.matching(&interest, Instant::now()) {
            let before = seen.as_ref().is_some_and(|seen| seen.wants(&kept.origin()).is_some());
            let suppressed = kept.silent() == Some(outgoing.id());
            if !before
                && !suppressed
                && let Some(delivery) = interest.wants(&kept.origin())
            {
                outgoing.push(kept.publication().frame(self.extended, &delivery, true));
                self.metrics.delivered(1);
            }
        }
        Subscription { id, interest }
    }

    /// Moves a subscription whose grants map it elsewhere now.
    pub(crate) fn relocate(
        &self,
        outgoing: &Arc<Outgoing>,
        interest: Interest,
        previous: &Subscription,
    ) -> Subscription {
        let interest = Arc::new(interest);
        let mut state = self.state.lock();
        state.table.remove(&previous.interest, previous.id);
        state.table.insert(&interest, previous.id, outgoing);
        Subscription { id: previous.id, interest }
    }

    /// Ends a subscription: nothing is queued for it any more when this returns.
    pub(crate) fn unsubscribe(&self, subscription: &Subscription) {
        self.state.lock().table.remove(&subscription.interest, subscription.id);
        self.metrics.subscriptions.dec();
    }

    /// Queues a message for everybody who wants it, after `reply` for its publisher. Returns how many got it.
    pub(crate) fn publish(&self, message: &Publication<'_>, reply: Option<(&Outgoing, Bytes)>) -> u64 {
        let mut state = self.state.lock();
        if let Some((publisher, reply)) = reply {
            publisher.push(reply);
        }
        let delivered = state.table.deliver(&message.origin, message.silent, |delivery| {
            message.frame(self.extended, delivery, false)
        });
        if let Some(ttl) = message.retain {
            let clears = self.extended && message.data == nolag_protocol::msgpack::NIL;
            let until = Instant::now() + ttl;
            state.retained.set(message, (!clears).then_some(until));
        }
        self.metrics.delivered(delivered);
        delivered
    }

    /// How many retained messages there are.
    pub(crate) fn retained(&self) -> usize {
        self.state.lock().retained.len()
    }
}
