//! The network between one client and the broker: two pipes of bytes, which it delays, holds up, cuts and half-opens. It reorders
//! nothing and duplicates nothing, as TCP does neither.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nolag_core::driver::memory::{Memory, ServerEnd};
use nolag_core::driver::{OpenFailure, Opening, Transport};
use nolag_core::error::ConnectionCode;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::place::Place;

/// How many chunks are under way in each direction before the sender has to wait.
const CHUNKS_UNDER_WAY: usize = 32;

/// What becomes of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    /// Both ends learn of the end; what was under way is lost.
    Cut,
    /// The client's machine is gone: the broker hears nothing, not even of the end.
    ClientGone,
    /// The broker's machine is gone: the client hears nothing.
    BrokerGone,
}

/// One client's line to the broker.
pub(crate) struct Line {
    rng: Mutex<fastrand::Rng>,
    /// The longest delay, in ms.
    delay: AtomicU64,
    frozen: watch::Sender<bool>,
    /// Of the newest connection.
    fate: Mutex<Option<oneshot::Sender<Fate>>>,
}

impl Line {
    pub(crate) fn new(seed: u64, delay: Duration) -> Arc<Self> {
        let line = Self {
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            delay: AtomicU64::new(0),
            frozen: watch::Sender::new(false),
            fate: Mutex::default(),
        };
        line.slow_to(delay);
        Arc::new(line)
    }

    /// The longest that a chunk is under way from now on.
    pub(crate) fn slow_to(&self, delay: Duration) {
        self.delay.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Holds up what is under way, in both directions, or lets it go on.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// Ends the newest connection, if it is still there.
    pub(crate) fn end(&self, fate: Fate) {
        if let Some(connection) = lock(&self.fate).take() {
            let _ = connection.send(fate); // it may have ended by itself
        }
    }

    fn delay(&self) -> Duration {
        Duration::from_millis(lock(&self.rng).u64(0..=self.delay.load(Ordering::Relaxed)))
    }

    /// How many bytes travel together: segments end anywhere.
    fn chunk(&self) -> usize {
        lock(&self.rng).usize(1..2_000)
    }

    async fn thawed(&self) {
        let _ = self.frozen.subscribe().wait_for(|frozen| !frozen).await; // the sender is ours
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens connections over a line.
pub(crate) struct Dialer {
    memory: Memory,
    line: Arc<Line>,
    place: Arc<Place>,
}

impl Dialer {
    pub(crate) fn new(line: Arc<Line>, place: Arc<Place>) -> Self {
        let (memory, mut accepted) = Memory::new();
        let (its_line, its_place) = (Arc::clone(&line), Arc::clone(&place));
        // Ends with the dialer.
        tokio::spawn(async move {
            while let Some(client) = accepted.recv().await {
                connect(client, &its_line, &its_place);
            }
        });
        Self { memory, line, place }
    }
}

impl Transport for Dialer {
    fn open(&mut self) -> Opening {
        let opening = self.memory.open();
        let (line, place) = (Arc::clone(&self.line), Arc::clone(&self.place));
        Box::pin(async move {
            sleep(line.delay()).await;
            line.thawed().await;
            if place.is_up() {
                return opening.await;
            }
            let message = "nobody listens".to_owned();
            Err(OpenFailure { code: ConnectionCode::Refused, message, retry_after: None })
        })
    }
}

/// Lays the pipes of a new connection.
fn connect(client: ServerEnd, line: &Arc<Line>, place: &Place) {
    let Some(broker) = place.accept() else { return };
    let (sender, fate) = oneshot::channel();
    *lock(&line.fate) = Some(sender);
    tokio::spawn(carry(client, broker, Arc::clone(line), fate));
}

/// Carries bytes both ways until the connection has ended.
async fn carry(
    mut client: ServerEnd,
    mut broker: DuplexStream,
    line: Arc<Line>,
    fate: oneshot::Receiver<Fate>,
) {
    let fate = async {
        match fate.await {
            Ok(fate) => fate,
            Err(_) => std::future::pending().await, // there is a newer connection to play with
        }
    };
    let fate = {
        let (from_client, to_client) = tokio::io::split(&mut client);
        let (from_broker, to_broker) = tokio::io::split(&mut broker);
        let both = async {
            tokio::try_join!(pass(from_client, to_broker, &line), pass(from_broker, to_client, &line))
        };
        tokio::select! {
            biased;
            fate = fate => fate,
            _ = both => Fate::Cut,
        }
    };
    match fate {
        Fate::Cut => {}
        Fate::ClientGone => {
            drop(client);
            swallow(broker).await;
        }
        Fate::BrokerGone => {
            drop(broker);
            swallow(client).await;
        }
    }
}

/// Takes what an end sends, and says nothing, until that end gives up.
async fn swallow(mut end: DuplexStream) {
    let _ = tokio::io::copy(&mut end, &mut tokio::io::sink()).await;
}

/// One direction. What has been taken goes on in the order it came, each chunk some time later.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    line: &Line,
) -> io::Result<()> {
    let (sender, mut under_way) = mpsc::channel(CHUNKS_UNDER_WAY);
    let take = async move {
        let mut last = Instant::now();
        loop {
            let mut chunk = vec![0; line.chunk()];
            let length = from.read(&mut chunk).await?;
            chunk.truncate(length);
            last = last.max(Instant::now() + line.delay());
            if length == 0 || sender.send((last, chunk)).await.is_err() {
                return io::Result::Ok(());
            }
        }
    };
    let give = async {
        while let Some((at, chunk)) = under_way.recv().await {
            sleep_until(at).await;
            line.thawed().await;
            to.write_all(&chunk).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(take, give).map(|_| ())
}
