//! Who a token stands for and what it may do.
//!
//! [`Auth`] is the seam to whatever knows tokens. Here are the backends that need no network: the token file
//! ([`StaticAuth`], with the built-in demo tokens as a file compiled in) and [`AllowAll`] for development. The
//! broker asks through a cache of its answers.

mod allow_all;
mod cache;
mod jwt;
mod static_file;
mod token_file;

use futures_util::future::BoxFuture;
use nolag_protocol::codes::{self, ErrorCode};
use nolag_protocol::grant::Rule;
use nolag_protocol::topic::MAX_TOPIC_BYTES;

pub use allow_all::AllowAll;
pub(crate) use cache::Cache;
pub use static_file::{DEMO_TOKENS, StaticAuth};
pub use token_file::{TokenFile, TokenFileError};

/// The actor behind a token, and all that the token grants (wire protocol 21.3).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The actor's name, stamped on what it publishes.
    pub actor_token_id: String,
    /// Part of the names of load-balanced groups.
    pub project_id: Option<String>,
    /// Connections are counted per organization.
    pub organization_id: Option<String>,
    /// `user`, `device` and others; an open set.
    pub actor_type: String,
    /// What it may publish and subscribe to, in order.
    pub rules: Vec<Rule>,
    /// The lobbies it may watch.
    pub lobbies: Vec<Lobby>,
    /// How many connections the organization may have; none means no limit.
    pub max_connections: Option<u64>,
    /// Its own bound on payloads, in bytes.
    pub max_payload_bytes: Option<u64>,
    /// Its own publish rate, per second.
    pub publishes_per_second: Option<u64>,
    /// The tenant that its addresses and rooms are in.
    pub scope_slug: Option<String>,
    /// When the authorization ends, in seconds since 1970.
    pub expires_at: Option<u64>,
    /// What it is subscribed to again when it asks for that, as `subscribe` frames; none leaves it to the broker's memory
    /// (wire protocol 17).
    pub active_subscriptions: Vec<Vec<u8>>,
    /// Any room slug is a room of that id (`AUTH_ALLOW_ALL`, 19.1).
    pub any_room: bool,
}

/// A lobby that an actor may watch (wire protocol 20).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lobby {
    /// What clients call it; several ids may share one.
    pub slug: String,
    /// Its internal id.
    pub id: String,
    /// The ids of its rooms; none means all rooms of the actor's rules.
    pub rooms: Option<Vec<String>>,
}

impl Identity {
    /// The room that this actor calls by `slug`, in the app or in the first that has one of this slug: its id and its app, which
    /// is not known where any slug is a room (features 4).
    pub(crate) fn room<'a>(
        &'a self,
        app: Option<&'a str>,
        slug: &'a str,
    ) -> Option<(&'a str, Option<&'a str>)> {
        if self.any_room {
            // Longer names would not fit the events, which have data too.
            let fits = slug.len() + app.map_or(0, str::len) <= MAX_TOPIC_BYTES;
            return fits.then_some((slug, app));
        }
        let rule = self.rules.iter().find(|rule| {
            rule.room_slug.as_deref() == Some(slug) && app.is_none_or(|app| rule.app_slug() == app)
        })?;
        Some((rule.room_id.as_deref()?, Some(rule.app_slug())))
    }

    /// The first rule that names the room of that id.
    pub(crate) fn rule_of(&self, room_id: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.room_id.as_deref() == Some(room_id))
    }

    /// What this actor calls the room of that id.
    pub(crate) fn room_slug<'a>(&'a self, id: &'a str) -> Option<&'a str> {
        if self.any_room { Some(id) } else { self.rule_of(id)?.room_slug.as_deref() }
    }

    /// The rooms of a lobby: its own list, else all of the actor's rules.
    pub(crate) fn rooms_of<'a>(&'a self, lobby: &'a Lobby) -> Vec<&'a str> {
        let mut rooms: Vec<&str> = match &lobby.rooms {
            Some(rooms) => rooms.iter().map(String::as_str).collect(),
            None => self.rules.iter().filter_map(|rule| rule.room_id.as_deref()).collect(),
        };
        rooms.sort_unstable();
        rooms.dedup();
        rooms
    }

    /// Whether the authorization has ended by then.
    pub(crate) fn is_expired(&self, now_seconds: u64) -> bool {
        self.expires_at.is_some_and(|end| now_seconds >= end)
    }
}

/// Why a token was not accepted (wire protocol 6.4).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The token is unknown, or the backend said no.
    #[error("access_denied")]
    Denied,
    /// The backend answered with an error: try again later.
    #[error("authentication_failed")]
    Failed,
    /// The backend could not be reached: try again later.
    #[error("connection_failed")]
    Unreachable,
}

impl Refusal {
    /// The identifier on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Denied => codes::ACCESS_DENIED,
            Self::Failed => codes::AUTHENTICATION_FAILED,
            Self::Unreachable => codes::CONNECTION_FAILED,
        }
    }
}

/// What a backend says about an actor that is connected (wire protocol 8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revalidation {
    /// Still welcome, with these grants from now on.
    Valid(Box<Identity>),
    /// Not any more, for this reason: the connection is closed with 4001.
    Invalid(String),
    /// The backend cannot say: nothing changes, and it is asked again later.
    Unavailable,
}

/// The seam to whatever knows tokens.
pub trait Auth: Send + Sync + 'static {
    /// Who a token stands for. It bounds its own time.
    fn validate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, Refusal>>;

    /// What holds now for an actor that was validated before. It bounds its own time.
    fn revalidate<'a>(&'a self, actor_token_id: &'a str) -> BoxFuture<'a, Revalidation>;
}

/// As much of a token as a log may show: the part before the first `.`, or the first 16 characters, and never
/// more than half.
pub(crate) fn redacted(token: &str) -> String {
    let head = token.split('.').next().filter(|head| head.len() < token.len());
    let shown = head.map_or(16, |head| head.chars().count()).min(token.chars().count() / 2);
    token.chars().take(shown).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C-041: whatever a token looks like, a log does not hold it.
    #[test]
    fn no_token_is_shown_whole() {
        assert_eq!(redacted("dev-token-alice"), "dev-tok…");
        assert_eq!(redacted("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln"), "eyJhbGciOiJIUzI1NiJ9…");
        assert_eq!(redacted("a-very-long-opaque-token-of-some-kind"), "a-very-long-opaq…");
        for token in ["", "a", "a.", "secret.", ".secret", "ü.ö"] {
            assert!(token.is_empty() || !redacted(token).contains(token), "{token}");
        }
    }
}
