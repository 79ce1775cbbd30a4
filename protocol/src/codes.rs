//! Error and close codes, each with what a client does about it (wire protocol 6.4, 12.2, 12.4; features 8).
//!
//! The tables here are the only place: the broker takes its codes from them, the client its verdicts, and
//! [`markdown`] the page of the documentation.

use std::fmt::Write as _;

/// What a client does after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Tells the caller; doing the same again would fail the same.
    Surface,
    /// Sends the same publish again once the broker takes more.
    Resend,
    /// Connects again, with back-off.
    Reconnect,
    /// Connects again, no sooner than 30 s later.
    ReconnectLate,
    /// Fetches a new token and connects again once; without a token provider gives up.
    Renew,
    /// Ends; only the application can go on.
    GiveUp,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Surface => "tell the caller, do not retry unchanged",
            Self::Resend => "send again when the broker takes more",
            Self::Reconnect => "reconnect with back-off",
            Self::ReconnectLate => "reconnect no sooner than 30 s later",
            Self::Renew => "one attempt with a new token, else give up",
            Self::GiveUp => "give up",
        }
    }
}

/// An `error` frame's identifier, or a reason of a failed `auth`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorCode {
    /// The number, where there is one.
    pub code: Option<u64>,
    /// The stable identifier in `error`.
    pub name: &'static str,
    /// What a client does.
    pub verdict: Verdict,
    /// What it means, for people.
    pub meaning: &'static str,
}

/// A WebSocket close code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseCode {
    /// The number.
    pub code: u16,
    /// The reason text that our broker sends; empty where the framing layer closes by itself.
    pub reason: &'static str,
    /// What a client does.
    pub verdict: Verdict,
    /// What it means, for people.
    pub meaning: &'static str,
}

macro_rules! errors {
    ($($id:ident $code:expr, $name:literal, $verdict:ident, $meaning:literal;)*) => {
        $( #[doc = $meaning] pub const $id: ErrorCode =
            ErrorCode { code: $code, name: $name, verdict: Verdict::$verdict, meaning: $meaning }; )*
        /// All of them.
        pub const ERRORS: &[ErrorCode] = &[$($id),*];
    };
}

macro_rules! closes {
    ($($id:ident $code:literal, $reason:literal, $verdict:ident, $meaning:literal;)*) => {
        $( #[doc = $meaning] pub const $id: CloseCode =
            CloseCode { code: $code, reason: $reason, verdict: Verdict::$verdict, meaning: $meaning }; )*
        /// All of them.
        pub const CLOSES: &[CloseCode] = &[$($id),*];
    };
}

errors! {
    NOT_AUTHENTICATED None, "not_authenticated", Reconnect, "The connection has not been authenticated yet.";
    NOT_AUTHORIZED None, "not_authorized", Surface, "A lobby, or on a version 1 connection a topic, is outside the grants.";
    NOT_SUBSCRIBED None, "not_subscribed", Surface, "There is no such subscription to change the filters of.";
    UNKNOWN_ROOM None, "unknown_room", Surface, "No rule of the token names this room.";
    INVALID_MESSAGE Some(40000), "invalid_message", Surface, "The frame is malformed; `detail` says how.";
    INVALID_TOPIC Some(40000), "invalid_topic", Surface, "The topic is not well formed; `detail` says how.";
    RATE_LIMIT_EXCEEDED Some(42910), "rate_limit_exceeded", Resend, "More publishes in this second than the connection may send.";
    MONTHLY_QUOTA_EXCEEDED Some(42920), "monthly_quota_exceeded", Surface, "The project has used up its quota.";
    MESSAGE_TOO_LARGE Some(42930), "message_too_large", Surface, "The payload is over `maxSizeBytes`.";
    UNKNOWN_TOPIC Some(42940), "unknown_topic", Surface, "The topic is outside the token's grants, or does not exist.";
    ACCESS_REVOKED Some(42941), "access_revoked", Surface, "The client's name for a subscription that lost its grant; never on the wire.";
    WAKE_FAILED Some(42950), "wake_failed", Surface, "An offline actor could not be woken.";
    INVALID_FILTER Some(42960), "invalid_filter", Surface, "A filter is not well formed; `detail` says how.";
    INVALID_FILTER_CHARS Some(42960), "invalid_filter_chars (/, #, +, | not allowed)", Surface, "A filter of a subscription is not well formed.";
    TOO_MANY_FILTERS Some(42960), "too_many_filters (max 100)", Surface, "A subscription has more than 100 filters.";
    STORE_FULL Some(42970), "store_full", Resend, "The broker cannot keep the message now.";
    ACCESS_DENIED None, "access_denied", GiveUp, "auth: the token is not known, or was refused.";
    AUTHENTICATION_FAILED None, "authentication_failed", Reconnect, "auth: the authorization service answered with an error.";
    CONNECTION_FAILED None, "connection_failed", Reconnect, "auth: the authorization service could not be reached.";
    TOKEN_EXPIRED None, "token_expired", Renew, "auth: the token has expired.";
    BROKER_UNAVAILABLE None, "broker_unavailable", Reconnect, "auth: the broker cannot take the connection now.";
    CONNECTION_LIMIT_REACHED None, "connection_limit_reached", ReconnectLate, "auth: the organization has its maximum of connections.";
    ALREADY_AUTHENTICATED None, "already_authenticated", Surface, "auth: the connection is authenticated; `reauth` renews it.";
    ACTOR_MISMATCH None, "actor_mismatch", Surface, "reauth: the new token belongs to another actor.";
}

