//! What a caller may set, with its defaults (client-api 5).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use nolag_protocol::features::{Feature, Features};
pub use nolag_protocol::filter::Item as Filter;
pub use nolag_protocol::frame::Qos;

/// The settings of one client.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the token comes from.
    pub credentials: Credentials,
    /// Names the client instance (wire protocol 6.1); 16 random hex digits where absent.
    pub client_id: Option<String>,
    /// Sent for the broker's logs only.
    pub project_id: Option<String>,
    /// What the broker is asked for (features 1); it grants what it can.
    pub features: Features,
    /// Whether the client connects again after a loss.
    pub reconnect: bool,
    /// How many attempts in a row may fail; `None` means any number.
    pub max_attempts: Option<u32>,
    /// The waits between attempts.
    pub backoff: Backoff,
    /// What becomes of `connect` when the first attempt fails.
    pub initial_connect: InitialConnect,
    /// The longest a transport may take to open, and `connect` to wait in [`InitialConnect::Wait`].
    pub connect_timeout: Duration,
    /// The longest the token provider and the broker's answer may take, each.
    pub auth_timeout: Duration,
    /// The longest the answer to a subscribe, a publish or a lobby request may take.
    pub ack_timeout: Duration,
    /// The longest a presence list may take.
    pub presence_timeout: Duration,
    /// Between heartbeats; zero sends none. More than 45 s is cut to 45 s (client-api 10.1).
    pub heartbeat_interval: Duration,
    /// How long the broker may stay silent after a heartbeat.
    pub heartbeat_timeout: Duration,
    /// The default quality of service of subscribe and publish.
    pub qos: Qos,
    /// The default of [`SubscribeOptions::group`].
    pub group: Option<Group>,
    /// When a message is acknowledged.
    pub ack_mode: AckMode,
    /// For how long acknowledgements are gathered; zero sends them with the batch they belong to.
    pub ack_batch_interval: Duration,
    /// Publishes that wait.
    pub queue: Queue,
    /// How many publishes may be unacknowledged at a time, at least 1.
    pub max_in_flight: usize,
    /// The largest payload, in bytes of MessagePack; a smaller limit that the broker tells counts instead.
    pub max_message_size: usize,
    /// The window in which a repeated message is recognised.
    pub dedupe: Dedupe,
    /// How many messages may be handed out and not be dispatched yet; then the host reads no more, so that TCP slows
    /// the broker down (client-api 12.1).
    pub receive_buffer: usize,
    /// How long before its expiry a token is renewed.
    pub token_refresh_margin: Duration,
}

impl Options {
    /// The defaults, with a token.
    pub fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            client_id: None,
            project_id: None,
            features: Features::ALL,
            reconnect: true,
            max_attempts: None,
            backoff: Backoff::default(),
            initial_connect: InitialConnect::Wait,
            connect_timeout: Duration::from_secs(10),
            auth_timeout: Duration::from_secs(10),
            ack_timeout: Duration::from_secs(10),
            presence_timeout: Duration::from_secs(10),
            heartbeat_interval: Duration::from_secs(30),
            heartbeat_timeout: Duration::from_secs(10),
            qos: Qos::AtLeastOnce,
            group: None,
            ack_mode: AckMode::Auto,
            ack_batch_interval: Duration::ZERO,
            queue: Queue::default(),
            max_in_flight: 64,
            max_message_size: nolag_protocol::MAX_PAYLOAD_BYTES,
            dedupe: Dedupe::default(),
            receive_buffer: 1_024,
            token_refresh_margin: Duration::from_secs(60),
        }
    }
}

/// Longer times count as this: a sum of it and a clock's time can still be expressed.
pub(crate) const EVER: Duration = Duration::from_secs(3_600 * 24 * 365 * 10);

impl Options {
    /// The same, with times that can be counted from.
    pub(crate) fn bounded(mut self) -> Self {
        let times = [
            &mut self.connect_timeout,
            &mut self.auth_timeout,
            &mut self.ack_timeout,
            &mut self.presence_timeout,
            &mut self.heartbeat_interval,
            &mut self.heartbeat_timeout,
            &mut self.ack_batch_interval,
            &mut self.backoff.base,
            &mut self.backoff.max,
            &mut self.dedupe.window,
        ];
        for time in times {
            *time = EVER.min(*time);
        }
        self
    }
}

/// Where the token comes from (client-api 11).
#[derive(Debug, Clone)]
pub enum Credentials {
    /// One token; a refusal of it ends the attempts.
    Static(Secret),
    /// The host is asked before every `auth`.
    Provider,
}

/// A token, which no log, error or debug output shows (K-058).
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// The token, for the one frame that carries it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The waits between attempts: `U(0.5, 1) × min(max, base × factor^(n−1))` (client-api 3.1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// The first wait, before jitter.
    pub base: Duration,
    /// By how much each wait is longer than the one before.
    pub factor: f64,
    /// The longest wait.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(500), factor: 2.0, max: Duration::from_secs(30) }
    }
}

