//! What waits to be written to one connection.
//!
//! Anybody may push: the connection's own replies, and other connections' publishes and presence. The
//! connection's writer takes all that is there at once. The backlog is bounded in bytes; a consumer that
//! passes the bound is closed, its backlog dropped and counted, and nobody waits for it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use nolag_protocol::codes;
use parking_lot::{Mutex, MutexGuard};

/// Names a connection within this process.
pub(crate) type ConnectionId = u64;

/// What a queued frame costs beyond its bytes.
const FRAME_OVERHEAD: usize = size_of::<Entry>();

/// Why and how the broker ends a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Close {
    /// The WebSocket close code.
    pub(crate) code: u16,
    /// The close reason, and that of the `disconnect` frame before it.
    pub(crate) reason: String,
    /// A lower bound on the client's next attempt, in ms.
    pub(crate) retry_after_ms: Option<u64>,
}

impl From<codes::CloseCode> for Close {
    fn from(close: codes::CloseCode) -> Self {
        Self { code: close.code, reason: close.reason.to_owned(), retry_after_ms: None }
    }
}

/// The sending side of one connection, shared by all that send to it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    id: ConnectionId,
    max_bytes: usize,
    /// Bytes queued or taken by the writer and not yet written.
    bytes: AtomicUsize,
    queue: Mutex<Queue>,
    writer: AtomicWaker,
}

/// Frames that are made when their turn comes, and are no backlog before.
pub(crate) type Replay = Box<dyn Iterator<Item = Bytes> + Send>;

/// What waits to be written.
pub(crate) enum Entry {
    /// A frame.
    Frame(Bytes),
    /// Several.
    Replay(Replay),
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame(frame) => f.debug_tuple("Frame").field(frame).finish(),
            Self::Replay(_) => f.write_str("Replay"),
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Entry>,
    close: Option<Close>,
    /// From this frame on, counted from the front, frames may share a message (`batch`, features 5).
    packs_from: Option<usize>,
    /// How many frames were thrown away because the consumer was too slow.
    dropped: u64,
}

/// What the writer found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Frames.
    Frames {
        /// So many of the first must not share a message with others.
        alone: usize,
    },
    /// No frame is left, and somebody asked for a close.
    Close(Close),
}

impl Outgoing {
    /// A queue for at most `max_bytes` of backlog.
    pub(crate) fn new(id: ConnectionId, max_bytes: usize) -> Self {
        Self {
            id,
            max_bytes,
            bytes: AtomicUsize::new(0),
            queue: Mutex::default(),
            writer: AtomicWaker::new(),
        }
    }

    /// The connection it belongs to.
    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    /// Queues a frame. It is dropped when the connection is being closed, and closes it when the backlog
    /// passes the bound.
    pub(crate) fn push(&self, frame: Bytes) {
        let cost = frame.len() + FRAME_OVERHEAD;
        let mut queue = self.queue.lock();
        if let Some(close) = &queue.close {
            // What comes after another close is not lost to slowness: the connection was ending.
            queue.dropped += u64::from(close.code == codes::SLOW_CONSUMER.code);
            return;
        }
        if self.bytes.fetch_add(cost, Ordering::Relaxed) + cost > self.max_bytes {
            queue.dropped += queue.frames.len() as u64 + 1;
            queue.frames = VecDeque::new();
            queue.close = Some(codes::SLOW_CONSUMER.into());
            drop(queue);
            self.writer.wake();
            return;
        }
        self.enqueue(queue, Entry::Frame(frame));
    }

    /// Queues frames that are made when the connection has taken what is before them.
    pub(crate) fn push_replay(&self, replay: Replay) {
        let queue = self.queue.lock();
        if queue.close.is_none() {
            self.enqueue(queue, Entry::Replay(replay));
        }
    }

    fn enqueue(&self, mut queue: MutexGuard<'_, Queue>, entry: Entry) {
        let first = queue.frames.is_empty();
        queue.frames.push_back(entry);
        drop(queue);
        if first {
            self.writer.wake();
        }
    }

    /// Ends the connection once what is queued has been written; the first reason counts.
    pub(crate) fn close(&self, close: Close) {
        self.queue.lock().close.get_or_insert(close);
        self.writer.wake();
    }

    /// What is queued after this may share messages: its receiver knows by what is queued already.
    pub(crate) fn pack_from_now(&self) {
        let mut queue = self.queue.lock();
        queue.packs_from = Some(queue.frames.len());
    }

    /// So many frames that the writer had taken were thrown away too.
    pub(crate) fn drop_frames(&self, frames: usize) {
        self.queue.lock().dropped += frames as u64;
    }

    /// How many frames were thrown away because the consumer was too slow.
    pub(crate) fn dropped(&self) -> u64 {
        self.queue.lock().dropped
    }

    /// The writer's side: moves all queued frames into `batch`, which is empty. Ready when there is one, or with
    /// the close when there is none left.
    pub(crate) fn poll_take(&self, batch: &mut VecDeque<Entry>, context: &Context<'_>) -> Poll<Taken> {
        self.writer.register(context.waker());
        let mut queue = self.queue.lock();
        if !queue.frames.is_empty() {
            std::mem::swap(&mut queue.frames, batch);
            let alone = queue.packs_from.as_mut().map_or(usize::MAX, std::mem::take);
            return Poll::Ready(Taken::Frames { alone });
        }
        queue.close.clone().map_or(Poll::Pending, |close| Poll::Ready(Taken::Close(close)))
    }

    /// Whether a frame is waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.lock().frames.is_empty()
    }

    /// A frame of this length was handed to the socket.
    pub(crate) fn sent(&self, len: usize) {
        self.bytes.fetch_sub(len + FRAME_OVERHEAD, Ordering::Relaxed);
    }

    /// Ready with the close once somebody asked for one, whatever is still queued.
    pub(crate) fn poll_closing(&self, context: &Context<'_>) -> Poll<Close> {
        self.writer.register(context.waker());
        self.queue.lock().close.clone().map_or(Poll::Pending, Poll::Ready)
    }

    /// Whether somebody asked for a close.
    pub(crate) fn is_closing(&self) -> bool {
        self.queue.lock().close.is_some()
    }
}
