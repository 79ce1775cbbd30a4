//! Who is subscribed to what, how a publish finds them (wire protocol 13 to 16), and what is kept of it (features 2, 3).
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
//! - [`members`]: those that one place of a table holds: everybody, and groups
//! - [`groups`]: subscriptions that share messages; [`ledger`]: what those that redeliver still owe; [`redelivery`]: what comes of it
//! - [`envelope`]: a message, and its frames
//! - [`retained`]: the last message of each routing key
//! - [`history`]: the messages of the last minutes; [`replay`]: on their way to one subscription
//! - [`repeats`]: which publishes were accepted lately

mod address;
mod envelope;
mod groups;
mod history;
mod ledger;
mod members;
mod redelivery;
mod repeats;
mod replay;
mod retained;
mod table;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nolag_protocol::codes;
use nolag_protocol::features::Feature;
use nolag_protocol::frame::{ErrorReply, Position, Published};
use parking_lot::Mutex;
use tokio::time::Instant;

pub(crate) use address::{Interest, Origin, Worker};
pub(crate) use envelope::Envelope;

use crate::clock::later;
use crate::config::{Profile, Settings};
use crate::metrics::Metrics;
use crate::outgoing::{ConnectionId, Outgoing};
use crate::store::{Accepted, Change, Done, Full, Kept, Record, Retain, Store};
use envelope::Coming;
use groups::{Groups, Terms};
use history::{Bounds, History};
use members::SubscriptionId;
use repeats::Repeats;
use replay::Replay;
use retained::Retained;
use table::Table;

/// The subscriptions of all connections, and the messages that are kept.
pub(crate) struct Hub {
    extended: bool,
    recover_limit: usize,
    metrics: Arc<Metrics>,
    store: Arc<dyn Store>,
    epoch: Arc<str>,
    dead_letter_topic: Option<String>,
    /// A moment, and the time since 1970 then.
    began: (Instant, Duration),
    state: Mutex<State>,
}

struct State {
    table: Table,
    retained: Retained,
    history: History,
    repeats: Repeats,
    /// The newest number given out.
    seq: u64,
    /// The store was told that nothing below is in the history.
    trimmed: u64,
    next_id: SubscriptionId,
}

/// A subscription in force. [`Hub::unsubscribe`] takes it out.
#[derive(Debug)]
pub(crate) struct Subscription {
    id: SubscriptionId,
    pub(crate) interest: Arc<Interest>,
}

/// What a new subscription begins with.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Join<'a> {
    /// Retained messages only as far as the previous subscription did not see them already, as after a change of filters.
    pub(crate) fresh: bool,
    /// Continue after this position.
    pub(crate) recover: Option<Position<'a>>,
    /// Begin with so many kept messages, where it does not continue.
    pub(crate) history: Option<usize>,
    /// Whose it is: what an actor's client instance published without echo does not come back to it.
    pub(crate) actor: &'a str,
    /// The client instance.
    pub(crate) client_id: Option<&'a str>,
}

/// How a subscription began (features 2).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Joined<'a> {
    /// The run of numbers.
    pub(crate) epoch: &'a str,
    /// The newest number.
    pub(crate) seq: u64,
    /// Whether it continues, if that was asked for.
    pub(crate) recovered: Option<bool>,
    /// Why it does not.
    pub(crate) gap: Option<&'static str>,
}

/// A message on its way to the subscribers.
pub(crate) struct Publication<'a> {
    /// What they get.
    pub(crate) message: Envelope<'a>,
    /// Keep it in the history.
    pub(crate) keep: bool,
    /// Recognise it by this reference when it is published again.
    pub(crate) msg_ref: Option<&'a str>,
    /// The connection that shall not get it back.
    pub(crate) silent: Option<ConnectionId>,
    /// The client instance that shall not get it back later.
    pub(crate) silent_client: Option<&'a str>,
    /// Keep it for later subscribers for so long.
    pub(crate) retain: Option<Duration>,
}

/// A publisher that is to be answered.
#[derive(Clone, Copy)]
pub(crate) struct Reply<'a> {
    /// Its connection.
    pub(crate) to: &'a Arc<Outgoing>,
    /// As it was sent.
    pub(crate) topic: &'a str,
    /// The publish's.
    pub(crate) msg_ref: &'a str,
    /// Whether to tell how well the message is kept.
    pub(crate) with_level: bool,
}