/// What becomes of `connect` when the first attempt fails (client-api 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialConnect {
    /// It fails at once; the attempts go on if the failure allows it.
    Background,
    /// It fails at once, and so does the client.
    Once,
    /// It waits for a connection, for a failure that ends the attempts, or for `connect_timeout`.
    Wait,
}

/// When a message is acknowledged (client-api 8.4), and when the position of its subscription moves past it (features 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckMode {
    /// When the host has dispatched it.
    Auto,
    /// When its handlers have succeeded. The position moves when they have finished, and not before those of the messages before
    /// it; a failure is reported, and does not hold the position up.
    AfterHandler,
    /// When the application says so. The position moves when the host has dispatched it.
    Manual,
}

/// Publishes that wait for a connection, or for their turn (client-api 7.3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Queue {
    /// Whether anything is kept while there is no connection.
    pub enabled: bool,
    /// The most messages.
    pub max_messages: usize,
    /// The most bytes of payload.
    pub max_bytes: usize,
    /// How long a message may wait, counted from the call.
    pub ttl: Duration,
    /// What happens to one message too many.
    pub overflow: Overflow,
    /// Whether messages of quality 0 are kept while there is no connection.
    pub qos0: Qos0,
    /// The most messages a second that leave the queue of an outage; `None` leaves it to the pace (client-api 7.5).
    pub flush_rate: Option<u32>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            enabled: true,
            max_messages: 1_000,
            max_bytes: 8 << 20,
            ttl: Duration::from_secs(300),
            overflow: Overflow::Reject,
            qos0: Qos0::Drop,
            flush_rate: None,
        }
    }
}

/// What happens to one message too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// The new one fails with `queue_full`.
    Reject,
    /// The oldest one of the lowest quality fails with `queue_full`.
    DropOldest,
    /// The new one's call is held until there is room; of held ones there are at most as many as of queued ones.
    Block,
}

/// What happens to messages that come for a reader whose buffer is full (client-api 12.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReceiveOverflow {
    /// The client reads no more from the broker until there is room: nothing is lost, and every reader waits.
    #[default]
    Pause,
    /// The oldest that waits is dropped.
    DropOldest,
    /// The new one is dropped.
    DropNewest,
}

/// What becomes of a message of quality 0 without a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Qos0 {
    /// It fails with `not_connected`.
    Drop,
    /// It waits like any other.
    Queue,
}

/// The window in which a repeated message is recognised (client-api 8.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dedupe {
    /// Whether any is.
    pub enabled: bool,
    /// The most ids, over all topics.
    pub max_ids: usize,
    /// For how long an id is known.
    pub window: Duration,
}

impl Default for Dedupe {
    fn default() -> Self {
        Self { enabled: true, max_ids: 10_000, window: Duration::from_secs(600) }
    }
}

/// A group of subscribers each message goes to one of (wire protocol 16).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Group {
    /// None: every message, whatever the client's default is.
    Nobody,
    /// The group of the actor's own name.
    OfActor,
    /// A group by name.
    Named(String),
}

/// How far an application is with a subscription (features 2). It may be stored, and given back as
/// [`SubscribeOptions::resume_from`] after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Position {
    /// The broker's run of numbers, at most 64 bytes.
    pub epoch: Arc<str>,
    /// The number of the last message, below 2^53.
    pub seq: u64,
}

/// How a topic is subscribed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubscribeOptions {
    /// Advisory; [`Options::qos`] where absent.
    pub qos: Option<Qos>,
    /// The group to share the messages with; [`Options::group`] where absent.
    pub group: Option<Group>,
    /// Which messages; all where empty.
    pub filters: Vec<Filter>,
    /// So many of the newest messages that the broker has kept come first, 1 to 1,000. It counts where the subscription begins,
    /// and where it cannot continue after a loss; not for groups.
    pub history: Option<u16>,
    /// Continue after this position, as long as this client has none of its own; not for groups.
    pub resume_from: Option<Position>,
    /// A message of the group that is not acknowledged goes to another member (features 6); only for groups. Such messages are
    /// acknowledged as in [`AckMode::AfterHandler`], unless the mode is [`AckMode::Manual`].
    pub redeliver: bool,
    /// After how long, 1 s to 1 h; the broker's 30 s where absent. Only with `redeliver`.
    pub ack_timeout: Option<Duration>,
}

/// How a message is published.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PublishOptions {
    /// [`Options::qos`] where absent.
    pub qos: Option<Qos>,
    /// Keep the message for later subscribers.
    pub retain: bool,
    /// For how long, 1 to 31,536,000 s; the broker's time where absent.
    pub retain_ttl: Option<Duration>,
    /// Keep the message from this connection's own subscriptions.
    pub no_echo: bool,
    /// One filter value; counts before `filters`.
    pub filter: Option<String>,
    /// Filter values that make one group.
    pub filters: Vec<String>,
    /// How long it may wait in the queue; [`Queue::ttl`] where absent.
    pub ttl: Option<Duration>,
    /// The reference, unique for 10 minutes; made by the client where absent.
    pub msg_ref: Option<String>,
    /// A W3C `traceparent`, for subscribers; a broker that does not grant [`Feature::Trace`] is not sent it.
    pub trace: Option<String>,
}
