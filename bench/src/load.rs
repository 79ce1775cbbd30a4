//! Publishers, and the audiences that count what reaches them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use crate::process::{self, Process};
use crate::wire::{Connection, publish};

/// The token of subscribers.
const LISTENER: &str = "dev-token-bob";
/// The token of publishers.
const SPEAKER: &str = "dev-token-alice";
/// The topic that everything is published on.
pub(crate) const TOPIC: &str = "demo/general/bench";
/// Bytes of every payload.
const PAYLOAD: usize = 100;
/// The payload begins with the time it was sent at, in nanoseconds, with so many digits.
const STAMP: usize = 19;
/// Connections opened at a time.
const OPENING: usize = 64;
/// Connections of an audience that measure latency, so that measuring costs little; they are spread evenly.
const TIMED: usize = 50;
/// How long nothing may arrive before a round is given up.
const STALL: Duration = Duration::from_secs(10);

/// Nanoseconds since the generator started.
fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).expect("a run ends within centuries")
}

/// Opens connections, each subscribed to [`TOPIC`].
pub(crate) async fn listeners(address: &str, count: usize) -> Result<Vec<Connection>> {
    async fn listener(address: String) -> Result<Connection> {
        let mut connection = Connection::login(&address, LISTENER).await?;
        connection.subscribe([TOPIC.to_owned()]).await?;
        Ok(connection)
    }
    open(count, || listener(address.to_owned())).await
}

/// Opens connections that subscribe to `each` topics of their own.
pub(crate) async fn bystanders(address: &str, count: usize, each: usize) -> Result<Vec<Connection>> {
    let mut all = Vec::with_capacity(count);
    for number in 0..count {
        let mut bystander = Connection::login(address, LISTENER).await?;
        bystander.subscribe((0..each).map(|topic| format!("demo/general/other-{number}-{topic}"))).await?;
        all.push(bystander);
    }
    Ok(all)
}

/// Opens connections to something that speaks without being asked.
pub(crate) async fn plain(address: &str, count: usize) -> Result<Vec<Connection>> {
    async fn one(address: String) -> Result<Connection> {
        Connection::plain(&address).await
    }
    open(count, || one(address.to_owned())).await
}

async fn open<F>(count: usize, one: impl Fn() -> F) -> Result<Vec<Connection>>
where
    F: Future<Output = Result<Connection>> + Send + 'static,
{
    let mut opening = JoinSet::new();
    let mut open = Vec::with_capacity(count);
    while open.len() < count {
        while opening.len() < OPENING.min(count - open.len()) {
            opening.spawn(one());
        }
        open.push(opening.join_next().await.context("nothing is being opened")???);
    }
    Ok(open)
}

/// Connections that read all the time, and what they have read.
pub(crate) struct Audience {
    size: u64,
    heard: Arc<Heard>,
    _readers: JoinSet<()>,
}

#[derive(Default)]
struct Heard {
    messages: AtomicU64,
    /// When the last message came.
    last: AtomicU64,
    /// Why a connection ended.
    failure: OnceLock<String>,
    /// One message with its WebSocket header, as it came.
    sample: OnceLock<Vec<u8>>,
    /// Of the connections that measure latency: from sent to read.
    latencies: Mutex<Vec<Duration>>,
}

impl Audience {
    /// Lets connections read, each in a task of its own.
    pub(crate) fn new(connections: Vec<Connection>) -> Self {
        let size = connections.len();
        let heard = Arc::new(Heard::default());
        let mut readers = JoinSet::new();
        for (number, connection) in connections.into_iter().enumerate() {
            readers.spawn(listen(connection, number % size.div_ceil(TIMED) == 0, heard.clone()));
        }
        Self { size: size as u64, heard, _readers: readers }
    }

    /// One message as it came, once one has come.
    pub(crate) fn sample(&self) -> Option<Vec<u8>> {
        self.heard.sample.get().cloned()
    }

