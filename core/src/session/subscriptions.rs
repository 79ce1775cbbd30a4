//! What the caller wants against what the broker has confirmed; reconciled on every connect (client-api 6).
//!
//! At most one operation per topic is in flight. When it is answered, what is wanted by then is compared with what the
//! broker holds, and the next operation follows from the difference. So the last desired state wins, a
//! reconnect is nothing special, and neither is an unsubscribe during one (FC-06, FC-07).

use std::time::Duration;

use indexmap::IndexMap;
use nolag_protocol::features::{Feature, Features};
use nolag_protocol::filter;
use nolag_protocol::frame::{
    Lenient, Position as Offer, Raw, SetFilters, Subscribe, Subscribed, Unsubscribe,
};

use super::effects::Effects;
use super::positions::{Join, Proof, Track};
use super::requests::{Kind, Requests};
use super::{Reply, RequestId};
use crate::Error;
use crate::event::{Gap, Topic};
use crate::options::{Filter, Group, Position, Qos};

/// The most topics that a client may want.
pub(super) const MAX_TOPICS: usize = 100_000;

/// How a topic is subscribed, with the client's defaults applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mode {
    pub(super) qos: Qos,
    pub(super) group: Option<Group>,
    pub(super) filters: Vec<Filter>,
    pub(super) redeliver: bool,
    pub(super) ack_timeout: Option<Duration>,
}

/// What a subscribe asks for.
pub(super) struct Asked {
    pub(super) mode: Mode,
    pub(super) history: Option<u16>,
    pub(super) resume_from: Option<Position>,
}

/// A change of a subscription's filters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterChange {
    /// These instead; none means every message.
    Set(Vec<Filter>),
    /// These values too; groups stay.
    Add(Vec<String>),
    /// Not these values; groups stay.
    Remove(Vec<String>),
}

/// What the application wants of a topic.
struct Wanted {
    mode: Mode,
    /// Changes with an unsubscribe: the broker must then have dropped the subscription in between, so that a retained
    /// message comes again.
    life: u64,
    /// The filters alone were changed last, and `setFilters` can say so.
    by_filters: bool,
    /// The broker said no; it is not asked again on this connection.
    refused: Option<Error>,
    /// Where it is; groups have no place of their own.
    track: Option<Track>,
    /// The broker is asked once more, for the retained messages alone.
    again: bool,
}

/// What the broker has of a topic.
#[derive(PartialEq)]
enum Held {
    No,
    Yes {
        mode: Mode,
        life: u64,
    },
    /// An operation was not answered in time.
    Unknown,
}

enum Change {
    Subscribe { mode: Mode, life: u64, join: Join },
    SetFilters(Vec<Filter>),
    Unsubscribe,
}

struct Operation {
    number: u64,
    change: Change,
    waiters: Vec<RequestId>,
}

struct Entry {
    /// `None` only until the broker has agreed to that.
    wanted: Option<Wanted>,
    held: Held,
    in_flight: Option<Operation>,
    /// An operation that timed out, and may be answered yet.
    late: Option<Operation>,
    /// Calls that the next operation settles, or the finding that none is needed.
    waiting: Vec<RequestId>,
    /// Its position has moved, and the host has not asked since.
    moved: bool,
}

/// What becomes of a message of a topic.
pub(super) struct Receiving<'a> {
    /// For [`Subscriptions::note_moved`].
    pub(super) index: usize,
    pub(super) topic: &'a Topic,
    pub(super) track: Option<&'a mut Track>,
    /// It is acknowledged when its handlers have finished, whatever the client's mode is (features 6).
    pub(super) after_handler: bool,
}

/// What an answer meant for the application, where it is one to what is wanted still.
pub(super) struct Outcome {
    pub(super) topic: Topic,
    pub(super) result: Result<(), Error>,
}

/// All topics, in the order of their first subscription.
#[derive(Default)]
pub(super) struct Subscriptions {
    topics: IndexMap<Topic, Entry, hashbrown::DefaultHashBuilder>,
    /// Refused on an earlier connection, and to be asked for once on this one.
    refused_before: Vec<Topic>,
    /// Those whose position has moved since the host asked.
    moved: Vec<Topic>,
    /// Those of which retained messages may be on their way, with the first heartbeat since they were confirmed.
    unproven: Vec<(Topic, Option<u64>)>,
    /// Heartbeats that were sent and answered on this connection.
    beats: u64,
    echoes: u64,
    wants_proof: bool,
    next: u64,
}

