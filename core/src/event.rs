//! What a caller is told (client-api 13).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nolag_protocol::frame::Message as Frame;

use crate::Error;
use crate::options::{AckMode, Features, Qos};

/// A topic, as subscribed: cheap to share.
pub type Topic = Arc<str>;

/// The reason of a close that the application asked for (client-api 12.2).
pub const CLIENT_DISCONNECT: &str = "Client disconnect";

/// Where the connection stands (client-api 2.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Never connected.
    Idle,
    /// The transport is being opened.
    Connecting,
    /// It is open; the broker has not answered yet.
    Authenticating,
    /// Authenticated.
    Connected,
    /// Waiting for the next attempt.
    Backoff,
    /// Attempts are held back by the platform.
    Suspended,
    /// Sending what is left before closing.
    Closing,
    /// Closed by the application.
    Closed,
    /// Given up.
    Failed,
}

impl State {
    /// Its name, the same in every language.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Authenticating => "authenticating",
            Self::Connected => "connected",
            Self::Backoff => "backoff",
            Self::Suspended => "suspended",
            Self::Closing => "closing",
            Self::Closed => "closed",
            Self::Failed => "failed",
        }
    }
}

/// What a caller is told, in the order it happened.
///
/// Around a loss that is `Disconnected`, `Error`, `Reconnecting`, `Connected`, `Gap`, `Ready`, `Reconnected`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The state changed.
    State {
        /// Before.
        from: State,
        /// Now.
        to: State,
        /// Why.
        reason: String,
        /// The close code that brought it, if one did.
        close_code: Option<u16>,
    },
    /// `connect` was called.
    Connecting,
    /// Authenticated; what was asked for before has been sent again, and not been answered yet.
    Connected {
        /// The actor.
        actor_id: Option<String>,
        /// Its type, an open set.
        actor_type: Option<String>,
        /// Its project.
        project_id: Option<String>,
        /// The negotiated version.
        protocol_version: u64,
        /// The features granted (features 1).
        features: Features,
    },
    /// The connection is gone.
    Disconnected {
        /// The reason.
        reason: String,
        /// The close code, if the other end gave one.
        close_code: Option<u16>,
    },
    /// An attempt is due.
    Reconnecting {
        /// The how manieth, from 1.
        attempt: u32,
        /// After this wait.
        delay: Duration,
        /// What failed.
        reason: String,
    },
    /// All that was asked for before has been answered.
    Ready(Ready),
    /// The connection is back, and ready.
    Reconnected,
    /// Something failed; the client goes on unless [`Error::fatal`].
    Error(Error),
    /// The client gave up.
    Failed(Error),
    /// Something the developer should know.
    Warning(Warning),
    /// A message.
    Message(Message),
    /// Replayed messages follow.
    ReplayStart {
        /// The subscription, where the broker names it.
        topic: Option<Topic>,
        /// How many.
        count: u64,
        /// The first one's time, ms since the epoch.
        oldest_timestamp: Option<u64>,
        /// The last one's time, ms since the epoch.
        newest_timestamp: Option<u64>,
    },
    /// All replayed messages have come.
    ReplayEnd {
        /// The subscription, where the broker names it.
        topic: Option<Topic>,
        /// How many, as the broker counts.
        replayed: u64,
    },
    /// What a hydration webhook answered (K-047).
    Hydration {
        /// The bare topic name.
        topic: String,
        /// The subscription, where the broker names it.
        full_topic: Option<String>,
        /// The answer, one MessagePack value.
        data: Bytes,
    },
    /// Messages of a subscription may have been missed.
    Gap(Gap),
    /// A reader has caught up that had dropped messages, as it was told to, because it was too slow
    /// ([`ReceiveOverflow`](crate::options::ReceiveOverflow)).
    Overflow {
        /// The subscription.
        topic: Topic,
        /// How many were dropped since it had caught up last.
        dropped: u64,
    },
    /// Somebody in a room came, changed or left.
    Presence(Change, Box<Actor>),
    /// Presence in this room ended, because the broker keeps one room per connection.
    PresenceReplaced(Room),
    /// Somebody in a lobby's rooms came, changed or left.
    Lobby(Box<LobbyChange>),
}

