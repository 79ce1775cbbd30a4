//! What is kept beyond the moment: history, retained messages, the window of repeats, the marks of groups.
//!
//! The hub answers every read from its own memory. A [`Store`] is told what changes, and gives it back at the next start:
//! [`Memory`] nothing, a [`Disk`] all that it had synced.

pub mod disk;

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use disk::Disk;

/// An accepted publish, as history and retained messages keep it.
///
/// A disk keeps the fields in this order: new ones go to the end, with `#[serde(default)]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its number, 1 … 2^53−1; numbers rise over all topics and projects, and may skip.
    pub seq: u64,
    /// When it arrived, in ms since 1970 by the broker's clock.
    pub timestamp: u64,
    /// The internal name of the topic.
    pub base: Arc<str>,
    /// The address, scope included.
    pub topic: Arc<str>,
    /// The base is a rule's own topic.
    pub exact: bool,
    /// The filter key.
    pub key: Option<Arc<str>>,
    /// The publisher may publish to the topic that the key would be one more level of.
    pub reaches_below: bool,
    /// The payload, as receivers get it.
    pub data: Bytes,
    /// The id, when messages are recorded.
    pub msg_id: Option<Arc<str>>,
    /// The publisher.
    pub from: Arc<str>,
    /// What kind of publisher.
    pub from_type: Arc<str>,
    /// The client instance that shall not get it back, by its `clientId`; its actor is `from`.
    pub silent: Option<Arc<str>>,
    /// The publish's `traceparent`.
    pub trace: Option<Arc<str>>,
}

/// A change of what is retained under a routing key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retain {
    /// The routing key.
    pub key: Arc<str>,
    /// The message and the end of its time in ms since 1970; nothing clears the key.
    pub record: Option<(Arc<Record>, u64)>,
}

/// A publish that will be recognised when it is sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The publisher.
    pub actor: Arc<str>,
    /// Its reference.
    pub msg_ref: Arc<str>,
    /// When it was accepted, in ms since 1970.
    pub at: u64,
    /// The number it got.
    pub seq: u64,
}

/// How far a group that redelivers has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The group's full name, with the place that it is a group of.
    pub group: Arc<str>,
    /// All up to here is acknowledged or given up; nothing forgets the group.
    pub done: Option<u64>,
}

/// What one publish, or one step of a group, changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// A message for the history.
    pub message: Option<Arc<Record>>,
    /// What is retained now.
    pub retain: Option<Retain>,
    /// A pair for the window of repeats.
    pub accepted: Option<Accepted>,
    /// A group's progress.
    pub mark: Option<Mark>,
}

/// What a store gives back at a start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Names the run of numbers, at most 64 bytes.
    pub epoch: String,
    /// No number up to here may be given out any more.
    pub last: u64,
    /// All that was kept from this number on is in `history`; of what came before, some may have been dropped.
    pub floor: u64,
    /// By number, rising.
    pub history: Vec<Record>,
    /// In any order.
    pub retained: Vec<Retain>,
    /// In the order in which they were accepted.
    pub accepted: Vec<Accepted>,
    /// In any order.
    pub marks: Vec<Mark>,
}

impl Kept {
    /// Nothing: the beginning of a new run of numbers.
    pub fn nothing() -> Self {
        Self { epoch: uuid::Uuid::new_v4().simple().to_string(), ..Self::default() }
    }
}

/// What became of a change.
pub type Synced = Result<(), Full>;

/// Is told what became of a change.
pub type Done = Box<dyn FnOnce(Synced) + Send>;

/// The store is at its bound, or cannot write; what it has stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store is full or cannot write")]
pub struct Full;

/// Keeps what outlives the process.
pub trait Store: Send + Sync {
    /// What an acknowledgement promises once a change is synced: `memory` or `disk`.
    fn level(&self) -> &'static str;

    /// Whether anything outlives the process. Where not, nobody need tell the store of changes.
    fn is_durable(&self) -> bool;

    /// Whether changes can be taken; asked before a publish is accepted.
    fn check(&self) -> Synced;

    /// Whether this number may be given out; asked before each one, also where nothing is kept. A disk knows a bound above
    /// all that were given out, so that none is given out twice after a crash; it raises the bound in good time, and
    /// says [`Full`] where it could not.
    fn covers(&self, seq: u64) -> Synced;

    /// Takes a change, and calls `done` once it would survive a crash, from any thread; in the order of the calls.
    /// Never waits: it is called under the hub's lock, in the order of the numbers.
    fn put(&self, change: Change, done: Option<Done>);

    /// Nothing numbered below `seq` is in the history any more.
    fn trim(&self, seq: u64);
}

/// Keeps nothing beyond the process.
#[derive(Debug, Default)]
pub struct Memory;

impl Store for Memory {
    fn level(&self) -> &'static str {
        "memory"
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn check(&self) -> Synced {
        Ok(())
    }

    fn covers(&self, _seq: u64) -> Synced {
        Ok(())
    }

    fn put(&self, _change: Change, done: Option<Done>) {
        if let Some(done) = done {
            done(Ok(()));
        }
    }

    fn trim(&self, _seq: u64) {}
}
