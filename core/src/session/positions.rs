//! How far a subscription is: what has come, and what the application is done with (features 2, client-api 8.5).
//!
//! These are two things. After a loss a subscription continues behind what has *come*: what was handed out and is not
//! dispatched yet is still on its way to the application, and must not come twice. What the application is shown, and may
//! continue from after a restart, is what it is *done* with. When the application closes the client, nothing of what it is not
//! done with is handed over any more, so from then on the second counts for both.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nolag_protocol::features::{Feature, Features};
use nolag_protocol::frame::{Message, Subscribed};

use crate::Error;
use crate::options::{Position, SubscribeOptions};

/// The longest epoch, in bytes, and the first number that is none (features 2).
const MAX_EPOCH: usize = 64;
const END_OF_NUMBERS: u64 = 1 << 53;
/// The most messages of a history on join.
const MAX_HISTORY: u16 = 1_000;

/// A place in the broker's run of numbers, and one behind it.
struct At {
    epoch: Arc<str>,
    /// The newest that has come, and was handed out.
    received: u64,
    /// All up to this one is handled.
    handled: u64,
}

/// A message that was handed out.
struct Outstanding {
    delivery: u64,
    seq: u64,
    handled: bool,
}

/// What a `subscribe` asks for beside its messages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Join {
    pub(super) recover: Option<Position>,
    pub(super) history: Option<u16>,
}

/// Why a subscription did not continue, and since when it may have missed messages.
pub(super) struct Missed {
    pub(super) reason: String,
    pub(super) since: Option<Duration>,
}

/// How a subscription stands on the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// The broker has not confirmed it.
    Open,
    /// It has, and may be about to replay.
    Confirmed,
    /// It replays.
    Replaying,
    /// Nothing is left to continue.
    Settled,
}

/// What the answer to a heartbeat proves, which was sent after the broker's confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// The retained messages that belong to it have come.
    Complete,
    /// They were not sent, for the subscription continued; it is time to ask for them.
    Missing,
    /// It replays still.
    Later,
}

/// Where one ordinary subscription is, from its subscribe to its unsubscribe. Load-balanced ones have no place of their own:
/// other members have the messages in between.
pub(super) struct Track {
    at: Option<At>,
    resume_from: Option<Position>,
    history: Option<u16>,
    /// Messages came without numbers since, from a broker that cannot continue subscriptions: what was missed before them would come
    /// out of order now. The position is still what the application is done with.
    is_stale: bool,
    /// The broker has confirmed it, on whatever connection.
    joined: bool,
    standing: Standing,
    /// It was confirmed on a connection that was lost, and not since.
    interrupted: bool,
    /// From when it may have missed something: when that one received something last. Nobody knows of an earlier run of the program.
    since: Option<Duration>,
    /// The broker's newest number when it confirmed: the end of a replay stands for it.
    newest: Option<u64>,
    /// In the order they were handed out.
    outstanding: VecDeque<Outstanding>,
    /// That is not the order of their numbers: copies of what failed, or was not acknowledged, come after newer ones.
    out_of_order: bool,
    /// Retained messages may not have come: they follow a confirmation, nothing says how many there are, and those that a lost
    /// connection owed are no part of a recovery, being older than the position.
    owes_retained: bool,
    /// It continued on this connection.
    recovered: bool,
}

impl Track {
    pub(super) fn new(history: Option<u16>, resume_from: Option<Position>) -> Self {
        Self {
            at: None,
            resume_from,
            history,
            is_stale: false,
            joined: false,
            standing: Standing::Open,
            interrupted: false,
            since: None,
            newest: None,
            outstanding: VecDeque::new(),
            out_of_order: false,
            owes_retained: false,
            recovered: false,
        }
    }

    /// The application asks again, before the broker has confirmed.
    pub(super) fn asked_again(&mut self, history: Option<u16>, resume_from: Option<Position>) {
        if !self.joined {
            self.history = history.or(self.history);
            self.resume_from = resume_from.or_else(|| self.resume_from.take());
        }
    }

    /// Whether it asks for more than the messages from now on.
    pub(super) fn asks_for_more(&self) -> bool {
        self.history.is_some() || self.resume_from.is_some()
    }

    /// What the application is done with; before that is known, what it continues from.
    pub(super) fn position(&self) -> Option<Position> {
        let own = self.at.as_ref().map(|at| Position { epoch: at.epoch.clone(), seq: at.handled });
        own.or_else(|| self.resume_from.clone())
    }

