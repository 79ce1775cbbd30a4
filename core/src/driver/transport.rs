//! What a driver needs of a platform: something that opens links, and links that carry messages.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use crate::error::ConnectionCode;

/// A link that is being opened.
pub type Opening = Pin<Box<dyn Future<Output = Result<Box<dyn Link>, OpenFailure>> + Send>>;

/// Opens links to one broker.
pub trait Transport: Send + 'static {
    /// A link, or why there is none. Dropping the future gives the attempt up; the session bounds its time.
    fn open(&mut self) -> Opening;
}

/// One connection that carries whole messages. Dropping it ends the connection at once.
pub trait Link: Send {
    /// The next thing that comes. After `Closed` or `Failed` it is not asked again.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Received>;
    /// Whether it takes another message.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>>;
    /// Takes a message, which a flush sends off.
    fn send(&mut self, message: Outgoing) -> Result<(), String>;
    /// Sends off what it took.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>>;
}

/// What is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outgoing {
    /// A binary message; empty for a heartbeat.
    Frame(Bytes),
    /// A close.
    Close {
        /// The code.
        code: u16,
        /// The reason.
        reason: &'static str,
    },
}

/// What came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A binary message.
    Frame(Bytes),
    /// A text message.
    Text(String),
    /// The end, with the other end's close code if it gave one.
    Closed {
        /// The code.
        code: Option<u16>,
        /// The reason.
        reason: String,
    },
    /// The end, because one of the two broke the protocol.
    Failed {
        /// What failed.
        code: ConnectionCode,
        /// The circumstances.
        message: String,
    },
}

/// Why a link could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFailure {
    /// What failed.
    pub code: ConnectionCode,
    /// The circumstances, for people.
    pub message: String,
    /// The server's own bound on the next attempt.
    pub retry_after: Option<Duration>,
}