impl Reply<'_> {
    fn published(&self, metrics: &Metrics, duplicate: bool, level: Option<&str>) {
        self.to.push(metrics.encoded(Published {
            topic: self.topic,
            msg_ref: Some(self.msg_ref),
            duplicate: duplicate.then_some(true),
            level: level.filter(|_| self.with_level),
        }));
    }

    /// The same, once the store has synced.
    fn once_synced(&self, metrics: &Arc<Metrics>, duplicate: bool, level: &'static str) -> Done {
        let (to, topic, msg_ref) = (self.to.clone(), self.topic.to_owned(), self.msg_ref.to_owned());
        let (metrics, with_level) = (metrics.clone(), self.with_level);
        Box::new(move |synced| {
            let reply = Reply { to: &to, topic: &topic, msg_ref: &msg_ref, with_level };
            match synced {
                Ok(()) => reply.published(&metrics, duplicate, Some(level)),
                Err(Full) => {
                    metrics.rejected(codes::STORE_FULL.name);
                    to.push(metrics.encoded(ErrorReply {
                        code: codes::STORE_FULL.code,
                        error: codes::STORE_FULL.name,
                        hint: None,
                        detail: None,
                        topic: Some(&topic),
                        app: None,
                        room_id: None,
                        lobby_id: None,
                        max_size_bytes: None,
                        msg_ref: Some(&msg_ref),
                    }));
                }
            }
        })
    }
}

impl Hub {
    /// A hub that goes on with what a store has kept; `date` is the time since 1970.
    pub(crate) fn new(
        settings: &Settings,
        metrics: Arc<Metrics>,
        store: Arc<dyn Store>,
        kept: Kept,
        date: Duration,
    ) -> Self {
        let now = Instant::now();
        let epoch: Arc<str> = kept.epoch.into();
        let mut groups = Groups::new(Terms {
            redeliver_max: settings.redeliver_max,
            remembered: settings.history_ttl,
            before: kept.last,
            epoch: epoch.clone(),
        });
        groups.restore(kept.marks);
        let mut state = State {
            table: Table::new(groups),
            retained: Retained::new(settings.retain_max),
            history: History::new(
                Bounds {
                    size: settings.history_size,
                    ttl: settings.history_ttl,
                    bytes: settings.history_max_bytes,
                },
                kept.floor.saturating_sub(1),
            ),
            repeats: Repeats::new(settings.dedupe_window),
            seq: kept.last,
            trimmed: 0,
            next_id: 1,
        };
        // A date in the future, of a clock that was set back since, counts as now.
        let when = |at: u64| now.checked_sub(date.saturating_sub(Duration::from_millis(at))).unwrap_or(now);
        for record in kept.history {
            let at = when(record.timestamp);
            state.history.push(Arc::new(record), at);
        }
        for accepted in kept.accepted {
            state.repeats.insert(when(accepted.at), &accepted.actor, &accepted.msg_ref, accepted.seq);
        }
        let set = |Retain { key, record }| record.map(|(record, until)| (key, record, until));
        let mut retained: Vec<_> = kept.retained.into_iter().filter_map(set).collect();
        // The oldest goes first when there are too many, as before.
        retained.sort_unstable_by_key(|(_, record, _)| record.seq);
        for (key, record, until) in retained {
            let left = Duration::from_millis(until).saturating_sub(date);
            let lost = if left.is_zero() {
                vec![key.to_string()]
            } else {
                state.retained.set(now, key.to_string(), record, later(now, left), None)
            };
            forget(&*store, lost);
        }
        Self {
            extended: settings.profile == Profile::Extended,
            recover_limit: settings.recover_limit,
            metrics,
            store,
            epoch,
            dead_letter_topic: settings.dead_letter_topic.clone(),
            began: (now, date),
            state: Mutex::new(state),
        }
    }

