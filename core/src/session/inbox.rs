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
use super::subscriptions::Subscriptions;
use crate::event::{Event, Message, Topic, Warning};
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
    topic: Topic,
    msg_id: Option<(Mark, MsgId)>,
    requires_ack: bool,
}

/// What became of messages, as the host reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dispatched {
    /// All up to and including this delivery were dispatched; their handlers may still run in `afterHandler` mode.
    UpTo(u64),
    /// The handlers of these finished; true where all succeeded.
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
        subscriptions: &Subscriptions,
        bytes: &Bytes,
        frame: &Frame<'_>,
    ) {
        let Some(topic) = subscriptions.wants(frame.topic).cloned() else {
            self.unwanted += 1; // it crossed an unsubscribe
            return;
        };
        let requires_ack = frame.requires_ack == Some(true) && frame.msg_id.is_some();
        let msg_id: Option<(Mark, MsgId)> = frame.msg_id.map(|msg_id| (Mark::of(msg_id), msg_id.into()));
        if let Some((mark, msg_id)) = msg_id.as_ref().filter(|_| options.dedupe.enabled) {
            match self.seen(fx.now, options, &topic, *mark) {
                None | Some(Progress::Failed | Progress::Unacknowledged) => {
                    self.remember(fx.now, options, &topic, *mark);
                }
                Some(Progress::Running) => {
                    self.duplicates += 1;
                    return;
                }
                Some(Progress::Done) => {
                    self.duplicates += 1;
                    if requires_ack && options.ack_mode != AckMode::Manual {
                        self.acknowledge(fx, msg_id.clone());
                        self.schedule(fx, options);
                    }
                    return;
                }
            }
        }
        self.next += 1;
        fx.counts.received += 1;
        self.handed_out.push_back(HandedOut {
            delivery: self.next,
            topic: topic.clone(),
            msg_id,
            requires_ack,
        });
        fx.event(Event::Message(Message {
            delivery: self.next,
            topic,
            data: bytes.slice_ref(frame.data.bytes),
            is_replay: frame.is_replay == Some(true),
            requires_ack,
            frame: bytes.clone(),
        }));
    }

    /// What the host did with messages.
    pub(super) fn dispatched(&mut self, fx: &mut Effects, options: &Options, report: Dispatched) {
        match report {
            Dispatched::UpTo(last) if options.ack_mode != AckMode::AfterHandler => {
                while self.handed_out.front().is_some_and(|message| message.delivery <= last) {
                    let Some(message) = self.handed_out.pop_front() else { break };
                    self.finished(fx, options, message, true);
                }
            }
            Dispatched::UpTo(_) => {}
            Dispatched::Finished(reports) => {
                for (delivery, succeeded) in reports {
                    // Mostly it is the oldest.
                    let is_oldest =
                        self.handed_out.front().is_some_and(|message| message.delivery == delivery);
                    let found = if is_oldest {
                        self.handed_out.pop_front()
                    } else {
                        let found =
                            self.handed_out.binary_search_by_key(&delivery, |message| message.delivery);
                        found.ok().and_then(|index| self.handed_out.remove(index))
                    };
                    let Some(message) = found else { continue };
                    self.finished(fx, options, message, succeeded);
                }
            }
        }
        self.schedule(fx, options);
    }

    fn finished(&mut self, fx: &mut Effects, options: &Options, message: HandedOut, succeeded: bool) {
        let Some((mark, msg_id)) = message.msg_id else { return };
        // A failing handler withholds the acknowledgement in one mode only (point 5 of the decided ones).
        let progress = match options.ack_mode {
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

    /// The client is closed: what was handed out and not reported was not handled, and may come again (design.md).
    pub(super) fn closed(&mut self) {
        self.send_at = None;
        for message in self.handed_out.drain(..) {
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
        while self.order.front().is_some_and(|(at, ..)| *at + options.dedupe.window <= now) {
            self.drop_oldest();
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
