//! Messages that came: which are repeats, and which are acknowledged when (client-api 8).
//!
//! A message is handed out under a delivery number, and the host reports what became of it. Only then does an
//! acknowledgement leave, so that none does before the application had the message.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use nolag_protocol::frame::{Ack, BatchAck, Ids, Message as Frame};

use super::effects::Effects;
use super::subscriptions::{Receiving, Subscriptions};
use crate::event::{Event, Message, Places, Topic, Warning};
use crate::options::{AckMode, Options};

/// How many acknowledgements may wait for a connection (client-api 7.4).
const MAX_PENDING_ACKS: usize = 10_000;
/// How many one frame may carry (wire protocol 9).
const MAX_BATCH: usize = 1_000;

/// How far the application is with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Handed out; its handlers may still run.
    Running,
    /// Dispatched, in manual mode: nobody has acknowledged it yet.
    Unacknowledged,
    /// A handler failed.
    Failed,
    /// Acknowledged, or dispatched where nobody asks for that.
    Done,
}

/// A message's id, as acknowledgements carry it.
type MsgId = Arc<str>;

/// What an id is known by: two hashes of it. Ids that are not the same meet once in 2^128, and ten thousand of these stay in a
/// processor's cache, where the texts would not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Mark(u64, u64);

impl Mark {
    fn of(msg_id: &str) -> Self {
        let hash = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, msg_id).hash(&mut hasher);
            hasher.finish()
        };
        Self(hash(0), hash(1))
    }
}

/// The ids of one topic that are known.
struct Window {
    /// Tells this window from an earlier one of the same topic.
    number: u64,
    ids: HashMap<Mark, Progress>,
}

struct HandedOut {
    delivery: u64,
    /// [`Track::dates_from`](super::positions::Track::dates_from).
    dates_from: Option<Duration>,
    topic: Topic,
    msg_id: Option<(Mark, MsgId)>,
    requires_ack: bool,
    ack_mode: AckMode,
    /// The position of its subscription moves with it.
    is_followed: bool,
    /// A subscribe brought it.
    is_retained: bool,
}

/// What became of messages, as the host reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dispatched {
    /// All up to and including this delivery were dispatched; the handlers of those in [`AckMode::AfterHandler`] may still run.
    UpTo(u64),
    /// These were dispatched, or their handlers have finished where that is what counts; true where all succeeded.
    Finished(Vec<(u64, bool)>),
}

#[derive(Default)]
pub(super) struct Inbox {
    windows: HashMap<Topic, Window>,
    /// Ids in the order they came, with the number of their window: the oldest go first.
    order: VecDeque<(Duration, Topic, u64, Mark)>,
    handed_out: VecDeque<HandedOut>,
    next: u64,
    acks: Vec<MsgId>,
    /// When gathered acknowledgements are sent.
    send_at: Option<Duration>,
    duplicates: u64,
    unwanted: u64,
}

impl Inbox {
    /// A message for one of the wanted topics; repeats and others are dropped.
    pub(super) fn message(
        &mut self,
        fx: &mut Effects,
        options: &Options,
        subscriptions: &mut Subscriptions,
        bytes: &Bytes,
        frame: &Frame<'_>,
    ) {
        let Some(Receiving { index, topic, mut track, after_handler }) =
            subscriptions.receiving(frame.topic, fx.features)
        else {
            self.unwanted += 1; // it crossed an unsubscribe
            return;
        };
        let requires_ack = frame.requires_ack == Some(true) && frame.msg_id.is_some();
        let msg_id: Option<(Mark, MsgId)> = frame.msg_id.map(|msg_id| (Mark::of(msg_id), msg_id.into()));
        let known = msg_id.as_ref().filter(|_| options.dedupe.enabled).map(|(mark, _)| *mark);
        let progress = known.and_then(|mark| self.seen(fx.now, options, topic, mark));
        let has_come = track.as_ref().is_some_and(|track| track.is_repeat(frame));
        if has_come || matches!(progress, Some(Progress::Running | Progress::Done)) {
            self.duplicates += 1;
            if let Some(track) = track {
                track.came(frame, None);
            }
            let is_done = progress == Some(Progress::Done);
            if let Some((_, msg_id)) = msg_id.filter(|_| requires_ack && is_done) {
                self.acknowledge(fx, msg_id);
                self.schedule(fx, options);
            }
            return;
        }
        if let Some(mark) = known {
            self.remember(fx.now, options, topic, mark);
        }
        self.next += 1;
        fx.counts.received += 1;
        let is_replay = frame.is_replay == Some(true);
        let ack_mode = match options.ack_mode {
            AckMode::Auto if after_handler => AckMode::AfterHandler,
            mode => mode,
        };
        self.handed_out.push_back(HandedOut {
            delivery: self.next,
            dates_from: track.as_ref().and_then(|track| track.dates_from(fx.now, is_replay)),
            topic: topic.clone(),
            msg_id,
            requires_ack,
            ack_mode,
            is_followed: track.as_mut().is_some_and(|track| track.came(frame, Some(self.next))),
            is_retained: frame.retained == Some(true) && !is_replay,
        });
        fx.event(Event::Message(Message {
            delivery: self.next,
            topic: topic.clone(),
            data: bytes.slice_ref(frame.data.bytes),
            is_replay,
            requires_ack,
            ack_mode,
            frame: bytes.clone(),
            places: Places::of(frame, bytes),
        }));
        if is_replay {
            subscriptions.note_moved(index); // it may lie before what the application was told
        }
    }