/// The end of the recovery that follows every connect (client-api 2.3).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ready {
    /// Subscriptions that were made again.
    pub resubscribed: Vec<Topic>,
    /// Subscriptions that the broker refused.
    pub refused: Vec<(Topic, Error)>,
    /// There was a loss, and every subscription continues where it stopped.
    pub resumed: bool,
    /// Those that do not.
    pub gaps: Vec<Gap>,
}

/// A subscription that could not continue where it stopped: what came meanwhile may be missed (features 2). Subscriptions of a
/// group give none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The subscription.
    pub topic: Topic,
    /// `epoch`, `expired` or `too_many`, as the broker says; `unsupported` where the broker cannot continue subscriptions.
    pub reason: String,
    /// When the connection that was lost last received anything, in session time; absent after
    /// [`resume_from`](crate::options::SubscribeOptions::resume_from).
    pub since: Option<Duration>,
}

/// Something the developer should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The heartbeat interval was cut to 45 s, because brokers close connections that are silent for 60 s.
    HeartbeatCut,
    /// The broker does not recognise repeated publishes, and so gives no quality of service 2; the publish is treated as one of 1.
    QosReduced,
    /// Presence without a room is announced to nobody (wire protocol 10.5).
    PresenceWithoutRoom,
    /// Acknowledgements were dropped, because more than 10,000 waited for a connection.
    AcksDropped,
}

/// A message of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Counts deliveries; what the host gives back when it has dispatched the message.
    pub delivery: u64,
    /// The subscription that it came for, byte for byte.
    pub topic: Topic,
    /// The payload, one MessagePack value.
    pub data: Bytes,
    /// Whether it is replayed.
    pub is_replay: bool,
    /// Whether the broker asks for an acknowledgement.
    pub requires_ack: bool,
    /// When it is acknowledged. In [`AckMode::AfterHandler`], which messages of a group with redelivery have whatever the client's
    /// mode is, the host reports it when its handlers have finished; else when it was dispatched.
    pub ack_mode: AckMode,
    /// The whole frame.
    pub(crate) frame: Bytes,
    /// What lies where in it.
    pub(crate) places: Places,
}

impl Message {
    /// All that came beside the payload.
    pub fn meta(&self) -> Meta<'_> {
        let at = &self.places;
        let text = |place| self.text(place);
        Meta {
            msg_id: text(at.msg_id),
            retained: at.retained,
            redelivered: at.redelivered,
            from: text(at.from),
            from_type: text(at.from_type),
            filter: text(at.filter),
            timestamp: at.timestamp,
            source_topic: text(at.source_topic),
            seq: at.seq,
            trace: text(at.trace),
        }
    }

    fn text(&self, Place { start, len }: Place) -> Option<&str> {
        let (start, len) = (usize::try_from(start).ok()?, usize::try_from(len).ok()?);
        self.frame.get(start..start.checked_add(len)?).and_then(|text| std::str::from_utf8(text).ok())
    }
}

/// Where in its frame a message's texts lie, and what came with them: a frame is read once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Places {
    msg_id: Place,
    from: Place,
    from_type: Place,
    filter: Place,
    source_topic: Place,
    trace: Place,
    timestamp: Option<u64>,
    seq: Option<u64>,
    retained: bool,
    redelivered: bool,
}

/// Some bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    start: u32,
    len: u32,
}

impl Default for Place {
    /// Nowhere.
    fn default() -> Self {
        Self { start: u32::MAX, len: u32::MAX }
    }
}

impl Places {
    /// The places of a message that was read from these bytes.
    pub(crate) fn of(message: &Frame<'_>, bytes: &Bytes) -> Self {
        let place = |text: Option<&str>| {
            let text = text?;
            let start = (text.as_ptr() as usize).checked_sub(bytes.as_ptr() as usize)?;
            Some(Place { start: u32::try_from(start).ok()?, len: u32::try_from(text.len()).ok()? })
        };
        let place = |text| place(text).unwrap_or_default();
        Self {
            msg_id: place(message.msg_id),
            from: place(message.from),
            from_type: place(message.from_type),
            filter: place(message.filter.filter(|filter| *filter != "#")), // an artefact of kraken 0.4 (K-039)
            source_topic: place(message.source_topic),
            trace: place(message.trace),
            timestamp: message.timestamp,
            seq: message.seq,
            retained: message.retained == Some(true),
            redelivered: message.redelivered == Some(true),
        }
    }
}

