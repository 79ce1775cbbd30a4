//! Publishes that wait or are in flight: bounded, paced, and in the order of their calls (client-api 7).
//!
//! Everything goes through one line, live or queued, whatever its quality: so the order of a topic holds. A publish of
//! quality 1 or 2 stays in flight until it is answered; at a loss it goes back to the front of the line under the same
//! reference, by which a broker with the feature `dedupe` recognises it. A refusal for the rate stops the line until all that is in flight has been answered and the broker's
//! second has turned.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use nolag_protocol::codes;
use nolag_protocol::frame::{Data, Lenient, Limits, Publish, Published, Qos, Raw};
use nolag_protocol::msgpack::{Token, write};

use super::effects::{Earliest, Effects, earlier};
use super::pace::Pace;
use super::requests::Requests;
use super::{Reply, RequestId};
use crate::Error;
use crate::event::{Outcome, Receipt, Topic, Warning};
use crate::options::{Feature, Options, Overflow, PublishOptions, Qos0};

/// What brokers that tell no limit allow in a second (client-api 7.5).
const UNTOLD_RATE: u64 = 50;
/// How often a publish that was refused for the rate goes again.
const MAX_REFUSALS: u32 = 5;
/// For how long a broker with the feature `dedupe` remembers what it accepted (features 3).
const DEDUPE_WINDOW: Duration = Duration::from_secs(600);
/// How long an answer may still take once the broker has shown that it lives (client-api 7.4).
const GRACE: Duration = Duration::from_secs(1);

struct Entry {
    /// Counts calls; the line is in this order.
    number: u64,
    /// `None` once the caller has withdrawn from what is in flight.
    request: Option<RequestId>,
    topic: Topic,
    payload: Bytes,
    qos: Qos,
    options: PublishOptions,
    msg_ref: Option<String>,
    called: Duration,
    expires: Duration,
    attempts: u32,
    refusals: u32,
    /// Every copy of it went to a broker that recognises copies.
    deduped: bool,
    /// It had to wait for a connection.
    offline: bool,
    first_written: Duration,
}

struct InFlight {
    entry: Entry,
    written: Duration,
    deadline: Duration,
    /// The deadline has passed; the connection is being probed since.
    overdue: bool,
    /// The probe was answered.
    probed: bool,
}

/// What the line may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// No connection, or one that is recovering.
    Held,
    Open,
    /// Refused for the rate: nothing is written before this time.
    Stopped(Duration),
}

/// How much waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Messages that wait.
    pub queued: usize,
    /// Their payload, in bytes.
    pub queued_bytes: usize,
    /// Messages that wait for their answer.
    pub in_flight: usize,
    /// Calls that wait for room in the queue.
    pub held: usize,
    /// For how long the oldest message waits.
    pub oldest: Option<Duration>,
}

/// All publishes that are not settled.
pub(super) struct Outbox {
    line: Line,
    /// The transport does not take what it is given.
    pub(super) congested: bool,
    waiting: VecDeque<Entry>,
    waiting_bytes: usize,
    /// Calls that wait for room, where the policy is to hold them.
    held: VecDeque<Entry>,
    in_flight: VecDeque<InFlight>,
    pace: Pace,
    drain_pace: Pace,
    max_payload: Option<u64>,
    next_number: u64,
    expiry: Earliest,
    overdue: usize,
    /// The largest payload that a broker has accepted: what closed a connection as too big was larger (K-014).
    largest_accepted: usize,
    flushes: Vec<(RequestId, Option<Duration>)>,
}