    /// What the host did with messages.
    pub(super) fn dispatched(
        &mut self,
        fx: &mut Effects,
        options: &Options,
        subscriptions: &mut Subscriptions,
        report: Dispatched,
    ) {
        let mut done = |this: &mut Self, message, succeeded| {
            this.finished(fx, subscriptions, message, succeeded);
        };
        match report {
            Dispatched::UpTo(last) => {
                let is_done = |message: &HandedOut| {
                    message.delivery <= last && message.ack_mode != AckMode::AfterHandler
                };
                while let Some(message) = self.handed_out.pop_front_if(|message| is_done(message)) {
                    done(self, message, true);
                }
                // What is behind one whose handlers run.
                let mut index = 0;
                while self.handed_out.get(index).is_some_and(|message| message.delivery <= last) {
                    if self.handed_out.get(index).is_some_and(is_done) {
                        let Some(message) = self.handed_out.remove(index) else { break };
                        done(self, message, true);
                    } else {
                        index += 1;
                    }
                }
            }
            Dispatched::Finished(reports) => {
                for (delivery, succeeded) in reports {
                    // Mostly it is the oldest.
                    let oldest = self.handed_out.pop_front_if(|message| message.delivery == delivery);
                    let Some(message) = oldest.or_else(|| {
                        let found =
                            self.handed_out.binary_search_by_key(&delivery, |message| message.delivery);
                        self.handed_out.remove(found.ok()?)
                    }) else {
                        continue;
                    };
                    done(self, message, succeeded);
                }
            }
        }
        self.schedule(fx, options);
    }

    fn finished(
        &mut self,
        fx: &mut Effects,
        subscriptions: &mut Subscriptions,
        message: HandedOut,
        succeeded: bool,
    ) {
        fx.counts.handler_errors += u64::from(!succeeded);
        if message.is_followed {
            // A failure is reported, and does not hold the position up: one message that always fails would end recovery.
            subscriptions.handled(&message.topic, message.delivery);
        }
        let Some((mark, msg_id)) = message.msg_id else { return };
        // A failing handler withholds the acknowledgement in one mode only (point 5 of the decided ones).
        let progress = match message.ack_mode {
            AckMode::AfterHandler if !succeeded => Progress::Failed,
            AckMode::Manual if message.requires_ack => Progress::Unacknowledged,
            AckMode::Auto | AckMode::AfterHandler | AckMode::Manual => Progress::Done,
        };
        if let Some(known) = self.windows.get_mut(&message.topic).and_then(|w| w.ids.get_mut(&mark))
            && *known == Progress::Running
        {
            *known = progress;
        }
        if message.requires_ack && progress == Progress::Done {
            self.acknowledge(fx, msg_id);
        }
    }

    /// The application acknowledges by itself (8.4).
    pub(super) fn ack(&mut self, fx: &mut Effects, options: &Options, ids: Vec<String>) {
        for id in ids {
            let mark = Mark::of(&id);
            for window in self.windows.values_mut() {
                if let Some(progress) = window.ids.get_mut(&mark) {
                    *progress = Progress::Done;
                }
            }
            self.acknowledge(fx, id.into());
        }
        self.schedule(fx, options);
    }

    fn acknowledge(&mut self, fx: &mut Effects, id: MsgId) {
        if self.acks.len() >= MAX_PENDING_ACKS {
            fx.warn(Warning::AcksDropped);
            return;
        }
        self.acks.push(id);
    }