/// What came beside a payload; nothing is invented that the broker did not send (client-api 8.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta<'a> {
    /// The same for all receivers.
    pub msg_id: Option<&'a str>,
    /// Whether it was kept, and a subscribe brought it.
    pub retained: bool,
    /// Whether another member of the group had it before.
    pub redelivered: bool,
    /// The publisher.
    pub from: Option<&'a str>,
    /// What the publisher is, an open set.
    pub from_type: Option<&'a str>,
    /// The filter key, or the rest of a deeper topic.
    pub filter: Option<&'a str>,
    /// When the broker received it, ms since the epoch.
    pub timestamp: Option<u64>,
    /// The topic that it was published to, where that is not the subscription.
    pub source_topic: Option<&'a str>,
    /// Its number in the project.
    pub seq: Option<u64>,
    /// A W3C `traceparent`.
    pub trace: Option<&'a str>,
}

/// What became of a publish (client-api 7.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The reference it was sent under, if it had one.
    pub msg_ref: Option<String>,
    /// The topic.
    pub topic: Topic,
    /// The quality asked for.
    pub qos: Qos,
    /// The quality that was given: 2 only where each copy went to a broker that recognises copies (features 3), else 1 at most: a
    /// publish that was sent again may then have been delivered twice.
    pub effective_qos: Qos,
    /// What is known.
    pub outcome: Outcome,
    /// How well the broker keeps it: `memory`, `disk` or `replicated`; absent where nothing keeps it.
    pub level: Option<String>,
    /// How often it was written.
    pub attempts: u32,
    /// From the call to the first writing.
    pub queued: Duration,
    /// From the last writing to the answer.
    pub latency: Duration,
}

/// What is known of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was handed to the transport.
    Written,
    /// The broker took responsibility for it.
    Accepted,
    /// The broker had accepted it before.
    Duplicate,
}

impl Outcome {
    /// Its name, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Accepted => "accepted",
            Self::Duplicate => "duplicate",
        }
    }
}

/// What happened to an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It came.
    Join,
    /// Its presence, or the number of its connections, changed.
    Update,
    /// It went.
    Leave,
    /// It is being woken.
    Waking,
}

impl Change {
    /// Its name, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Update => "update",
            Self::Leave => "leave",
            Self::Waking => "waking",
        }
    }
}

/// A room, by app where the broker tells them apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Room {
    /// The app's slug; on the wire only with the feature `rooms`.
    pub app: Option<String>,
    /// The room's slug.
    pub room: String,
}

/// Somebody in a room.
#[derive(Debug, Clone, PartialEq)]
pub struct Actor {
    /// The room, where one is known.
    pub room: Option<Room>,
    /// The actor.
    pub actor_id: String,
    /// Its type, an open set.
    pub actor_type: Option<String>,
    /// Its newest presence, one MessagePack value; nil where there is none.
    pub presence: Bytes,
    /// The presence of each of its connections, oldest first.
    pub connections: Vec<Bytes>,
    /// When it came, as the broker sent it.
    pub joined_at: Option<f64>,
    /// `online`, `offline` or `waking`.
    pub status: Option<String>,
    /// The version of what it advertises.
    pub advertisement_version: Option<u64>,
}

/// A change in one of a lobby's rooms (wire protocol 20.3).
#[derive(Debug, Clone, PartialEq)]
pub struct LobbyChange {
    /// The watched lobby it belongs to, if that can be told.
    pub lobby: Option<String>,
    /// The lobby as the broker named it.
    pub lobby_id: String,
    /// The room's slug, where the broker knows one for us.
    pub room: Option<String>,
    /// The app's slug (features 4).
    pub app: Option<String>,
    /// The actor.
    pub actor_id: String,
    /// What happened.
    pub change: Change,
    /// The presence, one MessagePack value.
    pub data: Bytes,
    /// Whether the change was found by comparing snapshots after a reconnect.
    pub synthetic: bool,
}

/// Who is in a lobby's rooms: room, actor, record (one MessagePack value).
pub type LobbySnapshot = Vec<(String, Vec<(String, Bytes)>)>;