impl Outbox {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            line: Line::Held,
            congested: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            held: VecDeque::new(),
            in_flight: VecDeque::new(),
            pace: Pace::unlimited(),
            drain_pace: options.queue.flush_rate.map_or_else(Pace::unlimited, Pace::exactly),
            max_payload: None,
            next_number: 0,
            expiry: Earliest::default(),
            overdue: 0,
            largest_accepted: 0,
            flushes: Vec::new(),
        }
    }

    /// Takes a publish whose topic and filters have been checked.
    pub(super) fn publish(
        &mut self,
        fx: &mut Effects,
        options: &Options,
        topic: &str,
        payload: Bytes,
        publish: PublishOptions,
        request: RequestId,
    ) {
        let qos = publish.qos.unwrap_or(options.qos);
        let offline = fx.link.is_none();
        let limit = self.max_payload.map_or(options.max_message_size, |told| {
            options.max_message_size.min(usize::try_from(told).unwrap_or(usize::MAX))
        });
        if payload.len() > limit {
            return fx.complete(request, Err(too_large(topic, limit)));
        }
        let unqueued = !options.queue.enabled || qos == Qos::AtMostOnce && options.queue.qos0 == Qos0::Drop;
        if offline && unqueued {
            return fx.complete(request, Err(Error::NotConnected));
        }
        if payload.len() > options.queue.max_bytes {
            return fx.complete(request, Err(Error::queue("too_large", Some(topic))));
        }
        self.next_number += 1;
        let expires = fx.now.saturating_add(publish.ttl.unwrap_or(options.queue.ttl));
        let entry = Entry {
            number: self.next_number,
            request: Some(request),
            topic: topic.into(),
            payload,
            qos,
            msg_ref: publish.msg_ref.clone().filter(|given| !given.is_empty()),
            options: publish,
            called: fx.now,
            expires,
            attempts: 0,
            refusals: 0,
            deduped: true,
            offline,
            first_written: Duration::ZERO,
        };
        self.expiry.note(expires);
        if self.held.is_empty() && self.has_room(options, entry.payload.len()) {
            self.wait(entry);
            return;
        }
        match options.queue.overflow {
            Overflow::Block if self.held.len() < options.queue.max_messages => self.held.push_back(entry),
            Overflow::Reject | Overflow::Block => entry.fail(fx, Error::queue("queue_full", Some(topic))),
            Overflow::DropOldest => {
                while !self.has_room(options, entry.payload.len()) {
                    // What was written before is not given up for something new.
                    let oldest = (0..self.waiting.len())
                        .filter(|n| self.waiting[*n].attempts == 0)
                        .min_by_key(|n| self.waiting[*n].qos);
                    let Some(oldest) = oldest.and_then(|n| self.take_waiting(n)) else {
                        return entry.fail(fx, Error::queue("queue_full", Some(topic)));
                    };
                    let error = Error::queue("queue_full", Some(&oldest.topic));
                    oldest.fail(fx, error);
                }
                self.wait(entry);
            }
        }
    }

    fn has_room(&self, options: &Options, bytes: usize) -> bool {
        self.waiting.len() < options.queue.max_messages
            && self.waiting_bytes + bytes <= options.queue.max_bytes
    }

    fn wait(&mut self, entry: Entry) {
        self.waiting_bytes += entry.payload.len();
        self.waiting.push_back(entry);
    }

    fn take_waiting(&mut self, index: usize) -> Option<Entry> {
        let entry = self.waiting.remove(index)?;
        self.waiting_bytes -= entry.payload.len();
        Some(entry)
    }

    /// Puts back what was in the line before: it keeps its place, and its room.
    fn put_back(&mut self, entry: Entry) {
        let place = self.waiting.partition_point(|other| other.number < entry.number);
        self.waiting_bytes += entry.payload.len();
        self.expiry.note(entry.expires);
        self.waiting.insert(place, entry);
    }

    /// A connection is there: its limits count from now on. Nothing is written until [`Outbox::open`].
    pub(super) fn connected(&mut self, limits: Option<Limits>) {
        self.congested = false;
        self.max_payload = limits.and_then(|limits| limits.max_payload_bytes).filter(|limit| *limit > 0);
        self.pace = match limits.map(|limits| limits.publishes_per_second) {
            Some(None | Some(0)) => Pace::unlimited(),
            Some(Some(rate)) => Pace::below(rate),
            None => Pace::below(UNTOLD_RATE),
        };
    }

    /// The recovery is over: the line moves.
    pub(super) fn open(&mut self) {
        if self.line == Line::Held {
            self.line = Line::Open;
        }
    }

    /// Writes what may be written now.
    pub(super) fn advance(&mut self, fx: &mut Effects, options: &Options, requests: &Requests) {
        self.expire(fx);
        self.refill(options);
        if let Line::Stopped(until) = self.line
            && until <= fx.now
            && self.in_flight.is_empty()
        {
            self.line = Line::Open;
        }
        while self.line == Line::Open
            && !self.congested
            && fx.link.is_some()
            && self.in_flight.len() < options.max_in_flight.max(1)
        {
            let Some(first) = self.waiting.front() else { break };
            if self.pace.next(fx.now) > fx.now || first.offline && self.drain_pace.next(fx.now) > fx.now {
                break;
            }
            let Some(entry) = self.take_waiting(0) else { break };
            self.write(fx, options, requests, entry);
            self.refill(options);
        }
        self.check_flushes(fx);
    }

    fn write(&mut self, fx: &mut Effects, options: &Options, requests: &Requests, mut entry: Entry) {
        let answered = entry.qos != Qos::AtMostOnce && fx.protocol_version >= 2;
        // A publish of quality 0 carries a reference only where its refusal could be taken for another's (12.3).
        let refer = answered || fx.protocol_version >= 2 && requests.concerns(&entry.topic);
        if refer && entry.msg_ref.is_none() {
            entry.msg_ref = Some(fx.new_ref());
        }
        fx.send(entry.frame(refer, fx.features.has(Feature::Trace)));
        self.pace.count(fx.now);
        if entry.offline {
            self.drain_pace.count(fx.now);
        }
        if entry.attempts == 0 {
            entry.first_written = fx.now;
        }
        entry.attempts += 1;
        let is_recognised = fx.features.has(Feature::Dedupe);
        entry.deduped &= is_recognised && fx.now < entry.first_written.saturating_add(DEDUPE_WINDOW);
        if entry.qos == Qos::ExactlyOnce && !is_recognised {
            fx.warn(Warning::QosReduced);
        }
        if answered {
            let deadline = fx.now + options.ack_timeout;
            self.in_flight.push_back(InFlight {
                entry,
                written: fx.now,
                deadline,
                overdue: false,
                probed: false,
            });
        } else {
            let now = fx.now;
            entry.succeed(fx, Outcome::Written, None, now);
        }
    }

    /// Calls that were held take the room that there is now.
    fn refill(&mut self, options: &Options) {
        while let Some(first) = self.held.front() {
            if !self.has_room(options, first.payload.len()) {
                break;
            }
            let Some(entry) = self.held.pop_front() else { break };
            self.wait(entry);
        }
    }

    /// `published`. A late one, for a call that was settled, is of no account (FC-11).
    pub(super) fn published(&mut self, fx: &mut Effects, frame: &Published<'_>) {
        let Some(InFlight { entry, written, .. }) = self.take_in_flight(frame.msg_ref) else { return };
        self.largest_accepted = self.largest_accepted.max(entry.payload.len());
        let outcome = if frame.duplicate == Some(true) { Outcome::Duplicate } else { Outcome::Accepted };
        entry.succeed(fx, outcome, frame.level.map(str::to_owned), written);
    }

    /// An `error` for a publish: final, or a reason to stop the line (client-api 7.5). False if there is no such one.
    pub(super) fn refused(&mut self, fx: &mut Effects, msg_ref: &str, error: &Error) -> bool {
        let Some(InFlight { mut entry, .. }) = self.take_in_flight(Some(msg_ref)) else { return false };
        let again = codes::error_verdict(error.code()) == Some(codes::Verdict::Resend);
        if again {
            self.stop(fx);
            entry.refusals += 1;
            if entry.refusals <= MAX_REFUSALS {
                self.put_back(entry);
                return true;
            }
        }
        entry.fail(fx, error.clone());
        true
    }

    /// Stops the line until the broker's second has turned for certain.
    pub(super) fn stop(&mut self, fx: &mut Effects) {
        let jitter = Duration::from_millis(fx.rng.u64(0..=200));
        if self.line != Line::Held {
            self.line = Line::Stopped(fx.now + Duration::from_secs(1) + jitter);
        }
    }

    fn take_in_flight(&mut self, msg_ref: Option<&str>) -> Option<InFlight> {
        let found = self.in_flight.iter().position(|sent| sent.entry.msg_ref.as_deref() == msg_ref)?;
        let taken = self.in_flight.remove(found)?;
        self.overdue -= usize::from(taken.overdue);
        Some(taken)
    }

    /// Publishes whose answer is overdue: true asks for a probe of the connection (client-api 7.4).
    pub(super) fn overdue(&mut self, fx: &mut Effects) -> bool {
        // Those in flight stand in the order of their deadlines, until one of them is overdue.
        let front = self.in_flight.front();
        if self.overdue == 0 && front.is_none_or(|first| first.deadline > fx.now) {
            return false;
        }
        let mut probe = false;
        let mut index = 0;
        while index < self.in_flight.len() {
            let sent = &mut self.in_flight[index];
            if sent.deadline <= fx.now && sent.probed {
                if let Some(InFlight { entry, .. }) = self.in_flight.remove(index) {
                    self.overdue -= 1;
                    let error = Error::timeout("ack_timeout", &entry.topic).with_unknown_outcome();
                    entry.fail(fx, error);
                }
                continue;
            }
            if sent.deadline <= fx.now && !sent.overdue {
                sent.overdue = true;
                self.overdue += 1;
                probe = true;
            }
            index += 1;
        }
        probe
    }

    /// Something arrived: the connection lives, and an overdue answer has one more second.
    pub(super) fn received(&mut self, now: Duration) {
        if self.overdue > 0 {
            for sent in self.in_flight.iter_mut().filter(|sent| sent.overdue && !sent.probed) {
                sent.probed = true;
                sent.deadline = now + GRACE;
            }
        }
    }

    /// The connection is gone (client-api 7.4). `too_big` says that a message of ours was the reason.
    pub(super) fn lost(&mut self, fx: &mut Effects, options: &Options, too_big: bool) {
        self.line = Line::Held;
        self.overdue = 0;
        fx.forget_warning(Warning::QosReduced);
        for InFlight { entry, .. } in std::mem::take(&mut self.in_flight) {
            if too_big && entry.payload.len() > self.largest_accepted {
                let error = too_large(&entry.topic, self.largest_accepted);
                entry.fail(fx, error);
            } else {
                self.put_back(entry);
            }
        }
        let drops = |entry: &Entry| {
            !options.queue.enabled && entry.attempts == 0
                || entry.qos == Qos::AtMostOnce && options.queue.qos0 == Qos0::Drop
        };
        for queue in [&mut self.waiting, &mut self.held] {
            for mut entry in std::mem::take(queue) {
                if drops(&entry) {
                    entry.fail(fx, Error::NotConnected);
                } else {
                    entry.offline = true;
                    queue.push_back(entry);
                }
            }
        }
        self.waiting_bytes = self.waiting.iter().map(|entry| entry.payload.len()).sum();
        self.check_flushes(fx);
    }

    /// The client ends: everything fails.
    pub(super) fn closed(&mut self, fx: &mut Effects, error: &Error) {
        self.line = Line::Held;
        self.overdue = 0;
        self.waiting_bytes = 0;
        self.expiry = Earliest::default();
        let in_flight = std::mem::take(&mut self.in_flight).into_iter().map(|sent| sent.entry);
        let waiting = std::mem::take(&mut self.waiting).into_iter().chain(std::mem::take(&mut self.held));
        for entry in in_flight.chain(waiting) {
            let error = if entry.attempts > 0 { error.clone().with_unknown_outcome() } else { error.clone() };
            entry.fail(fx, error);
        }
        for (request, _) in self.flushes.drain(..) {
            fx.complete(request, Err(error.clone()));
        }
    }

    /// Resolves when nothing waits and nothing is in flight.
    pub(super) fn flush(&mut self, fx: &mut Effects, timeout: Option<Duration>, request: RequestId) {
        let deadline = timeout.map(|timeout| fx.now.saturating_add(timeout));
        self.flushes.push((request, deadline));
        self.check_flushes(fx);
    }

    fn check_flushes(&mut self, fx: &mut Effects) {
        if self.flushes.is_empty() {
            return;
        }
        let (empty, now) = (self.is_empty(), fx.now);
        self.flushes.retain(|(request, deadline)| {
            if empty {
                fx.done(*request);
            } else if deadline.is_some_and(|deadline| deadline <= now) {
                let error = Error::Timeout { what: "flush_timeout", topic: None, outcome_unknown: false };
                fx.complete(*request, Err(error));
            } else {
                return true;
            }
            false
        });
    }

    /// Nothing waits and nothing is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.held.is_empty() && self.in_flight.is_empty()
    }

    /// Withdraws a publish that was not written, or its caller from one that was.
    pub(super) fn cancel(&mut self, fx: &mut Effects, request: RequestId) -> bool {
        let is_it = |entry: &Entry| entry.request == Some(request);
        if let Some(index) = self.waiting.iter().position(is_it) {
            if self.waiting[index].attempts > 0 {
                // Written once, on a connection that is gone: it stays, as what is in flight does.
                self.waiting[index].request = None;
                fx.complete(request, Err(Error::aborted().with_unknown_outcome()));
            } else if let Some(entry) = self.take_waiting(index) {
                entry.fail(fx, Error::aborted());
            }
        } else if let Some(index) = self.held.iter().position(is_it) {
            if let Some(entry) = self.held.remove(index) {
                entry.fail(fx, Error::aborted());
            }
        } else if let Some(sent) = self.in_flight.iter_mut().find(|sent| is_it(&sent.entry)) {
            sent.entry.request = None;
            fx.complete(request, Err(Error::aborted().with_unknown_outcome()));
        } else {
            let before = self.flushes.len();
            self.flushes.retain(|(flush, _)| *flush != request);
            if self.flushes.len() == before {
                return false;
            }
            fx.complete(request, Err(Error::aborted()));
        }
        true
    }

    fn expire(&mut self, fx: &mut Effects) {
        if !self.expiry.take_due(fx.now) {
            return;
        }
        for queue in [&mut self.waiting, &mut self.held] {
            for entry in std::mem::take(queue) {
                if entry.expires <= fx.now {
                    let error = Error::queue("queue_expired", Some(&entry.topic));
                    let error = if entry.attempts > 0 { error.with_unknown_outcome() } else { error };
                    entry.fail(fx, error);
                } else {
                    self.expiry.note(entry.expires);
                    queue.push_back(entry);
                }
            }
        }
        self.waiting_bytes = self.waiting.iter().map(|entry| entry.payload.len()).sum();
    }

    pub(super) fn deadline(&mut self, now: Duration, options: &Options) -> Option<Duration> {
        let line = match self.line {
            Line::Held => None,
            Line::Stopped(until) => self.in_flight.is_empty().then_some(until),
            Line::Open if self.congested || self.in_flight.len() >= options.max_in_flight.max(1) => None,
            Line::Open => self.waiting.front().map(|first| {
                let pace = self.pace.next(now);
                if first.offline { pace.max(self.drain_pace.next(now)) } else { pace }
            }),
        };
        let answers = if self.overdue == 0 {
            self.in_flight.front().map(|first| first.deadline)
        } else {
            let awaited = self.in_flight.iter().filter(|sent| !sent.overdue || sent.probed);
            awaited.map(|sent| sent.deadline).min()
        };
        let flushes = self.flushes.iter().filter_map(|(_, deadline)| *deadline).min();
        let expiry = if self.waiting.is_empty() && self.held.is_empty() { None } else { self.expiry.get() };
        earlier(earlier(line, answers), earlier(flushes, expiry))
    }

    /// How many wait for their answer.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn depth(&self, now: Duration) -> Depth {
        Depth {
            oldest: self.waiting.front().map(|first| now.saturating_sub(first.called)),
            queued: self.waiting.len(),
            queued_bytes: self.waiting_bytes,
            in_flight: self.in_flight.len(),
            held: self.held.len(),
        }
    }
}

