//! What can go wrong, and what the caller can do about it (client-api 4).
//!
//! Every error has a stable code ([`Error::code`]), and says whether the same call may succeed later
//! ([`Error::retryable`]), whether the client has given up ([`Error::fatal`]) and whether the operation may have
//! happened all the same ([`Error::outcome_unknown`]).

use nolag_protocol::codes;
use nolag_protocol::frame::ErrorReply;

/// The one error of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A mistake in the program or its settings: change the call.
    #[error("{message}")]
    Config {
        /// `url_required`, `bad_url`, `bad_option` or `unsupported_runtime`.
        code: &'static str,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// The client was never connected, or the message is not to be queued: call `connect` first.
    #[error("Not connected")]
    NotConnected,
    /// The transport failed: the client tries again by itself unless it says [`Error::fatal`].
    #[error("{message}")]
    Connection {
        /// What failed.
        code: ConnectionCode,
        /// The circumstances.
        message: String,
        /// The client has given up.
        fatal: bool,
        /// A publish that may have reached the broker.
        outcome_unknown: bool,
    },
    /// The broker refused the token, or the connection: check the token.
    #[error("{}", if *.reason == "auth_timeout" { "Authentication timeout" } else { .reason.as_str() })]
    Auth {
        /// `access_denied`, `token_expired`, …, or the broker's own text.
        reason: String,
        /// The client has given up.
        fatal: bool,
        /// The reason may pass by itself.
        passing: bool,
        /// A publish that may have reached the broker.
        outcome_unknown: bool,
    },
    /// The broker refused one operation; the connection goes on.
    #[error("{}", .0.error)]
    Server(Box<ServerError>),
    /// No answer came in time.
    #[error("{what}{}", of(.topic.as_ref()))]
    Timeout {
        /// `ack_timeout`, `presence_timeout`, `lobby_timeout` or `flush_timeout`.
        what: &'static str,
        /// The topic, room or lobby.
        topic: Option<String>,
        /// A publish that may have reached the broker.
        outcome_unknown: bool,
    },
    /// The queue of publishes could not keep a message.
    #[error("{what}{}", of(.topic.as_ref()))]
    Queue {
        /// `queue_full`, `queue_expired` or `too_large`.
        what: &'static str,
        /// The topic.
        topic: Option<String>,
        /// The message was written before, and not answered.
        outcome_unknown: bool,
    },
    /// The value cannot be written as MessagePack: change the value.
    #[error("{message}{}", of(.topic.as_ref()))]
    Encode {
        /// The operation.
        op: &'static str,
        /// The topic.
        topic: Option<String>,
        /// What cannot be written.
        message: String,
    },
    /// The client was closed, or the call withdrawn.
    #[error("{}", .what.text())]
    Closed {
        /// How it ended.
        what: Ended,
        /// A publish that was in flight, and may have reached the broker.
        outcome_unknown: bool,
    },
}

/// What failed about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionCode {
    /// The host name could not be resolved.
    Dns,
    /// Nothing listens there.
    Refused,
    /// TLS could not be agreed upon.
    Tls,
    /// The server answered the upgrade with this HTTP status.
    HandshakeRejected(u16),
    /// No connection, or no first connection, in time.
    ConnectTimeout,
    /// It ended.
    Lost,
    /// The other end fell silent.
    HeartbeatTimeout,
    /// One of the two ends broke the WebSocket protocol.
    ProtocolError,
}

impl ConnectionCode {
    /// Whether another attempt would fail the same way.
    pub(crate) fn is_hopeless(self) -> bool {
        match self {
            Self::Tls => true,
            Self::HandshakeRejected(status) => matches!(status, 401 | 403 | 404 | 426),
            _ => false,
        }
    }
}

/// How an operation ended without the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// By the application, which closed the client.
    Closed,
    /// The client gave up connecting.
    ReconnectExhausted,
    /// The caller withdrew it.
    Aborted,
}

impl Ended {
    fn text(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::ReconnectExhausted => "reconnect_exhausted",
            Self::Aborted => "aborted",
        }
    }
}

/// A broker's refusal of one operation (wire protocol 12.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// The number, where there is one.
    pub code: Option<u64>,
    /// The stable identifier.
    pub error: String,
    /// The topic, as the client sent it.
    pub topic: Option<String>,
    /// The room, as the client sent it.
    pub room: Option<String>,
    /// The lobby, as the client sent it.
    pub lobby: Option<String>,
    /// For people.
    pub hint: Option<String>,
    /// For people.
    pub detail: Option<String>,
    /// The request's reference.
    pub msg_ref: Option<String>,
    /// The limit that a payload was over, in bytes.
    pub max_size_bytes: Option<u64>,
    /// The client said so itself, as the broker would have, without asking it.
    pub local: bool,
}

impl From<&ErrorReply<'_>> for ServerError {
    fn from(frame: &ErrorReply<'_>) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Self {
            code: frame.code,
            error: frame.error.to_owned(),
            topic: owned(frame.topic),
            room: owned(frame.room_id),
            lobby: owned(frame.lobby_id),
            hint: owned(frame.hint),
            detail: owned(frame.detail),
            msg_ref: owned(frame.msg_ref),
            max_size_bytes: frame.max_size_bytes,
            local: false,
        }
    }
}

impl Error {
    /// What the broker would say to an operation that the client refuses itself (K-037, API-099).
    pub(crate) fn refused(code: &codes::ErrorCode, topic: &str, detail: impl std::fmt::Display) -> Self {
        Self::Server(Box::new(ServerError {
            code: code.code,
            error: code.name.to_owned(),
            topic: Some(topic.to_owned()),
            room: None,
            lobby: None,
            hint: None,
            detail: Some(detail.to_string()),
            msg_ref: None,
            max_size_bytes: None,
            local: true,
        }))
    }