impl Subscriptions {
    /// Whether the application wants the topic.
    pub(super) fn wants(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|entry| entry.wanted.is_some())
    }

    /// Whom a message of the topic concerns, if anybody: not those who want the topic since an unsubscribe that the broker has not
    /// confirmed yet.
    pub(super) fn receiving(&mut self, topic: &str, features: Features) -> Option<Receiving<'_>> {
        let (index, topic, entry) = self.topics.get_full_mut(topic)?;
        let wanted = entry.wanted.as_mut()?;
        let is_ending = matches!(&entry.in_flight, Some(Operation { change: Change::Unsubscribe, .. }));
        if is_ending || matches!(entry.held, Held::Yes { life, .. } if life != wanted.life) {
            return None;
        }
        let after_handler = wanted.mode.redeliver && features.has(Feature::Redeliver);
        Some(Receiving { index, topic, track: wanted.track.as_mut(), after_handler })
    }

    pub(super) fn is_full(&self) -> bool {
        self.topics.len() >= MAX_TOPICS
    }

    /// Wants a topic.
    pub(super) fn subscribe(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timeout: Duration,
        topic: &str,
        Asked { mode, history, resume_from }: Asked,
        request: RequestId,
    ) {
        let life = self.number();
        let (index, _) = match self.topics.get_full(topic) {
            Some((index, key, _)) => (index, key.clone()),
            None => {
                let key: Topic = topic.into();
                let (index, _) = self.topics.insert_full(key.clone(), Entry::new());
                (index, key)
            }
        };
        let entry = &mut self.topics[index];
        if let Some(track) = entry.track() {
            track.asked_again(history, resume_from.clone());
        }
        let in_group = mode.group.is_some();
        let track = || (!in_group).then(|| Track::new(history, resume_from));
        match &mut entry.wanted {
            Some(wanted) if wanted.mode == mode && wanted.refused.is_none() => {
                // The same again: it shares the fate of the operation that is on its way, if that is the last word.
                match &mut entry.in_flight {
                    Some(Operation { change: Change::Subscribe { mode: sent, .. }, waiters, .. })
                        if *sent == mode && entry.waiting.is_empty() =>
                    {
                        waiters.push(request);
                        return;
                    }
                    _ => entry.waiting.push(request),
                }
            }
            Some(wanted) => {
                let track = wanted.track.take().filter(|_| !in_group).or_else(track);
                *wanted =
                    Wanted { mode, life: wanted.life, by_filters: false, refused: None, track, again: false };
                entry.waiting.push(request);
            }
            None => {
                // An unsubscribe that was not sent yet has nothing left to do.
                settle(fx, &mut entry.waiting);
                let track = track();
                entry.wanted =
                    Some(Wanted { mode, life, by_filters: false, refused: None, track, again: false });
                entry.waiting.push(request);
            }
        }
        self.note_moved(index);
        self.reconcile(fx, requests, timeout, index, false);
    }

    /// No longer wants a topic; true if it did.
    pub(super) fn unsubscribe(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timeout: Duration,
        topic: &str,
        request: RequestId,
    ) -> bool {
        let Some((index, _, entry)) = self.topics.get_full_mut(topic) else {
            fx.done(request);
            return false;
        };
        let wanted = entry.wanted.take().is_some();
        if wanted {
            // Subscribes that were not sent yet have been overtaken.
            settle(fx, &mut entry.waiting);
        }
        match &mut entry.in_flight {
            Some(Operation { change: Change::Unsubscribe, waiters, .. }) => waiters.push(request),
            _ => entry.waiting.push(request),
        }
        if fx.link.is_none() {
            // Offline it is settled by forgetting it (FC-06).
            settle(fx, &mut entry.waiting);
        }
        self.note_moved(index);
        self.reconcile(fx, requests, timeout, index, false);
        wanted
    }

    /// Changes the filters that are wanted.
    pub(super) fn filter(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timeout: Duration,
        topic: &str,
        change: FilterChange,
        request: RequestId,
    ) {
        let Some((index, _, entry)) = self.topics.get_full_mut(topic) else {
            return unknown(fx, topic, &change, request);
        };
        let Some(wanted) = &mut entry.wanted else { return unknown(fx, topic, &change, request) };
        let before = wanted.mode.filters.clone();
        let filters = changed(before.clone(), change);
        if let Err(error) = check_filters(topic, &filters) {
            fx.complete(request, Err(error));
            return;
        }
        if before == filters && wanted.refused.is_none() && entry.in_flight.is_none() {
            fx.done(request);
            return;
        }
        wanted.mode.filters = filters;
        wanted.by_filters = true;
        wanted.refused = None;
        entry.waiting.push(request);
        self.reconcile(fx, requests, timeout, index, false);
    }

    /// The answer to an operation, or that none came.
    pub(super) fn answered(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timeout: Duration,
        (topic, number): (&str, u64),
        result: Result<(), Error>,
    ) -> Option<Outcome> {
        let (index, key, entry) = self.topics.get_full_mut(topic)?;
        let is_it = |operation: &Option<Operation>| operation.as_ref().is_some_and(|op| op.number == number);
        let Operation { change, waiters, .. } = if is_it(&entry.in_flight) {
            entry.in_flight.take()?
        } else if is_it(&entry.late) && entry.in_flight.is_none() {
            entry.late.take()?
        } else {
            return None;
        };
        let topic = key.clone();
        if let (Change::SetFilters(_), Ok(()), Some(track)) = (&change, &result, entry.track()) {
            track.owe_retained(); // of the values that are new
            self.unproven.push((topic.clone(), None));
        }
        let concerns = entry.wanted.as_ref().is_some_and(|wanted| match &change {
            Change::Subscribe { life, join, .. } => wanted.is_served_by(*life, join),
            Change::SetFilters(_) | Change::Unsubscribe => true,
        });
        let settled = entry.apply(fx.now, change, &result);
        let outcome = if settled {
            for waiter in waiters {
                fx.complete(waiter, result.clone().map(|()| Reply::Done));
            }
            concerns.then_some(Outcome { topic, result })
        } else {
            entry.waiting.splice(0..0, waiters);
            None
        };
        self.reconcile(fx, requests, timeout, index, false);
        outcome
    }

    /// No answer came in time: callers are told, and what the broker holds is not known any more.
    pub(super) fn timed_out(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timeout: Duration,
        (topic, number): (&str, u64),
    ) -> Option<Outcome> {
        let (index, key, entry) = self.topics.get_full_mut(topic)?;
        let mut operation = entry.in_flight.take_if(|op| op.number == number)?;
        let (topic, waiters) = (key.clone(), std::mem::take(&mut operation.waiters));
        let result = if matches!(operation.change, Change::Unsubscribe) {
            entry.held = Held::No;
            Ok(())
        } else {
            entry.held = Held::Unknown;
            Err(Error::timeout("ack_timeout", &topic))
        };
        entry.late = Some(operation);
        for waiter in waiters {
            fx.complete(waiter, result.clone().map(|()| Reply::Done));
        }
        self.reconcile(fx, requests, timeout, index, false);
        Some(Outcome { topic, result })
    }

    /// The broker took a subscription away (X-11, K-063); true if it was wanted.
    pub(super) fn revoked(&mut self, now: Duration, topic: &str, error: Error) -> Option<Topic> {
        let (_, key, entry) = self.topics.get_full_mut(topic)?;
        entry.held = Held::No;
        let wanted = entry.wanted.as_mut()?;
        wanted.refused = Some(error);
        if let Some(track) = &mut wanted.track {
            track.lost(Some(now));
        }
        Some(key.clone())
    }

    /// The connection is gone, and all that the broker held with it (client-api 7.4). It received something last at `last`.
    pub(super) fn lost(&mut self, fx: &mut Effects, last: Option<Duration>) {
        self.unproven.clear();
        (self.beats, self.echoes) = (0, 0);
        for entry in self.topics.values_mut() {
            entry.let_go(last);
            if let Some(Operation { change, mut waiters, .. }) = entry.in_flight.take() {
                if matches!(change, Change::Unsubscribe) {
                    settle(fx, &mut waiters);
                } else {
                    entry.waiting.splice(0..0, waiters);
                }
            }
            if entry.wanted.is_none() {
                settle(fx, &mut entry.waiting);
            }
        }
        self.topics.retain(|_, entry| entry.wanted.is_some());
    }

    /// Sends every wanted subscription, in the order of first subscription (client-api 2.3).
    pub(super) fn restore(&mut self, fx: &mut Effects, requests: &mut Requests, timeout: Duration) {
        self.refused_before.clear();
        for index in 0..self.topics.len() {
            match self.topics[index].wanted.as_ref().map(|wanted| wanted.refused.is_some()) {
                Some(false) => self.reconcile(fx, requests, timeout, index, true),
                Some(true) => {
                    self.refused_before.extend(self.topics.get_index(index).map(|(key, _)| key.clone()));
                }
                None => {}
            }
        }
    }

    /// Asks once more for what was refused on earlier connections: the grants may have changed.
    pub(super) fn retry_refused(&mut self, fx: &mut Effects, requests: &mut Requests, timeout: Duration) {
        for topic in std::mem::take(&mut self.refused_before) {
            let Some((index, _, entry)) = self.topics.get_full_mut(&topic) else { continue };
            if let Some(wanted) = entry.wanted.as_mut().filter(|wanted| wanted.refused.is_some()) {
                wanted.refused = None;
                self.reconcile(fx, requests, timeout, index, false);
            }
        }
    }

    /// The broker has confirmed a subscribe of this life that asked for this, whether or not somebody waits for that still: tells what
    /// was missed, if the subscription was to continue and does not (features 2).
    pub(super) fn confirmed(
        &mut self,
        (topic, life, join): (&str, u64, &Join),
        answer: &Subscribed<'_>,
    ) -> Option<Gap> {
        let (index, key, entry) = self.topics.get_full_mut(topic)?;
        let wanted = entry.wanted.as_mut().filter(|wanted| wanted.is_served_by(life, join));
        let track = wanted?.track.as_mut()?;
        let missed = track.confirmed(join, answer);
        if track.owes_retained() {
            self.unproven.push((key.clone(), None));
            self.wants_proof |= answer.recovered == Some(true);
        }
        let gap = missed.map(|missed| Gap { topic: key.clone(), reason: missed.reason, since: missed.since });
        self.note_moved(index);
        gap
    }

    /// A heartbeat was sent: its answer proves that what the broker sent before has come.
    pub(super) fn beat(&mut self) {
        self.beats += 1;
        for (_, beat) in &mut self.unproven {
            beat.get_or_insert(self.beats);
        }
    }

    /// A heartbeat was answered. Retained messages that a lost connection owed are asked for by one more subscribe, now that
    /// nothing is replayed.
    pub(super) fn echoed(&mut self, fx: &mut Effects, requests: &mut Requests, timeout: Duration) {
        self.echoes += 1;
        let echoes = self.echoes;
        let proven = |(_, beat): &mut (Topic, Option<u64>)| beat.is_some_and(|beat| beat <= echoes);
        for (topic, _) in self.unproven.extract_if(.., proven).collect::<Vec<_>>() {
            let Some((index, _, entry)) = self.topics.get_full_mut(&topic) else { continue };
            let Some(wanted) = &mut entry.wanted else { continue };
            match wanted.track.as_mut().map(Track::proven) {
                Some(Proof::Missing) => {
                    wanted.again = true;
                    self.reconcile(fx, requests, timeout, index, false);
                }
                Some(Proof::Later) => self.unproven.push((topic, None)),
                Some(Proof::Complete) | None => {}
            }
        }
    }

    /// Whether a heartbeat is wanted now: a subscription continues, and lacks retained messages.
    pub(super) fn wants_proof(&mut self) -> bool {
        std::mem::take(&mut self.wants_proof)
    }

    /// A message was handed out, and is not handed over any more.
    pub(super) fn dropped(&mut self, topic: &str, dates_from: Option<Duration>, is_retained: bool) {
        self.with_track(topic, |track| {
            if is_retained {
                track.owe_retained();
            } else {
                track.dropped(dates_from);
            }
        });
    }

    /// Replayed messages of a topic follow.
    pub(super) fn replays(&mut self, topic: &str) {
        self.with_track(topic, Track::replays);
    }

    /// All replayed messages of a topic have come.
    pub(super) fn replayed(&mut self, topic: &str) {
        self.with_track(topic, Track::replayed);
    }

    /// The application is done with a message.
    pub(super) fn handled(&mut self, topic: &str, delivery: u64) {
        self.with_track(topic, |track| track.handled(delivery));
    }

    fn with_track(&mut self, topic: &str, change: impl FnOnce(&mut Track)) {
        let Some((index, _, entry)) = self.topics.get_full_mut(topic) else { return };
        if let Some(track) = entry.track() {
            change(track);
            self.note_moved(index);
        }
    }

    /// How far the application is with a subscription.
    pub(super) fn position(&self, topic: &str) -> Option<Position> {
        self.topics.get(topic)?.wanted.as_ref()?.track.as_ref()?.position()
    }

    /// Those that may have moved since this was last asked.
    pub(super) fn take_moved(&mut self) -> impl Iterator<Item = (Topic, Option<Position>)> {
        for topic in &self.moved {
            if let Some(entry) = self.topics.get_mut(topic) {
                entry.moved = false;
            }
        }
        let moved = std::mem::take(&mut self.moved).into_iter();
        moved.map(|topic| {
            let position = self.position(&topic);
            (topic, position)
        })
    }

    pub(super) fn note_moved(&mut self, index: usize) {
        let Some((topic, entry)) = self.topics.get_index_mut(index) else { return };
        if !std::mem::replace(&mut entry.moved, true) {
            self.moved.push(topic.clone());
        }
    }

    /// Whether an ordinary subscription that was to continue has not been confirmed yet.
    pub(super) fn is_interrupted(&self) -> bool {
        let mut tracks = self.topics.values().filter_map(|entry| entry.wanted.as_ref()?.track.as_ref());
        tracks.any(Track::is_interrupted)
    }

    /// The application closed the client: nothing of what is on its way to it is handed over any more.
    pub(super) fn closed(&mut self) {
        for index in 0..self.topics.len() {
            if let Some(track) = self.topics[index].track() {
                track.closed();
                self.note_moved(index);
            }
        }
    }

    /// The client has ended: calls fail, and what is wanted stays wanted (point 3 of the decided ones).
    pub(super) fn ended(&mut self, fx: &mut Effects, error: &Error, last: Option<Duration>) {
        self.unproven.clear();
        (self.beats, self.echoes) = (0, 0);
        for entry in self.topics.values_mut() {
            let in_flight = entry.in_flight.take().map(|op| op.waiters).unwrap_or_default();
            for waiter in in_flight.into_iter().chain(entry.waiting.drain(..)) {
                fx.complete(waiter, Err(error.clone()));
            }
            entry.let_go(last);
        }
        self.topics.retain(|_, entry| entry.wanted.is_some());
    }

    /// Takes a caller off what it waits for.
    pub(super) fn cancel(&mut self, request: RequestId) -> bool {
        self.topics.values_mut().any(|entry| {
            let in_flight = entry.in_flight.as_mut().map(|op| &mut op.waiters);
            in_flight.into_iter().chain([&mut entry.waiting]).any(|waiters| {
                let before = waiters.len();
                waiters.retain(|waiter| *waiter != request);
                waiters.len() < before
            })
        })
    }

    /// The topics that are wanted, and whether the broker has confirmed each as it is wanted.
    pub(super) fn states(&self) -> impl Iterator<Item = (&Topic, bool)> {
        self.topics.iter().filter_map(|(topic, entry)| {
            let wanted = entry.wanted.as_ref()?;
            Some((topic, matches!(&entry.held, Held::Yes { mode, .. } if *mode == wanted.mode)))
        })
    }

    pub(super) fn len(&self) -> usize {
        self.topics.len()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Sends the operation that brings the broker nearer to what is wanted, or settles whoever waits for none.
    fn reconcile(
        &mut self,
        fx: &mut Effects,
        requests: &mut Requests,
        timeout: Duration,
        index: usize,
        recovery: bool,
    ) {
        let number = self.number();
        let Some((topic, entry)) = self.topics.get_index_mut(index) else { return };
        if fx.link.is_none() || entry.in_flight.is_some() {
            if fx.link.is_none() && entry.wanted.is_none() {
                self.topics.shift_remove_index(index);
            }
            return;
        }
        let (change, with_waiters) = match (&entry.wanted, &entry.held) {
            (None, Held::No) => {
                settle(fx, &mut entry.waiting);
                self.topics.shift_remove_index(index);
                return;
            }
            (None, _) => (Change::Unsubscribe, true),
            (Some(wanted), _) if wanted.refused.is_some() => {
                let error = wanted.refused.clone().unwrap_or(Error::NotConnected);
                for waiter in entry.waiting.drain(..) {
                    fx.complete(waiter, Err(error.clone()));
                }
                return;
            }
            (Some(wanted), Held::Yes { life, .. }) if *life != wanted.life => (Change::Unsubscribe, false),
            (Some(wanted), Held::Yes { mode, .. }) if *mode == wanted.mode && !wanted.again => {
                settle(fx, &mut entry.waiting);
                return;
            }
            (Some(Wanted { mode: wanted, by_filters: true, .. }), Held::Yes { mode, .. })
                if wanted.qos == mode.qos && wanted.group == mode.group =>
            {
                (Change::SetFilters(wanted.filters.clone()), true)
            }
            // After silence only a new call asks again; the connection is being probed meanwhile.
            (Some(_), Held::Unknown) if entry.waiting.is_empty() => return,
            (Some(wanted), _) => {
                let join = wanted.track.as_ref().map(|track| track.join(fx.features)).unwrap_or_default();
                (Change::Subscribe { mode: wanted.mode.clone(), life: wanted.life, join }, true)
            }
        };
        if !requests.has_room() {
            let error = Error::queue("queue_full", Some(topic));
            entry.held = Held::Unknown;
            for waiter in entry.waiting.drain(..) {
                fx.complete(waiter, Err(error.clone()));
            }
            return;
        }
        let waiters = if with_waiters { std::mem::take(&mut entry.waiting) } else { Vec::new() };
        let msg_ref = fx.ref_if_understood();
        let topic = topic.clone();
        let (frame, kind) = frame(&topic, number, &change, fx.features, msg_ref.as_deref());
        if let Some(wanted) = &mut entry.wanted {
            wanted.again = false;
        }
        entry.late = None;
        entry.in_flight = Some(Operation { number, change, waiters });
        fx.send(frame);
        requests.push(msg_ref, kind, fx.now + timeout, recovery);
    }
}