impl Entry {
    fn fail(self, fx: &mut Effects, error: Error) {
        match error {
            Error::Queue { what, .. } => {
                fx.counts.queue_dropped += 1;
                fx.counts.queue_expired += u64::from(what == "queue_expired");
            }
            _ => fx.counts.publish_failures += 1,
        }
        match self.request {
            Some(request) => fx.complete(request, Err(error)),
            None => fx.error(error), // nobody waits, and nothing is silent (client-api 1)
        }
    }

    fn succeed(self, fx: &mut Effects, outcome: Outcome, level: Option<String>, written: Duration) {
        fx.counts.published += 1;
        fx.counts.published_again += u64::from(outcome == Outcome::Duplicate);
        if outcome != Outcome::Written {
            fx.counts.publish_latency = Some(fx.now.saturating_sub(written));
        }
        let Some(request) = self.request else { return };
        let receipt = Receipt {
            msg_ref: self.msg_ref,
            topic: self.topic,
            qos: self.qos,
            effective_qos: match outcome {
                Outcome::Written => Qos::AtMostOnce,
                Outcome::Accepted | Outcome::Duplicate if self.deduped => self.qos,
                Outcome::Accepted | Outcome::Duplicate => self.qos.min(Qos::AtLeastOnce),
            },
            outcome,
            level,
            attempts: self.attempts,
            queued: self.first_written.saturating_sub(self.called),
            latency: fx.now.saturating_sub(written),
        };
        fx.complete(request, Ok(Reply::Receipt(Box::new(receipt))));
    }

