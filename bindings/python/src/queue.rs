//! The hop from the I/O thread to the event loop's thread.
//!
//! The driver's task leaves what is ready in a client's queue, once per turn, and wakes the loop by a byte through a socket pair: so
//! the I/O thread never touches the interpreter, and the interpreter may end at any moment. Messages in a queue are bounded by the
//! session, which hands out no more than `receive_buffer` of them that are not reported; calls by their own number.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nolag_core::driver::Host;
use nolag_core::session::{Dispatched, Reply, RequestId, Token, TokenFailure, TokenRequest};
use nolag_core::{Error, Event};
use tokio::sync::oneshot;

#[cfg(unix)]
type Socket = std::os::unix::net::UnixStream;
#[cfg(not(unix))]
type Socket = std::net::TcpStream;

/// What crosses.
pub(crate) enum Item {
    Event(Event),
    Complete(RequestId, Result<Reply, Error>),
    Token(TokenRequest, oneshot::Sender<Result<Token, TokenFailure>>),
    /// Sent or received, its kind, its bytes.
    Frame(bool, &'static str, usize),
}

/// Wakes one event loop, and tells it which clients have something.
pub(crate) struct Waker {
    ready: Mutex<Vec<u64>>,
    sender: Socket,
    receiver: Socket,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let (sender, receiver) = pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok(Self { ready: Mutex::default(), sender, receiver })
    }

    fn notify(&self, client: u64) {
        let mut ready = lock(&self.ready);
        ready.push(client);
        if ready.len() == 1 {
            // A full buffer holds a byte that was not read yet.
            let _ = (&self.sender).write(&[0]);
        }
    }

    /// The clients that have something, each at least once.
    pub(crate) fn take(&self) -> Vec<u64> {
        let mut bytes = [0; 64];
        while (&self.receiver).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
        std::mem::take(&mut lock(&self.ready))
    }

    /// What the loop watches.
    #[cfg(unix)]
    pub(crate) fn descriptor(&self) -> i64 {
        use std::os::fd::AsRawFd as _;
        self.receiver.as_raw_fd().into()
    }

    /// What the loop watches.
    #[cfg(windows)]
    pub(crate) fn descriptor(&self) -> i64 {
        use std::os::windows::io::AsRawSocket as _;
        self.receiver.as_raw_socket() as i64 // a handle fits in 32 bits
    }
}

#[cfg(unix)]
fn pair() -> io::Result<(Socket, Socket)> {
    Socket::pair()
}

#[cfg(not(unix))]
fn pair() -> io::Result<(Socket, Socket)> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let sender = Socket::connect(listener.local_addr()?)?;
    sender.set_nodelay(true)?;
    loop {
        let (receiver, peer) = listener.accept()?;
        if peer == sender.local_addr()? {
            return Ok((sender, receiver)); // not somebody else's connection to our port
        }
    }
}

/// One client's queue.
pub(crate) struct Queue {
    number: u64,
    waker: Arc<Waker>,
    items: Mutex<Vec<Item>>,
    /// Messages that were handled, and whether they succeeded.
    finished: Mutex<Vec<(u64, bool)>>,
    /// Some reader takes no more messages.
    full: AtomicBool,
}

impl Queue {
    pub(crate) fn new(number: u64, waker: Arc<Waker>) -> Self {
        Self {
            number,
            waker,
            items: Mutex::default(),
            finished: Mutex::default(),
            full: AtomicBool::new(false),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// What waits.
    pub(crate) fn take(&self) -> Vec<Item> {
        std::mem::take(&mut lock(&self.items))
    }

    fn notify(&self) {
        self.waker.notify(self.number);
    }

    pub(crate) fn push(&self, item: Item) {
        self.append(&mut vec![item]);
    }

    fn append(&self, new: &mut Vec<Item>) {
        let mut items = lock(&self.items);
        let was_empty = items.is_empty();
        if was_empty {
            *items = std::mem::take(new); // an idle client holds no buffer
        } else {
            items.append(new);
        }
        drop(items);
        if was_empty {
            self.notify();
        }
    }

    /// Notes messages as handled; how many are, that the driver has not learnt of.
    pub(crate) fn finish(&self, finished: &mut Vec<(u64, bool)>) -> usize {
        let mut all = lock(&self.finished);
        all.append(finished);
        all.len()
    }

    /// Whether some are, that the driver has not learnt of.
    pub(crate) fn has_finished(&self) -> bool {
        !lock(&self.finished).is_empty()
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Release);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner) // nothing under these locks can panic halfway
}

/// The driver's end of a queue.
pub(crate) struct Sender {
    pub(crate) queue: Arc<Queue>,
    pub(crate) turn: Vec<Item>,
    /// Whether frames are logged.
    pub(crate) debug: bool,
}

impl Host for Sender {
    fn event(&mut self, event: Event) {
        self.turn.push(Item::Event(event));
    }

    fn complete(&mut self, request: RequestId, result: Result<Reply, Error>) {
        self.turn.push(Item::Complete(request, result));
    }

    fn flush(&mut self) {
        if !self.turn.is_empty() {
            self.queue.append(&mut self.turn);
        }
    }

    fn frame(&mut self, sent: bool, kind: &'static str, bytes: usize) {
        self.turn.push(Item::Frame(sent, kind, bytes));
    }

    fn wants_frames(&self) -> bool {
        self.debug
    }

    fn dispatched(&mut self) -> Option<Dispatched> {
        let finished = std::mem::take(&mut *lock(&self.queue.finished));
        (!finished.is_empty()).then_some(Dispatched::Finished(finished))
    }

    fn has_room(&self) -> bool {
        !self.queue.full.load(Ordering::Acquire)
    }
}