    /// What the next `subscribe` carries: the first of a connection offers to continue, and so does one that takes the place of
    /// another while that replays.
    pub(super) fn join(&self, features: Features) -> Join {
        if self.standing == Standing::Settled || !features.has(Feature::Recover) {
            return Join::default();
        }
        let own = self.at.as_ref().map(|at| Position { epoch: at.epoch.clone(), seq: at.received });
        let recover = own.or_else(|| self.resume_from.clone()).filter(|_| !self.is_stale);
        let history = self.history.filter(|_| recover.is_some() || !self.joined);
        Join { recover, history }
    }

    /// The broker has confirmed a `subscribe` that asked for this. Tells what was missed, if it was to continue and does not.
    pub(super) fn confirmed(&mut self, asked: &Join, answer: &Subscribed<'_>) -> Option<Missed> {
        let is_first = self.standing == Standing::Open;
        let is_replaced =
            self.recovered && matches!(self.standing, Standing::Confirmed | Standing::Replaying);
        let interrupted = std::mem::take(&mut self.interrupted);
        let has_own = self.at.is_some();
        let newest = answer.epoch.zip(answer.seq).filter(|(epoch, seq)| is_valid(epoch, *seq));
        self.joined = true;
        self.recovered = answer.recovered == Some(true);
        self.newest = newest.map(|(_, seq)| seq);
        if let Some(position) = asked.recover.as_ref().filter(|_| self.recovered) {
            self.standing = Standing::Confirmed;
            self.at.get_or_insert_with(|| At {
                epoch: position.epoch.clone(),
                received: position.seq,
                handled: position.seq,
            });
            return None;
        }
        self.standing = if asked.history.is_some() { Standing::Confirmed } else { Standing::Settled };
        self.owes_retained = true;
        match newest {
            Some((epoch, seq)) => self.begin(epoch, seq, is_first || is_replaced),
            None => self.is_stale = true,
        }
        let was_to_continue = asked.recover.is_some() || interrupted || has_own || self.resume_from.is_some();
        (is_replaced || is_first && was_to_continue).then(|| Missed {
            reason: answer.gap.filter(|_| asked.recover.is_some()).unwrap_or("unsupported").to_owned(),
            since: self.since.filter(|_| interrupted || has_own),
        })
    }

    /// From here on. One more confirmation on a connection changes nothing: what comes tells better what has come.
    fn begin(&mut self, epoch: &str, seq: u64, anew: bool) {
        self.is_stale = false;
        match &mut self.at {
            Some(at) if *at.epoch == *epoch => {
                if anew {
                    at.received = seq;
                }
            }
            at => {
                // What is still on its way belongs to another run, whose numbers do not compare.
                self.outstanding.clear();
                *at = Some(At { epoch: epoch.into(), received: seq, handled: seq });
            }
        }
        self.catch_up();
    }

    /// Whether retained messages are to be looked after, with [`Track::proven`].
    pub(super) fn owes_retained(&self) -> bool {
        self.owes_retained
    }

    /// Retained messages are to come, perhaps again.
    pub(super) fn owe_retained(&mut self) {
        self.owes_retained = true;
    }

    /// All that the broker sent up to some time after its confirmation has come.
    pub(super) fn proven(&mut self) -> Proof {
        match self.standing {
            Standing::Replaying => return Proof::Later,
            Standing::Confirmed => self.standing = Standing::Settled,
            Standing::Open | Standing::Settled => {}
        }
        if self.recovered && self.owes_retained {
            return Proof::Missing;
        }
        self.owes_retained = false;
        Proof::Complete
    }

    /// Whether a live message has come before (features 2). Marked ones go by their id.
    pub(super) fn is_repeat(&self, frame: &Message<'_>) -> bool {
        let live = frame.is_replay != Some(true) && frame.retained != Some(true);
        live && self.at.as_ref().zip(frame.seq).is_some_and(|(at, seq)| seq <= at.received)
    }

    /// A message has come, and was handed out under this number unless it is a repeat; true if it is followed until it is handled.
    pub(super) fn came(&mut self, frame: &Message<'_>, delivery: Option<u64>) -> bool {
        if self.standing == Standing::Open {
            return false; // it says nothing of a subscription that the broker has not confirmed
        }
        let Some((at, seq)) = self.at.as_mut().zip(frame.seq) else { return false };
        match (frame.is_replay, frame.retained) {
            (Some(true), _) => {
                self.standing = Standing::Replaying;
                at.received = seq; // what is behind it in the order of numbers follows
            }
            (_, Some(true)) => return false,
            _ => {
                self.standing = Standing::Settled;
                at.received = at.received.max(seq);
            }
        }
        let Some(delivery) = delivery else { return false };
        self.out_of_order |= self.outstanding.back().is_some_and(|last| seq <= last.seq);
        self.outstanding.push_back(Outstanding { delivery, seq, handled: false });
        at.handled = at.handled.min(seq.saturating_sub(1));
        true
    }