    fn schedule(&mut self, fx: &mut Effects, options: &Options) {
        if self.acks.is_empty() || fx.link.is_none() {
            return;
        }
        if options.ack_batch_interval.is_zero() {
            self.send_acks(fx);
        } else if self.send_at.is_none() {
            self.send_at = Some(fx.now + options.ack_batch_interval);
        }
    }

    /// Sends what is gathered: one id as `ack`, more as `batchAck` (K-043).
    pub(super) fn send_acks(&mut self, fx: &mut Effects) {
        if fx.link.is_none() {
            return;
        }
        self.send_at = None;
        fx.counts.acks_sent += self.acks.len() as u64;
        for batch in std::mem::take(&mut self.acks).chunks(MAX_BATCH) {
            match batch {
                [msg_id] => fx.send(Ack { msg_id }.to_vec()),
                ids => fx.send(BatchAck { msg_ids: Ids(ids.iter().map(|id| &**id).collect()) }.to_vec()),
            }
        }
    }

    pub(super) fn wake(&mut self, fx: &mut Effects) {
        if self.send_at.is_some_and(|at| at <= fx.now) {
            self.send_acks(fx);
        }
    }

    /// The connection is gone; acknowledgements stay.
    pub(super) fn lost(&mut self) {
        self.send_at = None;
    }

    /// The application closed the client: what was handed out and not reported is not handed over any more, and comes again
    /// when it connects again (client-api 12.4).
    pub(super) fn closed(&mut self, subscriptions: &mut Subscriptions) {
        self.send_at = None;
        subscriptions.closed();
        for message in self.handed_out.drain(..) {
            subscriptions.dropped(&message.topic, message.dates_from, message.is_retained);
            if let Some((mark, _)) = message.msg_id
                && let Some(window) = self.windows.get_mut(&message.topic)
                && window.ids.get(&mark) == Some(&Progress::Running)
            {
                window.ids.remove(&mark);
            }
        }
    }

    /// A topic is no longer wanted: a later subscription gets its retained message again.
    pub(super) fn forget(&mut self, topic: &str) {
        self.windows.remove(topic);
    }

    /// Whether the host may go on reading the connection.
    pub(super) fn has_room(&self, options: &Options) -> bool {
        self.handed_out.len() < options.receive_buffer.max(1)
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.send_at
    }

    /// How many acknowledgements wait.
    pub(super) fn ack_backlog(&self) -> usize {
        self.acks.len()
    }

    /// Repeats that were dropped.
    pub(super) fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// How many ids are remembered.
    pub(super) fn remembered(&self) -> usize {
        self.order.len()
    }

    fn seen(&mut self, now: Duration, options: &Options, topic: &Topic, mark: Mark) -> Option<Progress> {
        while let Some((at, ..)) = self.order.front()
            && *at + options.dedupe.window <= now
        {
            self.expire_oldest(now);
        }
        self.windows.get(topic).and_then(|window| window.ids.get(&mark)).copied()
    }

    fn remember(&mut self, now: Duration, options: &Options, topic: &Topic, mark: Mark) {
        let next = self.next;
        let window =
            self.windows.entry(topic.clone()).or_insert_with(|| Window { number: next, ids: HashMap::new() });
        if window.ids.insert(mark, Progress::Running).is_none() {
            self.order.push_back((now, topic.clone(), window.number, mark));
            while self.order.len() > options.dedupe.max_ids.max(1) {
                self.drop_oldest();
            }
        }
    }

    /// The oldest is forgotten, unless its handlers still run: what is redelivered meanwhile is a copy however long they take.
    fn expire_oldest(&mut self, now: Duration) {
        let Some((at, topic, number, mark)) = self.order.front() else { return };
        let window = self.windows.get(topic).filter(|window| window.number == *number && *at < now);
        let runs = window.is_some_and(|window| window.ids.get(mark) == Some(&Progress::Running));
        if runs && let Some((_, topic, number, mark)) = self.order.pop_front() {
            self.order.push_back((now, topic, number, mark));
        } else {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some((_, topic, number, mark)) = self.order.pop_front() else { return };
        if let Some(window) = self.windows.get_mut(&topic)
            && window.number == number
        {
            window.ids.remove(&mark);
            if window.ids.is_empty() {
                self.windows.remove(&topic);
            }
        }
    }
}
