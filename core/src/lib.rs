//! The NoLag client core: what a client decides, once for every language.
//!
//! [`session::Session`] is a state machine without I/O: it is told the time, what the caller asked and what the
//! transport did, and answers with what to send, when to wake it, what to tell and which calls are complete. It never
//! spawns, sleeps, locks, reads a clock or draws entropy, so every promise is tested in virtual time.
//!
//! | module | decides |
//! | --- | --- |
//! | [`session`] | connection, subscriptions, publishes, acknowledgements, presence, lobbies |
//! | `driver` | with the feature `native`: runs a session over sockets |
//! | `door` | with the feature `door`: a client in terms of bytes, for other languages |
//! | `client` | with the feature `native`: the async API of Rust programs |
//! | [`options`] | what a caller may set, with its defaults |
//! | [`event`] | what a caller is told |
//! | [`error`] | what can go wrong, and what the caller can do about it |

#[cfg(feature = "native")]
pub mod client;
#[cfg(feature = "door")]
pub mod door;
#[cfg(feature = "native")]
pub mod driver;
pub mod error;
pub mod event;
pub mod options;
#[cfg(feature = "native")]
mod payload;
pub mod session;

#[cfg(feature = "native")]
pub use client::Client;
pub use error::Error;
pub use event::Event;
pub use options::Options;
pub use session::Session;
