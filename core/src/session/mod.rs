//! The session: what a client decides, without I/O.
//!
//! A host tells it what the caller asked ([`Session::call`]), what the transport did ([`Session::transport`]), what the token
//! provider answered ([`Session::token`]), what the platform hints at ([`Session::hint`]), what became of messages
//! ([`Session::dispatched`]) and that a deadline has come ([`Session::wake`]), each with the time. After each it fetches
//! what is to be done ([`Session::poll`]) and does it in order. The caller's calls change what is wanted, and the session brings every
//! connection to it.
//!
//! - `connection`: states, back-off, heartbeats, liveness; `life` and `upkeep`: how they are carried out
//! - `subscriptions`: what is wanted against what the broker has confirmed; `positions`: how far each is
//! - `outbox` and `pace`: publishes that wait or are in flight
//! - `inbox`: repeats and acknowledgements
//! - `presence`, `lobby` and `record`: rosters and watches
//! - `requests`: which answer belongs to which request
//! - `calls`: what each call does in each state; `frames`: what each frame of the broker does
//! - `effects`: the outputs
//!
//! Where the negotiated features are: `recover` in `positions`, with `subscriptions` (the `subscribe` frame) and `inbox` (what has
//! come, and was handled); `dedupe` and `trace` in `outbox`; `redeliver` in `inbox`; `rooms` in `presence` (the `app` of its
//! frames); `batch` in `frames` (receiving) and the host (sending); `reauth` in `upkeep`.

mod calls;
mod connection;
mod effects;
mod frames;
mod inbox;
mod life;
mod lobby;
mod outbox;
mod pace;
mod positions;
mod presence;
mod record;
mod requests;
mod subscriptions;
mod upkeep;

use std::time::Duration;

use bytes::Bytes;

pub use inbox::Dispatched;
pub use outbox::Depth;
pub use subscriptions::FilterChange;

use crate::Error;
use crate::error::ConnectionCode;
use crate::event::{Actor, Event, LobbySnapshot, Ready, Receipt, Room, State, Topic};
use crate::options::{Feature, Options, Position, PublishOptions, Secret, SubscribeOptions};
use connection::{Connection, MAX_HEARTBEAT};
use effects::{Effects, earlier};
use inbox::Inbox;
use lobby::Lobbies;
use outbox::Outbox;
use presence::Presence;
use requests::Requests;
use subscriptions::Subscriptions;

/// A call of the caller's, numbered by the host; numbers of calls that are not complete must differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A transport, numbered by the session; what an earlier one still does is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// How many calls may be open at a time; further ones fail with `queue_full`.
pub const MAX_OPEN_CALLS: usize = 100_000;

/// What the caller asks for. Each is completed exactly once.
#[derive(Debug, Clone)]
pub enum Call {
    /// Connect, and stay connected.
    Connect,
    /// Close at once; what is open fails.
    Disconnect,
    /// Close when all that was published has been answered, or when the time is over.
    Close {
        /// Whether to wait at all.
        flush: bool,
        /// For how long.
        timeout: Duration,
    },
    /// Want the messages of a topic.
    Subscribe {
        /// The pattern.
        topic: String,
        /// How.
        options: SubscribeOptions,
    },
    /// Want them no more.
    Unsubscribe {
        /// The pattern.
        topic: String,
    },
    /// Want others of them.
    Filters {
        /// The pattern.
        topic: String,
        /// Which.
        change: FilterChange,
    },
    /// Publish one MessagePack value. Completed with [`Reply::Receipt`].
    Publish {
        /// The topic.
        topic: String,
        /// The value.
        payload: Bytes,
        /// How.
        options: PublishOptions,
    },
    /// Wait until nothing is queued or in flight.
    Flush {
        /// For how long; `None` for as long as it takes.
        timeout: Option<Duration>,
    },
    /// Announce presence in a room, or take it back.
    SetPresence {
        /// The room; `None` is the old form, which is announced to nobody.
        room: Option<Room>,
        /// One MessagePack value; `None` takes presence back.
        data: Option<Bytes>,
    },
    /// Ask who is in a room. Completed with [`Reply::Presence`].
    FetchPresence {
        /// The room.
        room: Room,
    },
    /// Watch a lobby. Completed with [`Reply::Lobby`].
    WatchLobby {
        /// Its slug.
        lobby: String,
    },
    /// Watch it no more.
    UnwatchLobby {
        /// Its slug.
        lobby: String,
    },
    /// Ask who is in a lobby's rooms. Completed with [`Reply::Lobby`].
    FetchLobby {
        /// Its slug.
        lobby: String,
    },
    /// Acknowledge messages by id.
    Ack {
        /// The ids.
        ids: Vec<String>,
    },
    /// Use another static token from the next attempt on.
    UpdateToken {
        /// The token.
        token: Secret,
    },
}