    /// Puts a subscription in the place of `previous`, if there is one; then queues the reply, and the kept messages that it has a
    /// right to.
    pub(crate) fn subscribe(
        &self,
        outgoing: &Arc<Outgoing>,
        interest: Interest,
        previous: Option<Subscription>,
        join: &Join<'_>,
        reply: impl FnOnce(Option<Joined<'_>>) -> Option<Bytes>,
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
        let known = interest.worker.is_some() && state.table.groups.know(&interest);
        let newest = state.seq;
        state.table.groups.reach(newest);
        state.table.insert(&interest, id, outgoing);
        let now = Instant::now();
        state.history.expire(now);
        let own = |record: &Record| {
            record.silent.is_some()
                && record.silent.as_deref() == join.client_id
                && *record.from == *join.actor
        };
        let missed = join.recover.map(|position| self.missed(&state, &interest, position, known, own));
        let joined = interest.features.has(Feature::Recover).then(|| Joined {
            epoch: &self.epoch,
            seq: state.seq,
            recovered: missed.as_ref().map(Result::is_ok),
            gap: missed.as_ref().and_then(|missed| missed.as_ref().err().copied()),
        });
        if let Some(reply) = reply(joined) {
            outgoing.push(reply);
        }
        if let Some(missed) = &missed {
            self.metrics.recovered(missed.as_ref().map_or_else(|gap| *gap, |_| "recovered"));
        }
        if let Some(Ok(missed)) = missed {
            self.replay(outgoing, Replay::framed(&interest, self.extended, missed));
        } else {
            // A group begins with what comes after its first member.
            let history = join.history.filter(|_| interest.worker.is_none()).map_or_else(Vec::new, |count| {
                state.history.newest_wanted(&interest, count, |record| !own(record))
            });
            let seen = previous.filter(|_| join.fresh).map(|previous| previous.interest);
            let retained = state.retained.matching(&interest, now).filter(|kept| {
                let origin = Envelope::from(&*kept.record).origin;
                interest.wants(&origin).is_some()
                    && kept.silent != Some(outgoing.id())
                    && seen.as_ref().is_none_or(|seen| seen.wants(&origin).is_none())
                    && history.binary_search_by_key(&kept.record.seq, |record| record.seq).is_err()
            });
            let retained = retained.map(|kept| kept.record.clone()).collect();
            self.replay(outgoing, Replay::retained(&interest, self.extended, retained));
            self.replay(outgoing, Replay::framed(&interest, self.extended, history));
        }
        self.serve_changed(&mut state);
        Subscription { id, interest }
    }

    fn replay(&self, outgoing: &Outgoing, replay: Replay) {
        if replay.len() > 0 {
            self.metrics.delivered(replay.len() as u64);
            outgoing.push_replay(Box::new(replay));
        }
    }

    /// What a subscription has missed since a position, oldest first, or why nobody can tell. `known`: its group redelivers,
    /// and did so while it was away.
    fn missed(
        &self,
        state: &State,
        interest: &Interest,
        position: Position<'_>,
        known: bool,
        own: impl Fn(&Record) -> bool,
    ) -> Result<Vec<Arc<Record>>, &'static str> {
        if interest.group.is_some() && interest.worker.is_none() {
            return Err("group");
        }
        if position.epoch != &*self.epoch || position.seq > state.seq {
            return Err("epoch");
        }
        if interest.worker.is_some() {
            return if known || position.seq == state.seq { Ok(Vec::new()) } else { Err("expired") };
        }
        if state.history.has_dropped(interest, position.seq) {
            return Err("expired");
        }
        let history = state.history.wanted(interest, position.seq).filter(|record| !own(record));
        let now = Instant::now();
        let retained = state.retained.matching(interest, now).map(|kept| &kept.record).filter(|record| {
            record.seq > position.seq
                && interest.wants(&Envelope::from(&***record).origin).is_some()
                && !own(record)
                && state.history.get(record.seq).is_none()
        });
        let mut missed: Vec<_> =
            history.chain(retained).take(self.recover_limit.saturating_add(1)).cloned().collect();
        if missed.len() > self.recover_limit {
            return Err("too_many");
        }
        missed.sort_unstable_by_key(|record| record.seq);
        Ok(missed)
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
        let newest = state.seq;
        state.table.groups.reach(newest);
        state.table.insert(&interest, previous.id, outgoing);
        self.serve_changed(&mut state);
        Subscription { id: previous.id, interest }
    }

    /// Ends a subscription: nothing is queued for it any more when this returns.
    pub(crate) fn unsubscribe(&self, subscription: &Subscription) {
        let mut state = self.state.lock();
        state.table.remove(&subscription.interest, subscription.id);
        self.serve_changed(&mut state);
        self.metrics.subscriptions.dec();
    }

    /// Answers a publish that was accepted before, if this one was; true if so (F-09).
    pub(crate) fn repeated(&self, actor: &str, msg_ref: &str, reply: Option<Reply<'_>>) -> bool {
        let mut state = self.state.lock();
        let found = state.repeats.find(Instant::now(), actor, msg_ref);
        if let Some(seq) = found {
            self.answer_repeat(&state, seq, reply);
        }
        found.is_some()
    }

    fn answer_repeat(&self, state: &State, seq: u64, reply: Option<Reply<'_>>) {
        let Some(reply) = reply else { return };
        let level = state.history.get(seq).map(|_| self.store.level());
        match level.filter(|_| self.store.is_durable()) {
            // It may not be synced yet.
            Some(level) => {
                self.store.put(Change::default(), Some(reply.once_synced(&self.metrics, true, level)));
            }
            None => reply.published(&self.metrics, true, level),
        }
    }