    /// The broker's or the client's own reason not to connect.
    pub(crate) fn auth(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        let verdict = codes::error_verdict(&reason);
        let passing = matches!(verdict, Some(codes::Verdict::Reconnect | codes::Verdict::ReconnectLate))
            || matches!(reason.as_str(), "auth_timeout" | "auth_unavailable");
        Self::Auth { reason, fatal: false, passing, outcome_unknown: false }
    }

    pub(crate) fn closed() -> Self {
        Self::Closed { what: Ended::Closed, outcome_unknown: false }
    }

    pub(crate) fn aborted() -> Self {
        Self::Closed { what: Ended::Aborted, outcome_unknown: false }
    }

    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Self::Connection {
            code: ConnectionCode::Lost,
            message: message.into(),
            fatal: false,
            outcome_unknown: false,
        }
    }

    pub(crate) fn timeout(what: &'static str, topic: &str) -> Self {
        Self::Timeout { what, topic: Some(topic.to_owned()), outcome_unknown: false }
    }

    pub(crate) fn queue(what: &'static str, topic: Option<&str>) -> Self {
        Self::Queue { what, topic: topic.map(str::to_owned), outcome_unknown: false }
    }

    /// The same error of an operation that may have happened.
    pub(crate) fn with_unknown_outcome(mut self) -> Self {
        match &mut self {
            Self::Timeout { outcome_unknown, .. }
            | Self::Connection { outcome_unknown, .. }
            | Self::Auth { outcome_unknown, .. }
            | Self::Queue { outcome_unknown, .. }
            | Self::Closed { outcome_unknown, .. } => *outcome_unknown = true,
            _ => {}
        }
        self
    }

    /// The same error after which the client has given up.
    pub(crate) fn made_fatal(mut self) -> Self {
        if let Self::Connection { fatal, .. } | Self::Auth { fatal, .. } = &mut self {
            *fatal = true;
        }
        self
    }

    /// The name of the class that stands for it, the same in every language.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Config { .. } => "ConfigError",
            Self::NotConnected => "NotConnectedError",
            Self::Connection { .. } => "ConnectionError",
            Self::Auth { .. } => "AuthError",
            Self::Server(_) => "ServerError",
            Self::Timeout { .. } => "TimeoutError",
            Self::Queue { .. } => "QueueError",
            Self::Encode { .. } => "EncodeError",
            Self::Closed { .. } => "ClosedError",
        }
    }

    /// The stable text of the code; for a broker's refusal its identifier.
    pub fn code(&self) -> &str {
        match self {
            Self::Config { code, .. } => code,
            Self::NotConnected => "not_connected",
            Self::Connection { code, .. } => match code {
                ConnectionCode::Dns => "dns",
                ConnectionCode::Refused => "refused",
                ConnectionCode::Tls => "tls",
                ConnectionCode::HandshakeRejected(_) => "handshake_rejected",
                ConnectionCode::ConnectTimeout => "connect_timeout",
                ConnectionCode::Lost => "lost",
                ConnectionCode::HeartbeatTimeout => "heartbeat_timeout",
                ConnectionCode::ProtocolError => "protocol_error",
            },
            Self::Auth { reason, .. } => reason,
            Self::Server(server) => &server.error,
            Self::Timeout { what, .. } | Self::Queue { what, .. } => what,
            Self::Encode { .. } => "encode",
            Self::Closed { what, .. } => what.text(),
        }
    }

    /// The broker's number, where it gave one.
    pub fn server_code(&self) -> Option<u64> {
        match self {
            Self::Server(server) => server.code,
            _ => None,
        }
    }

    /// The topic, room or lobby of the operation.
    pub fn topic(&self) -> Option<&str> {
        match self {
            Self::Server(server) => {
                server.topic.as_deref().or(server.room.as_deref()).or(server.lobby.as_deref())
            }
            Self::Timeout { topic, .. } | Self::Queue { topic, .. } | Self::Encode { topic, .. } => {
                topic.as_deref()
            }
            _ => None,
        }
    }

    /// What the broker suggests, for people.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Server(server) => server.hint.as_deref(),
            _ => None,
        }
    }

    /// Whether the same call may succeed later, unchanged.
    pub fn retryable(&self) -> bool {
        match self {
            Self::NotConnected | Self::Timeout { .. } => true,
            // A client that has given up may be asked again, where a second attempt can end otherwise.
            Self::Connection { code, fatal, .. } => !fatal || !code.is_hopeless(),
            Self::Auth { fatal, passing, .. } => !fatal || *passing,
            Self::Queue { what, .. } => *what != "too_large",
            Self::Server(server) => codes::error_verdict(&server.error) == Some(codes::Verdict::Resend),
            Self::Config { .. } | Self::Encode { .. } | Self::Closed { .. } => false,
        }
    }

    /// Whether the client has given up, and goes on only when asked to connect again.
    pub fn fatal(&self) -> bool {
        match self {
            Self::Config { .. } => true,
            Self::Connection { fatal, .. } | Self::Auth { fatal, .. } => *fatal,
            Self::Closed { what, .. } => *what == Ended::ReconnectExhausted,
            _ => false,
        }
    }

    /// Whether a publish that failed may have reached the broker.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Timeout { outcome_unknown, .. }
            | Self::Connection { outcome_unknown, .. }
            | Self::Auth { outcome_unknown, .. }
            | Self::Queue { outcome_unknown, .. }
            | Self::Closed { outcome_unknown, .. } => *outcome_unknown,
            _ => false,
        }
    }
}

fn of(topic: Option<&String>) -> String {
    topic.map(|topic| format!(" ({topic})")).unwrap_or_default()
}