impl Entry {
    fn new() -> Self {
        Self { wanted: None, held: Held::No, in_flight: None, late: None, waiting: Vec::new(), moved: false }
    }

    fn track(&mut self) -> Option<&mut Track> {
        self.wanted.as_mut()?.track.as_mut()
    }

    /// The broker holds it no more: the connection is gone, which received something last at `last`.
    fn let_go(&mut self, last: Option<Duration>) {
        self.held = Held::No;
        self.late = None;
        if let Some(wanted) = &mut self.wanted {
            wanted.again = false;
        }
        if let Some(track) = self.track() {
            track.lost(last);
        }
    }

    /// What an answer says about the broker's side; false if the callers must wait for another operation.
    fn apply(&mut self, now: Duration, change: Change, result: &Result<(), Error>) -> bool {
        match (change, result) {
            (Change::Unsubscribe, _) => self.held = Held::No,
            (Change::Subscribe { mode, life, join }, Ok(())) => {
                let served = self.wanted.as_ref().filter(|wanted| wanted.is_served_by(life, &join));
                self.held = Held::Yes { mode, life: served.map_or(life, |wanted| wanted.life) };
            }
            (Change::Subscribe { mode, .. }, Err(error)) => {
                if self.held == Held::Unknown {
                    self.held = Held::No;
                }
                if let Some(wanted) = self.wanted.as_mut().filter(|wanted| wanted.mode == mode) {
                    wanted.refused = Some(error.clone());
                }
            }
            (Change::SetFilters(filters), Ok(())) => {
                if let Held::Yes { mode, .. } = &mut self.held {
                    mode.filters = filters;
                } else if let Some(wanted) = &self.wanted {
                    let mode = Mode { filters, ..wanted.mode.clone() };
                    self.held = Held::Yes { mode, life: wanted.life };
                }
            }
            (Change::SetFilters(_), Err(error)) if error.code() == "not_subscribed" => {
                self.held = Held::No; // subscribing with the filters does the same (wire protocol 12.2)
                if let Some(track) = self.track() {
                    track.lost(Some(now));
                }
                return self.wanted.is_none();
            }
            (Change::SetFilters(filters), Err(error)) => {
                let wanted = self.wanted.as_mut().filter(|wanted| wanted.mode.filters == filters);
                match (wanted, &self.held) {
                    (Some(wanted), Held::Yes { mode, .. }) => wanted.mode.filters.clone_from(&mode.filters),
                    (Some(wanted), _) => wanted.refused = Some(error.clone()),
                    (None, _) => {}
                }
            }
        }
        true
    }
}

