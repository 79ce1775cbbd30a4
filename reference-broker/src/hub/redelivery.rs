//! What comes of groups that redeliver: acknowledgements, connections that end, time that passes (features 6).

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use super::envelope::{Coming, Envelope};
use super::groups::{Changed, Effects, Handed};
use super::{Hub, Publication, State};
use crate::outgoing::ConnectionId;
use crate::store::{Change, Record};

impl Hub {
    /// A connection has dealt with these messages.
    pub(crate) fn acknowledge<'a>(
        &self,
        connection: ConnectionId,
        msg_ids: impl IntoIterator<Item = &'a str>,
    ) {
        let mut state = self.state.lock();
        for msg_id in msg_ids {
            state.table.groups.acknowledge(connection, msg_id);
        }
        self.carry_out(&mut state);
    }

    /// A connection without subscriptions has ended: what it holds goes to others. `lost`: it broke off, by no will of its own or
    /// the broker's.
    pub(crate) fn end(&self, connection: ConnectionId, lost: bool) {
        let mut state = self.state.lock();
        state.table.groups.end(connection, lost);
        self.carry_out(&mut state);
    }

    /// Does what is due, and tells when something will be.
    pub(crate) fn tick(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        state.table.groups.tick();
        self.carry_out(&mut state);
        state.table.groups.next_due()
    }

    /// Rings when something will be due sooner than [`Hub::tick`] said.
    pub(crate) fn clock(&self) -> Arc<Notify> {
        self.state.lock().table.groups.clock()
    }

    /// Gives the members of groups that have changed what waits there.
    pub(super) fn serve_changed(&self, state: &mut State) {
        for Changed { group, revived } in state.table.groups.changed() {
            if let Some((interest, after)) = revived {
                for record in state.history.wanted(&interest, after) {
                    state.table.groups.offer_kept(group, record);
                }
            }
            state.table.groups.serve(group);
        }
        self.carry_out(state);
    }

    /// Carries out what has come of the calls of groups.
    pub(super) fn carry_out(&self, state: &mut State) {
        // Giving a message up may publish it elsewhere, and that comes to groups again.
        while let Some(Effects { handed, marks, exhausted, lost }) = state.table.groups.effects() {
            self.metrics.delivered(handed.len() as u64);
            for message in handed {
                self.hand(&message);
            }
            for mark in marks.into_iter().filter(|_| self.store.is_durable()) {
                self.store.put(Change { mark: Some(mark), ..Change::default() }, None);
            }
            self.metrics.dropped_for("redeliver_expired", lost);
            self.metrics.dropped_for("redeliver_exhausted", exhausted.len() as u64);
            for record in exhausted {
                self.bury(state, &record);
            }
        }
    }

    fn hand(&self, Handed { outgoing, interest, record, msg_id, again }: &Handed) {
        let (message, coming) = if interest.worker.is_some() {
            let message = Envelope { msg_id: Some(msg_id), ..Envelope::from(&**record) };
            (message, Coming::Handed { again: *again })
        } else {
            (Envelope::from(&**record), Coming::Live)
        };
        // It was chosen because it wants the message.
        if let Some(delivery) = interest.wants(&message.origin) {
            outgoing.push(message.frame(record.seq, self.extended, &delivery, coming));
        }
    }

    /// Publishes a message that was given up where such messages go, if there is a place; none goes from there to there.
    fn bury(&self, state: &mut State, record: &Record) {
        let Some(name) = &self.dead_letter_topic else { return };
        let (base, topic) = (beside(&record.base, name), beside(&record.topic, name));
        if *base == *record.base {
            return;
        }
        let msg_id = record.msg_id.as_ref().map(|_| Uuid::new_v4().to_string());
        let message = Envelope::from(record);
        let (began, date) = self.began;
        let publication = Publication {
            message: Envelope {
                origin: super::Origin { base: &base, topic: &topic, reaches_below: false, ..message.origin },
                msg_id: msg_id.as_deref(),
                timestamp: u64::try_from((date + began.elapsed()).as_millis()).unwrap_or(u64::MAX),
                ..message
            },
            keep: true,
            msg_ref: None,
            silent: None,
            silent_client: None,
            retain: None,
        };
        if self.publish_now(state, &publication, None).is_err() {
            tracing::warn!(topic, "the store is full: a message that nobody acknowledged is not kept");
        }
    }
}

/// A topic with another last level.
fn beside(topic: &str, last: &str) -> String {
    match topic.rsplit_once('/') {
        Some((above, _)) => format!("{above}/{last}"),
        None => last.to_owned(),
    }
}