    /// The application is done with a message.
    pub(super) fn handled(&mut self, delivery: u64) {
        let found = self.outstanding.binary_search_by_key(&delivery, |message| message.delivery);
        let Some((at, index)) = self.at.as_mut().zip(found.ok()) else { return };
        self.outstanding[index].handled = true;
        while let Some(message) = self.outstanding.pop_front_if(|message| message.handled) {
            at.handled = message.seq;
        }
        let open = self.outstanding.iter().filter(|message| !message.handled).map(|message| message.seq);
        match if self.out_of_order { open.min() } else { self.outstanding.front().map(|next| next.seq) } {
            Some(next) => at.handled = at.handled.min(next.saturating_sub(1)),
            None => self.catch_up(),
        }
    }

    /// Replayed messages follow.
    pub(super) fn replays(&mut self) {
        if self.standing != Standing::Open {
            self.standing = Standing::Replaying;
        }
    }

    /// All replayed messages have come: no other has a number up to the newest one at the confirmation.
    pub(super) fn replayed(&mut self) {
        if self.standing == Standing::Open {
            return;
        }
        self.standing = Standing::Settled;
        if let Some((at, newest)) = self.at.as_mut().zip(self.newest.take()) {
            at.received = at.received.max(newest);
            self.catch_up();
        }
    }

    /// Nothing is on its way to the application: it is done with all that has come.
    fn catch_up(&mut self) {
        if let Some(at) = self.at.as_mut().filter(|_| self.outstanding.is_empty()) {
            at.handled = at.received;
        }
        if self.outstanding.is_empty() {
            self.out_of_order = false;
            if self.outstanding.capacity() > 64 {
                self.outstanding = VecDeque::new();
            }
        }
    }

    /// The broker has let it go, or the connection is gone, which had received something at `last` for the last time: the next
    /// confirmation has to continue it.
    pub(super) fn lost(&mut self, last: Option<Duration>) {
        self.newest = None;
        match std::mem::replace(&mut self.standing, Standing::Open) {
            Standing::Open => return,
            // What is not replayed yet is of the time since the loss before.
            Standing::Confirmed | Standing::Replaying if self.recovered => self.since = self.since.min(last),
            _ => self.since = last,
        }
        self.interrupted = true;
    }

    /// The application closed the client: it is done with nothing more of what is on its way.
    pub(super) fn closed(&mut self) {
        self.outstanding = VecDeque::new();
        self.out_of_order = false;
        if let Some(at) = &mut self.at {
            at.received = at.received.min(at.handled);
        }
    }

    /// From when a message that comes now may be: a replayed one is of the time since the loss, which nobody knows of an earlier
    /// run of the program.
    pub(super) fn dates_from(&self, now: Duration, is_replay: bool) -> Option<Duration> {
        if is_replay { self.since } else { Some(now) }
    }

    /// One of that time was handed out and is not handed over: it is missed, if the subscription cannot continue.
    pub(super) fn dropped(&mut self, dates_from: Option<Duration>) {
        self.since = self.since.min(dates_from); // nobody knows is earliest
    }

    /// Whether it has missed something, or may have, as long as the broker has not confirmed it.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted || self.at.is_some() && self.standing == Standing::Open
    }
}

fn is_valid(epoch: &str, seq: u64) -> bool {
    epoch.len() <= MAX_EPOCH && seq < END_OF_NUMBERS
}

/// What the broker would refuse, or what means nothing.
pub(super) fn check(options: &SubscribeOptions, in_group: bool) -> Result<(), Error> {
    let bad = |message: &str| Err(Error::Config { code: "bad_option", message: message.to_owned() });
    match options {
        SubscribeOptions { history: Some(history), .. } if !(1..=MAX_HISTORY).contains(history) => {
            bad("`history` is a number of messages from 1 to 1000")
        }
        SubscribeOptions { resume_from: Some(Position { epoch, seq }), .. } if !is_valid(epoch, *seq) => {
            bad("`resume_from` is no position: its epoch has at most 64 bytes, and its number is below 2^53")
        }
        SubscribeOptions { history, resume_from, .. }
            if in_group && (history.is_some() || resume_from.is_some()) =>
        {
            bad("`history` and `resume_from` are not for groups, whose messages other members may have had")
        }
        SubscribeOptions { redeliver: true, .. } if !in_group => {
            bad("`redeliver` is for groups: it hands a message to another member")
        }
        SubscribeOptions { ack_timeout: Some(_), redeliver: false, .. } => {
            bad("`ack_timeout` is for groups with `redeliver`")
        }
        SubscribeOptions { ack_timeout: Some(timeout), .. }
            if !(Duration::from_secs(1)..=Duration::from_secs(3_600)).contains(timeout) =>
        {
            bad("`ack_timeout` is a time from 1 s to 1 h")
        }
        _ => Ok(()),
    }
}