closes! {
    IDLE_TIMEOUT 1000, "idle_timeout", Reconnect, "Nothing arrived for the idle time, or the peer closed by itself.";
    GOING_AWAY 1001, "", Reconnect, "The peer goes away.";
    PROTOCOL_ERROR 1002, "", Reconnect, "A violation of the WebSocket protocol.";
    LOST 1006, "", Reconnect, "The connection was lost without a close.";
    INVALID_TEXT 1007, "", Reconnect, "A text message that is not UTF-8.";
    TOO_MANY_AUTH_FAILURES 1008, "too_many_auth_failures", GiveUp, "Five failed attempts to authenticate on one connection.";
    MESSAGE_TOO_BIG 1009, "", Reconnect, "A message over 1,048,576 bytes; it is not sent again.";
    INTERNAL_ERROR 1011, "", Reconnect, "The broker failed.";
    DRAINING 1012, "draining", Reconnect, "The broker shuts down or restarts; not before `retryAfterMs`.";
    REVOKED 4001, "token_revoked", Renew, "The token is no longer valid.";
    OVER_LIMIT 4002, "connection_limit_reached", ReconnectLate, "The organization is over its maximum of connections.";
    EXPIRED 4003, "token_expired", Renew, "The token has expired.";
    AUTH_UNAVAILABLE 4004, "auth_unavailable", Reconnect, "The authorization service cannot be asked.";
    SLOW_CONSUMER 4008, "slow_consumer", Reconnect, "The connection's backlog passed its bound.";
}

/// What a client does after an `error` or failed `auth` of this name; one it does not know fails its request.
pub fn error_verdict(name: &str) -> Option<Verdict> {
    ERRORS.iter().find(|error| error.name == name).map(|error| error.verdict)
}

/// What a client does after a close with this code; unknown ones are treated like a loss (12.4).
pub fn close_verdict(code: u16) -> Verdict {
    CLOSES.iter().find(|close| close.code == code).map_or(Verdict::Reconnect, |close| close.verdict)
}

/// The tables as a page of the documentation.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Error and close codes\n\nWritten from the tables in `protocol/src/codes.rs` by `cargo xtask generate`.\n\n\
         ## `error` frames and failed `auth`\n\n| code | `error` | meaning | a client must |\n| --- | --- | --- | --- |\n",
    );
    // Writing to a string cannot fail.
    for error in ERRORS {
        let code = error.code.map_or_else(|| "–".to_owned(), |code| code.to_string());
        let name = error.name.replace('|', "\\|");
        let _ = writeln!(page, "| {code} | `{name}` | {} | {} |", error.meaning, error.verdict.text());
    }
    page.push_str(
        "\nAn unknown code or identifier fails the request it belongs to, and never the connection.\n\n\
         ## Close codes\n\n| code | reason | meaning | a client must |\n| --- | --- | --- | --- |\n",
    );
    for close in CLOSES {
        let reason = if close.reason.is_empty() { "–".to_owned() } else { format!("`{}`", close.reason) };
        let _ =
            writeln!(page, "| {} | {reason} | {} | {} |", close.code, close.meaning, close.verdict.text());
    }
    page.push_str("\nAny other code: reconnect with back-off.\n");
    page
}