/// What a call is completed with.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// It is done.
    Done,
    /// A publish was.
    Receipt(Box<Receipt>),
    /// Who is in a room.
    Presence(Vec<Actor>),
    /// Who is in a lobby's rooms.
    Lobby(LobbySnapshot),
}

/// What a transport did.
#[derive(Debug, Clone)]
pub enum Transport {
    /// It is open.
    Opened,
    /// A binary message came; an empty one is a heartbeat.
    Frame(Bytes),
    /// A text message came: one frame as JSON.
    #[cfg(feature = "json")]
    Text(String),
    /// The other end closed it, or it ended without a close.
    Closed {
        /// The close code; `None` without a close.
        code: Option<u16>,
        /// The reason.
        reason: String,
    },
    /// It could not be opened, or broke.
    Failed {
        /// What failed.
        code: ConnectionCode,
        /// The circumstances, without the token.
        message: String,
        /// The server's own bound on the next attempt (`Retry-After`).
        retry_after: Option<Duration>,
    },
}

/// A token as its provider gives it.
#[derive(Debug, Clone)]
pub struct Token {
    /// The token.
    pub secret: Secret,
    /// How long it is valid, if that is known; times its renewal only, and is never verified.
    pub expires_in: Option<Duration>,
}

/// Why a token is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenReason {
    /// For the first connection.
    Initial,
    /// For another one.
    Reconnect,
    /// The last one has expired, or is about to.
    Expired,
    /// The last one was refused.
    Rejected,
}

impl TokenReason {
    /// Its name, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::Reconnect => "reconnect",
            Self::Expired => "expired",
            Self::Rejected => "rejected",
        }
    }
}

/// What a token is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRequest {
    /// Why.
    pub reason: TokenReason,
    /// The attempt it is for, from 1.
    pub attempt: u32,
    /// What failed last.
    pub last_error: Option<Error>,
}

/// Why a provider gave no token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFailure {
    /// The circumstances, without the token.
    pub message: String,
    /// Whether asking again is of no use.
    pub fatal: bool,
}

/// What the platform hints at (client-api 10.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// There is no network.
    Offline,
    /// There is one again, or another.
    Online,
    /// The application is being put to sleep.
    Suspend,
    /// It is back.
    Resume,
    /// The machine has slept for so long, and session time stood still meanwhile. (A host whose clock goes on during sleep need not
    /// say so: a wake-up that comes more than 10 s late is taken for one.)
    Slept(Duration),
    /// The application wants an attempt now.
    ReconnectNow,
}

/// What the host does, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Open a transport to the URL of the options.
    OpenTransport {
        /// Its number.
        link: LinkId,
    },
    /// Send a frame, as a binary message of its own or, where [`Session::may_batch`] says so, together with others.
    Send {
        /// On this transport.
        link: LinkId,
        /// One frame; empty for a heartbeat, which is a message of its own in any case.
        frame: Bytes,
    },
    /// Close a transport; nothing it still does matters.
    CloseTransport {
        /// Which.
        link: LinkId,
        /// The close code.
        code: u16,
        /// The reason.
        reason: &'static str,
        /// Without waiting for the other end, which does not answer.
        abort: bool,
    },
    /// Fetch a token, and drop an earlier fetch that still runs: there is at most one at a time.
    NeedToken {
        /// Given back with the token.
        call: u64,
        /// Why.
        request: TokenRequest,
    },
    /// Wake the session at this time; it replaces an earlier one. `None`: never.
    WakeAt(Option<Duration>),
    /// Tell the caller.
    Event(Event),
    /// A call is complete.
    Complete {
        /// Which.
        request: RequestId,
        /// What with.
        result: Result<Reply, Error>,
    },
}