    fn frame(&self, refer: bool, trace: bool) -> Vec<u8> {
        let (mut filter, mut filters) = (Vec::new(), Vec::new());
        if let Some(value) = self.options.filter.as_deref().filter(|value| !value.is_empty()) {
            write::str(&mut filter, value);
        } else if !self.options.filters.is_empty() {
            write::token(
                &mut filters,
                Token::Array(u32::try_from(self.options.filters.len()).unwrap_or(u32::MAX)),
            );
            for value in &self.options.filters {
                write::str(&mut filters, value);
            }
        }
        let frame = Publish {
            topic: &self.topic,
            data: Data::new(&self.payload),
            qos: Some(self.qos),
            retain: Lenient(self.options.retain.then_some(true)),
            retain_ttl: self.options.retain_ttl.filter(|_| self.options.retain).map(|ttl| ttl.as_secs()),
            echo: Lenient(self.options.no_echo.then_some(false)),
            filter: (!filter.is_empty()).then_some(Raw(&filter)),
            filters: (!filters.is_empty()).then_some(Raw(&filters)),
            trace: self.options.trace.as_deref().filter(|_| trace),
            msg_ref: Lenient(self.msg_ref.as_deref().filter(|_| refer)),
        };
        let mut out = Vec::with_capacity(self.payload.len() + self.topic.len() + 96);
        frame.encode(&mut out);
        out
    }
}

fn too_large(topic: &str, limit: usize) -> Error {
    let mut error =
        Error::refused(&codes::MESSAGE_TOO_LARGE, topic, format_args!("the limit is {limit} bytes"));
    if let Error::Server(server) = &mut error {
        server.max_size_bytes = Some(limit as u64);
    }
    error
}