    /// Queues a message for everybody who wants it, after the reply for its publisher.
    ///
    /// With a store on disk, what is kept is answered when it is synced. A repeat is answered and goes no further. Returns for
    /// how many it was queued.
    pub(crate) fn publish(
        &self,
        publication: &Publication<'_>,
        reply: Option<Reply<'_>>,
    ) -> Result<u64, Full> {
        let mut state = self.state.lock();
        let delivered = self.publish_now(&mut state, publication, reply)?;
        self.carry_out(&mut state);
        Ok(delivered)
    }

    /// The same, but for what comes of it in groups.
    fn publish_now(
        &self,
        state: &mut State,
        publication: &Publication<'_>,
        reply: Option<Reply<'_>>,
    ) -> Result<u64, Full> {
        let message = &publication.message;
        let now = Instant::now();
        if let Some(msg_ref) = publication.msg_ref
            && let Some(seq) = state.repeats.find(now, message.from, msg_ref)
        {
            self.answer_repeat(state, seq, reply);
            return Ok(0);
        }
        let keep = publication.keep && state.history.is_on();
        let seq = state.seq + 1;
        self.store.covers(seq)?;
        if keep || publication.retain.is_some() {
            self.store.check()?;
        }
        state.seq = seq;
        let clears = self.extended && message.data == nolag_protocol::msgpack::NIL;
        let record = (keep || publication.retain.is_some_and(|_| !clears)).then(|| {
            let like = state.history.newest(message.origin.base);
            Arc::new(message.record(seq, publication.silent_client, like))
        });

        let mut change = Change { message: record.clone().filter(|_| keep), ..Change::default() };
        if let Some(msg_ref) = publication.msg_ref {
            state.repeats.insert(now, message.from, msg_ref, seq);
            if self.store.is_durable() {
                let (actor, msg_ref) = (message.from.into(), msg_ref.into());
                change.accepted = Some(Accepted { actor, msg_ref, at: message.timestamp, seq });
            }
        }
        if let Some(ttl) = publication.retain {
            let key = retained::routing_key(&message.origin);
            change.retain = self.store.is_durable().then(|| Retain {
                key: key.as_str().into(),
                record: record.clone().filter(|_| !clears).map(|record| {
                    let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
                    (record, message.timestamp.saturating_add(ttl))
                }),
            });
            match record.clone().filter(|_| !clears) {
                Some(record) => {
                    let lost = state.retained.set(now, key, record, later(now, ttl), publication.silent);
                    forget(&*self.store, lost);
                }
                None => state.retained.clear(&key),
            }
        }
        let waits = keep && self.store.is_durable();
        if let Some(reply) = reply.filter(|_| !waits) {
            reply.published(&self.metrics, false, keep.then(|| self.store.level()));
        }
        if self.store.is_durable() && change != Change::default() {
            let done = reply.filter(|_| waits);
            let done = done.map(|reply| reply.once_synced(&self.metrics, false, self.store.level()));
            self.store.put(change, done);
        }
        if let Some(record) = record.clone().filter(|_| keep) {
            state.history.push(record, now);
            self.trim(state);
        }
        // Those that keep it by themselves share it.
        let shared = OnceCell::new();
        let shared = || {
            let made = || Arc::new(message.record(seq, publication.silent_client, None));
            shared.get_or_init(|| record.clone().unwrap_or_else(made)).clone()
        };
        let delivered = state.table.deliver(
            &message.origin,
            publication.silent,
            |delivery| message.frame(seq, self.extended, delivery, Coming::Live),
            &shared,
        );
        self.metrics.published.inc();
        self.metrics.delivered(delivered);
        Ok(delivered)
    }

    /// Tells the store how far the history has gone, now and then.
    fn trim(&self, state: &mut State) {
        const STEP: u64 = 1_000;
        let first = state.history.first().unwrap_or(state.seq + 1);
        if self.store.is_durable() && first >= state.trimmed + STEP {
            state.trimmed = first;
            self.store.trim(first);
        }
    }

    /// What is kept, for the metrics: retained messages, messages of the history and their bytes.
    pub(crate) fn kept(&self) -> (usize, usize, usize) {
        let mut state = self.state.lock();
        state.history.expire(Instant::now());
        (state.retained.len(), state.history.len(), state.history.bytes())
    }
}

/// Tells a store which keys retain nothing any more.
fn forget(store: &dyn Store, keys: Vec<String>) {
    for key in keys.into_iter().filter(|_| store.is_durable()) {
        let retain = Some(Retain { key: key.into(), record: None });
        store.put(Change { retain, ..Change::default() }, None);
    }
}