/// What counts. Numbers of events count from the session's start and never decrease (client-api 14).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections that were authenticated.
    pub connects: u64,
    /// Attempts that failed.
    pub connect_failures: u64,
    /// Connections that were lost and are back.
    pub reconnects: u64,
    /// How long those were away, together.
    pub downtime: Duration,
    /// Frames that came, heartbeats included.
    pub frames_in: u64,
    /// Frames that were sent, heartbeats included.
    pub frames_out: u64,
    /// Bytes of the frames that came.
    pub bytes_in: u64,
    /// Bytes of the frames that were sent.
    pub bytes_out: u64,
    /// Publishes that succeeded.
    pub published: u64,
    /// Of those, the ones that the broker had accepted before.
    pub published_again: u64,
    /// From the last writing of the publish that was answered last to its answer.
    pub publish_latency: Option<Duration>,
    /// Publishes that failed, but for those that the queue could not keep.
    pub publish_failures: u64,
    /// Publishes that the queue could not keep.
    pub queue_dropped: u64,
    /// Of those, the ones that had waited for too long.
    pub queue_expired: u64,
    /// Messages that were handed out.
    pub received: u64,
    /// Messages whose handler failed.
    pub handler_errors: u64,
    /// Subscriptions that missed messages.
    pub gaps: u64,
    /// Messages that were acknowledged.
    pub acks_sent: u64,
    /// Acknowledgements that wait.
    pub ack_backlog: usize,
    /// Publishes that wait or are in flight.
    pub outbox: Depth,
    /// Repeated messages that were dropped.
    pub duplicates: u64,
    /// Frames that could not be read.
    pub decode_errors: u64,
    /// The last heartbeat's round trip.
    pub round_trip: Option<Duration>,
    /// Requests without an answer, publishes not included.
    pub pending_requests: usize,
    /// Calls that are not complete.
    pub open_calls: usize,
    /// Message ids that are remembered.
    pub remembered_ids: usize,
    /// Topics that are wanted, or not yet let go.
    pub topics: usize,
}

/// One client's mind. See the [module](self).
pub struct Session {
    options: Options,
    fx: Effects,
    connection: Connection,
    requests: Requests,
    subscriptions: Subscriptions,
    outbox: Outbox,
    inbox: Inbox,
    presence: Presence,
    lobbies: Lobbies,
    client_id: String,
    actor_id: Option<String>,
    /// What the recovery has brought so far, until it is over.
    recovery: Option<Ready>,
    reported: State,
    /// A loss that is told once the state says so too (API-005).
    loss: Option<Event>,
    told_deadline: Option<Duration>,
}

impl Session {
    /// A client that was never connected. Equal options, seeds and inputs give equal outputs (API-092).
    pub fn new(options: Options, seed: u64) -> Self {
        let options = options.bounded();
        let mut fx = Effects::new(seed);
        let client_id = fx.client_id(&options);
        if options.heartbeat_interval > MAX_HEARTBEAT {
            fx.warn(crate::event::Warning::HeartbeatCut);
        }
        Self {
            outbox: Outbox::new(&options),
            options,
            fx,
            connection: Connection::new(),
            requests: Requests::default(),
            subscriptions: Subscriptions::default(),
            inbox: Inbox::default(),
            presence: Presence::default(),
            lobbies: Lobbies::default(),
            client_id,
            actor_id: None,
            recovery: None,
            reported: State::Idle,
            loss: None,
            told_deadline: None,
        }
    }

    /// What is to be done next, in order; `None` when all is done until the next input.
    pub fn poll(&mut self) -> Option<Output> {
        if let Some(output) = self.fx.pop() {
            return Some(output);
        }
        let deadline = self.deadline();
        (deadline != self.told_deadline).then(|| {
            self.told_deadline = deadline;
            Output::WakeAt(deadline)
        })
    }