impl Wanted {
    /// Whether the answer to a subscribe is one to this wish. A retained message comes after the answer, so it serves a later life
    /// too; but what either asks for beside is for the one that asked.
    fn is_served_by(&self, life: u64, join: &Join) -> bool {
        let plain = join.recover.is_none() && join.history.is_none();
        self.life == life || plain && !self.track.as_ref().is_some_and(Track::asks_for_more)
    }
}

fn settle(fx: &mut Effects, waiters: &mut Vec<RequestId>) {
    for waiter in waiters.drain(..) {
        fx.done(waiter);
    }
}

/// A change of filters on a topic that is not wanted: taking away what is not there is no failure.
fn unknown(fx: &mut Effects, topic: &str, change: &FilterChange, request: RequestId) {
    match change {
        FilterChange::Remove(_) => fx.done(request),
        FilterChange::Set(_) | FilterChange::Add(_) => {
            let error = Error::refused(&nolag_protocol::codes::NOT_SUBSCRIBED, topic, "subscribe first");
            fx.complete(request, Err(error));
        }
    }
}

/// Groups stay when plain values are added or removed (K-056).
fn changed(mut filters: Vec<Filter>, change: FilterChange) -> Vec<Filter> {
    match change {
        FilterChange::Set(filters) => return filters,
        FilterChange::Add(values) => {
            for value in values.into_iter().map(Filter::Value) {
                if !filters.contains(&value) {
                    filters.push(value);
                }
            }
        }
        FilterChange::Remove(values) => {
            filters.retain(|item| !matches!(item, Filter::Value(value) if values.contains(value)));
        }
    }
    filters
}