    /// Waits until every reader has had `count` messages more than `before`, all readers added up.
    async fn wait(&self, before: u64, count: u64) -> Result<()> {
        let wanted = before + count * self.size;
        let mut seen = (self.heard.messages.load(Relaxed), Instant::now());
        while seen.0 < wanted {
            sleep(Duration::from_millis(2)).await;
            if let Some(failure) = self.heard.failure.get() {
                bail!("a subscriber was lost: {failure}");
            }
            let messages = self.heard.messages.load(Relaxed);
            if messages > seen.0 {
                seen = (messages, Instant::now());
            } else if seen.1.elapsed() > STALL {
                bail!("{} of {} deliveries are missing", wanted - messages, count * self.size);
            }
        }
        Ok(())
    }
}

async fn listen(mut connection: Connection, timed: bool, heard: Arc<Heard>) {
    let failure = loop {
        let mut stamps = Vec::new();
        let mut messages = 0;
        let received = connection
            .receive(|frame| {
                if frame.kind != b"message" {
                    return;
                }
                messages += 1;
                if timed {
                    stamps.extend(stamp(frame.data));
                    heard.sample.get_or_init(|| frame.raw.to_vec());
                }
            })
            .await;
        if let Err(failure) = received {
            break failure;
        }
        if messages == 0 {
            continue;
        }
        let now = now();
        heard.last.fetch_max(now, Relaxed);
        if timed {
            let latencies = stamps.into_iter().map(|sent| Duration::from_nanos(now.saturating_sub(sent)));
            heard.latencies.lock().unwrap_or_else(PoisonError::into_inner).extend(latencies);
        }
        heard.messages.fetch_add(messages, Relaxed);
    };
    // Only the first failure is of interest.
    let _ = heard.failure.set(format!("{failure:#}"));
}

fn stamp(data: &[u8]) -> Option<u64> {
    std::str::from_utf8(data.get(..STAMP)?).ok()?.parse().ok()
}

/// How fast to publish.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// So many a second, whatever comes back.
    Rate(u32),
    /// As fast as it goes with so many unconfirmed, each publish a write of its own.
    InFlight(usize),
    /// The same, but what may go out at a time is one write.
    Gathered(usize),
}

/// A connection that publishes.
pub(crate) struct Publisher {
    connection: Connection,
    message: Vec<u8>,
    /// Where in the message the time belongs.
    stamp_at: usize,
}

impl Publisher {
    /// Connects to a broker.
    pub(crate) async fn connect(address: &str) -> Result<Self> {
        let connection = Connection::login(address, SPEAKER).await?;
        let (message, stamp_at) = publish(TOPIC, &"x".repeat(PAYLOAD))?;
        Ok(Self { connection, message, stamp_at })
    }

    /// Publishes for a time, waits until all is confirmed, and tells how many messages that were.
    async fn run(&mut self, pace: Pace, time: Duration) -> Result<u64> {
        let end = Instant::now() + time;
        let mut in_flight = 0;
        let mut sent = 0;
        match pace {
            Pace::Rate(rate) => {
                let mut due = tokio::time::Instant::now();
                while due.into_std() < end {
                    tokio::select! {
                        () = sleep_until(due) => {
                            self.send(1).await?;
                            sent += 1;
                            in_flight += 1;
                            due += Duration::from_secs(1) / rate;
                        }
                        confirmed = confirmations(&mut self.connection) => in_flight -= confirmed?,
                    }
                }
            }
            Pace::InFlight(window) | Pace::Gathered(window) => {
                let gathers = matches!(pace, Pace::Gathered(_));
                while Instant::now() < end {
                    let more = window - in_flight;
                    let (writes, each) = if gathers { (1, more) } else { (more, 1) };
                    for _ in 0..writes {
                        self.send(each).await?;
                    }
                    sent += more as u64;
                    in_flight = window - confirmations(&mut self.connection).await?;
                }
            }
        }
        while in_flight > 0 {
            in_flight -= confirmations(&mut self.connection).await?;
        }
        Ok(sent)
    }