    /// The host is about to wait: buffers that a burst has left are given back.
    pub fn shrink(&mut self) {
        self.fx.shrink();
    }

    /// How many outputs wait to be fetched.
    pub fn outputs(&self) -> usize {
        self.fx.len()
    }

    fn deadline(&mut self) -> Option<Duration> {
        let quiet = earlier(
            earlier(self.connection.deadline(), self.requests.deadline()),
            earlier(self.inbox.deadline(), self.presence.deadline()),
        );
        earlier(quiet, self.outbox.deadline(self.fx.now, &self.options))
    }

    /// Whether frames that are ready together may go out in one message, one after another: the broker grants `batch` (features
    /// 5). It may change with [`Session::transport`] alone.
    pub fn may_batch(&self) -> bool {
        self.fx.features.has(Feature::Batch)
    }

    /// The transport does not take what it is given, or takes it again: publishes stay in their queue meanwhile, within its bounds
    /// (client-api 12.1). A new transport takes all.
    pub fn hold_publishes(&mut self, now: Duration, hold: bool) {
        self.begin(now);
        self.outbox.congested = hold;
        self.end();
    }

    /// A deadline has come.
    pub fn wake(&mut self, now: Duration) {
        self.begin(now);
        self.end();
    }

    /// The host reports what became of messages (client-api 8.4).
    pub fn dispatched(&mut self, now: Duration, report: Dispatched) {
        self.begin(now);
        self.inbox.dispatched(&mut self.fx, &self.options, &mut self.subscriptions, report);
        self.end();
    }

    /// Whether the host may read on: not while too many messages are handed out and not reported (client-api 12.1).
    pub fn wants_input(&self) -> bool {
        self.inbox.has_room(&self.options)
    }

    /// Whether an answer of the broker's is awaited.
    pub fn awaits_answer(&self) -> bool {
        self.requests.len() > 0 || self.outbox.in_flight() > 0
    }

    /// Where the connection stands.
    pub fn state(&self) -> State {
        self.connection.state()
    }

    /// Whether the answers to what was sent after connecting are still awaited (client-api 2.3).
    pub fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// The actor, once authenticated.
    pub fn actor_id(&self) -> Option<&str> {
        self.actor_id.as_deref()
    }

    /// The topics that are wanted, each with whether the broker has confirmed it so.
    pub fn subscriptions(&self) -> impl Iterator<Item = (&Topic, bool)> {
        self.subscriptions.states()
    }

    /// How far the application is with a subscription: up to here it was handed all messages, and in
    /// [`AckMode::AfterHandler`](crate::options::AckMode::AfterHandler) their handlers have finished (features 2). `None` for
    /// groups, and as long as nothing is known.
    pub fn position(&self, topic: &str) -> Option<Position> {
        self.subscriptions.position(topic)
    }

    /// The positions that may have moved since this was last asked, each once; `None` where there is none any more. For hosts whose
    /// positions are read where the session is not.
    pub fn take_moved(&mut self) -> impl Iterator<Item = (Topic, Option<Position>)> {
        self.subscriptions.take_moved()
    }

    /// The lobbies that are watched.
    pub fn lobbies(&self) -> impl Iterator<Item = &str> {
        self.lobbies.names()
    }

    /// The rooms that have a roster.
    pub fn rooms(&self) -> impl Iterator<Item = &Room> {
        self.presence.rooms()
    }

    /// Who is in a room, as far as it is known.
    pub fn roster(&self, room: &Room) -> impl Iterator<Item = &Actor> {
        self.presence.roster(room)
    }

    /// What counts.
    pub fn stats(&self) -> Stats {
        let round_trip = match &self.connection.phase {
            connection::Phase::Up(up) => up.heart.round_trip,
            _ => None,
        };
        Stats {
            outbox: self.outbox.depth(self.fx.now),
            duplicates: self.inbox.duplicates(),
            round_trip,
            pending_requests: self.requests.len(),
            open_calls: self.fx.open_calls(),
            remembered_ids: self.inbox.remembered(),
            topics: self.subscriptions.len(),
            ack_backlog: self.inbox.ack_backlog(),
            ..self.fx.counts
        }
    }
}
