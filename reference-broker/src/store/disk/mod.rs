//! A store in one file, that a broker started again reads back (features 2, 3 and 6).
//!
//! What the hub tells waits in a queue for the one thread that writes. It takes all that has gathered, writes it
//! in one transaction, and then tells everybody who waited: so a sync is shared by all that came during the one before.
//!
//! **Where it cannot write** (the disk is full, or fails), whoever waits is told [`Full`], and so is everybody who asks
//! with [`Store::check`], while the thread opens the file again from time to time. What had gathered is kept meanwhile and
//! written first, so that the file tells the same as the hub's memory in the end.
//!
//! - `file`: what lies in the file, and how
//! - `writer`: the thread

mod file;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

pub use file::OpenError;

use super::{Change, Done, Full, Kept, Store, Synced};
use file::File;
use writer::Writer;

/// How many numbers are promised to the file at a time.
const BLOCK: u64 = 1_000_000;

/// What may wait for a sync, in bytes of messages and some for what is around them.
const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// What a change weighs beside its payload.
const CHANGE_BYTES: usize = 512;

/// What a file keeps at most.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes of messages in the history, oldest out; some are dropped only with the next writes.
    pub history_bytes: u64,
    /// How long an accepted publish is remembered.
    pub dedupe_window: Duration,
    /// How many accepted publishes are remembered.
    pub dedupe_max: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            history_bytes: 256 * 1024 * 1024,
            dedupe_window: Duration::from_secs(600),
            dedupe_max: 1_000_000,
        }
    }
}

/// The store in a file. Dropping it writes what has gathered and ends its thread.
#[derive(Debug)]
pub struct Disk {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the store and its thread share.
#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Rung when there is something for the thread.
    bell: Condvar,
    /// Numbers up to here may be given out: the file knows.
    ceiling: AtomicU64,
    /// Transactions synced so far.
    syncs: AtomicU64,
}

/// What the thread has to do.
#[derive(Debug, Default)]
struct Queue {
    jobs: Vec<Job>,
    /// What is not synced yet, taken by the thread or not.
    bytes: usize,
    /// Nothing below is in the history any more.
    trim: u64,
    /// The ceiling shall rise.
    raise: bool,
    /// The file cannot be written at the moment.
    failing: bool,
    /// Nothing more is taken.
    closed: bool,
}

/// A change, and who waits for it.
struct Job {
    change: Change,
    bytes: usize,
    done: Option<Done>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("change", &self.change).finish_non_exhaustive()
    }
}

impl Disk {
    /// Opens a file, or makes it where there is none, and reads what is in it. The file is locked until the store is
    /// closed. One that cannot be used is left as it is.
    pub fn open(path: &Path, bounds: Bounds) -> Result<(Self, Kept), OpenError> {
        let (file, kept) = File::open(path, bounds)?;
        let store =
            Self::on(file).map_err(|error| OpenError::Io { path: path.into(), reason: error.to_string() })?;
        Ok((store, kept))
    }

    /// A store that writes to this file.
    fn on(file: File) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            bell: Condvar::new(),
            ceiling: AtomicU64::new(file.ceiling()),
            syncs: AtomicU64::new(0),
        });
        let writer = Writer::new(file, shared.clone());
        let thread = thread::Builder::new().name("nolag-store".to_owned()).spawn(move || writer.run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Writes what has gathered and ends; nothing is taken any more. Blocks for as long as that takes.
    pub fn close(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.bell.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            // It panics only with its own message, which was logged then.
            let _ = thread.join();
        }
    }

    /// How many transactions were synced since the file was opened.
    pub fn syncs(&self) -> u64 {
        self.shared.syncs.load(Ordering::Relaxed)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for Disk {
    fn level(&self) -> &'static str {
        "disk"
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn check(&self) -> Synced {
        let queue = self.shared.queue.lock();
        if queue.failing || queue.closed || queue.bytes > MAX_WAITING_BYTES { Err(Full) } else { Ok(()) }
    }

    fn covers(&self, seq: u64) -> Synced {
        let ceiling = self.shared.ceiling.load(Ordering::Acquire);
        if seq.saturating_add(BLOCK / 2) > ceiling {
            let mut queue = self.shared.queue.lock();
            if !mem::replace(&mut queue.raise, true) {
                self.shared.bell.notify_one();
            }
        }
        if seq <= ceiling { Ok(()) } else { Err(Full) }
    }

    fn put(&self, change: Change, done: Option<Done>) {
        let bytes = CHANGE_BYTES + change.message.as_ref().map_or(0, |record| record.data.len());
        let mut queue = self.shared.queue.lock();
        if queue.closed {
            drop(queue);
            if let Some(done) = done {
                done(Err(Full));
            }
            return;
        }
        queue.bytes += bytes;
        queue.jobs.push(Job { change, bytes, done });
        // One that is there already has rung.
        if queue.jobs.len() == 1 {
            self.shared.bell.notify_one();
        }
    }

    fn trim(&self, seq: u64) {
        let mut queue = self.shared.queue.lock();
        queue.trim = queue.trim.max(seq);
    }
}