    /// Publishes in one write.
    async fn send(&mut self, count: usize) -> Result<()> {
        let stamp = format!("{:0STAMP$}", now());
        self.message[self.stamp_at..self.stamp_at + STAMP].copy_from_slice(stamp.as_bytes());
        self.connection.send(&self.message.repeat(count)).await
    }
}

/// Waits for `published` frames and counts them.
async fn confirmations(connection: &mut Connection) -> Result<usize> {
    let mut confirmed = 0;
    let mut refused = None;
    let read = connection.receive(|frame| match frame.kind {
        b"published" => confirmed += 1,
        b"error" => refused = Some(String::from_utf8_lossy(frame.error).into_owned()),
        _ => {}
    });
    timeout(STALL, read).await.context("the broker confirms nothing")??;
    match refused {
        Some(error) => bail!("a publish was refused: {error}"),
        None => Ok(confirmed),
    }
}

/// A round that is under way: what had been used and heard when it began.
pub(crate) struct Watch {
    cpu: Duration,
    own_cpu: Duration,
    messages: u64,
    start: u64,
}

impl Watch {
    /// Begins a round.
    pub(crate) fn start(process: &Process, audience: &Audience) -> Result<Self> {
        audience.heard.latencies.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(Self {
            cpu: process.cpu()?,
            own_cpu: process::cpu("self")?,
            messages: audience.heard.messages.load(Relaxed),
            start: now(),
        })
    }

    /// Waits until the whole audience has had everything that was published.
    pub(crate) async fn finish(
        self,
        process: &Process,
        audience: &Audience,
        published: u64,
    ) -> Result<Round> {
        audience.wait(self.messages, published).await?;
        let cpu = process.cpu()?.saturating_sub(self.cpu);
        let own_cpu = process::cpu("self")?.saturating_sub(self.own_cpu);
        let time = Duration::from_nanos(audience.heard.last.load(Relaxed).saturating_sub(self.start));
        let mut latencies =
            std::mem::take(&mut *audience.heard.latencies.lock().unwrap_or_else(PoisonError::into_inner));
        latencies.sort_unstable();
        Ok(Round { published, delivered: published * audience.size, time, cpu, own_cpu, latencies })
    }
}

/// What a round did.
pub(crate) struct Round {
    published: u64,
    delivered: u64,
    /// From the first publish to the last delivery.
    time: Duration,
    /// What the process under measurement used.
    cpu: Duration,
    /// What the generator used.
    own_cpu: Duration,
    /// Sorted.
    latencies: Vec<Duration>,
}

impl Round {
    /// CPU time for each delivery, in microseconds.
    pub(crate) fn cpu_per_delivery(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.delivered as f64
    }

    /// CPU time for each publish, in microseconds.
    pub(crate) fn cpu_per_publish(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.published as f64
    }

    /// What the generator used, as a multiple of what it measured.
    pub(crate) fn generator(&self) -> f64 {
        self.own_cpu.as_secs_f64() / self.cpu.as_secs_f64()
    }

    /// Deliveries a second.
    pub(crate) fn rate(&self) -> f64 {
        self.delivered as f64 / self.time.as_secs_f64()
    }

    /// The latency that `percent` of the deliveries stay below, in milliseconds.
    pub(crate) fn latency(&self, percent: usize) -> f64 {
        let at = self.latencies.len().saturating_sub(1) * percent / 100;
        self.latencies.get(at).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
    }
}

/// Publishes for a time and waits until everyone has had everything.
pub(crate) async fn round(
    process: &Process,
    audience: &Audience,
    publisher: &mut Publisher,
    pace: Pace,
    time: Duration,
) -> Result<Round> {
    let watch = Watch::start(process, audience)?;
    let published = publisher.run(pace, time).await?;
    watch.finish(process, audience, published).await
}