/// The broker's own verdict on filters, before sending (K-037, API-099).
pub(super) fn check_filters(topic: &str, filters: &[Filter]) -> Result<(), Error> {
    use nolag_protocol::codes;
    use nolag_protocol::filter::FilterError;
    match filter::subscription_keys(Some(&filter::encode(filters))) {
        Ok(_) => Ok(()),
        Err(FilterError::TooMany) => {
            Err(Error::refused(&codes::TOO_MANY_FILTERS, topic, FilterError::TooMany))
        }
        Err(fault) => Err(Error::refused(&codes::INVALID_FILTER_CHARS, topic, fault)),
    }
}

fn frame(
    topic: &Topic,
    op: u64,
    change: &Change,
    features: Features,
    msg_ref: Option<&str>,
) -> (Vec<u8>, Kind) {
    let (msg_ref, owner) = (Lenient(msg_ref), topic.clone());
    match change {
        Change::Subscribe { mode, life, join } => {
            let redeliver = mode.redeliver && features.has(Feature::Redeliver);
            let timeout = mode.ack_timeout.filter(|_| redeliver);
            let filters = (!mode.filters.is_empty()).then(|| filter::encode(&mode.filters));
            let mut group = Vec::new();
            if let Some(Group::Named(name)) = &mode.group {
                nolag_protocol::msgpack::write::str(&mut group, name);
            }
            let frame = Subscribe {
                topic,
                qos: Some(mode.qos),
                load_balance: Lenient(mode.group.is_some().then_some(true)),
                load_balance_group: (!group.is_empty()).then_some(Raw(&group)),
                filters: filters.as_deref().map(Raw),
                recover: join.recover.as_ref().map(|Position { epoch, seq }| Offer { epoch, seq: *seq }),
                history: join.history.map(u64::from),
                redeliver: Lenient(redeliver.then_some(true)),
                ack_timeout_ms: timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
                msg_ref,
            };
            (frame.to_vec(), Kind::Subscribe { topic: owner, op, life: *life, join: join.clone() })
        }
        Change::SetFilters(filters) => {
            let filters = filter::encode(filters);
            let frame = SetFilters { topic, filters: Raw(&filters), msg_ref };
            (frame.to_vec(), Kind::SetFilters { topic: owner, op })
        }
        Change::Unsubscribe => {
            (Unsubscribe { topic, msg_ref }.to_vec(), Kind::Unsubscribe { topic: owner, op })
        }
    }
}
