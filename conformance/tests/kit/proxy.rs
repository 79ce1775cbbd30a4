//! A TCP proxy that does to connections what networks do: cuts, freezes, half-closes and slows them, and splits and merges their segments.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep, timeout_at};

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    ToBroker,
    ToClient,
}

/// What happens to the bytes of every connection, from the next one on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    /// None pass, either way.
    pub frozen: bool,
    /// At most so many a second, each way.
    pub bytes_per_second: Option<u32>,
    /// They come in segments of this size.
    pub segment: Option<usize>,
    /// They come together with all that follow within this time.
    pub merge: Option<Duration>,
}

/// What happens once, to all connections that there are.
#[derive(Debug, Clone, Copy)]
enum Incident {
    /// Both sockets are closed, and what is under way is lost.
    Cut,
    /// One way ends in order; the other stays open.
    HalfClose(Way),
}

/// A proxy in front of one address. Its connections end with it.
pub struct Proxy {
    pub address: SocketAddr,
    weather: watch::Sender<Weather>,
    incidents: broadcast::Sender<Incident>,
    accepted: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
}

impl Proxy {
    /// One on a free port.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (weather, incidents) = (watch::Sender::new(Weather::default()), broadcast::Sender::new(16));
        let (accepted, open) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let proxy = Self {
            address,
            weather: weather.clone(),
            incidents,
            accepted: accepted.clone(),
            open: open.clone(),
        };
        // Weak, so that the end of the proxy is the end of this task and of the connections.
        let incidents = proxy.incidents.downgrade();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Some(incidents) = incidents.upgrade().map(|sender| sender.subscribe()) else { return };
                accepted.fetch_add(1, Ordering::SeqCst);
                let (open, weather) = (Open::new(open.clone()), weather.subscribe());
                tokio::spawn(async move {
                    let _open = open;
                    let Ok(broker) = TcpStream::connect(target).await else { return };
                    let _ = carry(client, broker, weather, incidents).await; // how it ends is no matter
                });
            }
        });
        proxy
    }

    /// Changes what happens to the bytes from now on.
    pub fn weather(&self, change: impl FnOnce(&mut Weather)) {
        self.weather.send_modify(change);
    }

    /// Ends all connections without a word.
    pub fn cut(&self) {
        let _ = self.incidents.send(Incident::Cut); // there may be none
    }

    /// Ends one way of all connections.
    pub fn half_close(&self, way: Way) {
        let _ = self.incidents.send(Incident::HalfClose(way)); // there may be none
    }

    /// How many connections there have been.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// How many there are.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

/// Counts an open connection.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn carry(
    client: TcpStream,
    broker: TcpStream,
    weather: watch::Receiver<Weather>,
    mut incidents: broadcast::Receiver<Incident>,
) -> io::Result<()> {
    for socket in [&client, &broker] {
        socket.set_nodelay(true)?; // each write is a segment
    }
    let (from_client, to_client) = client.into_split();
    let (from_broker, to_broker) = broker.into_split();
    let (half_closed, _) = watch::channel(None);
    let up = pass(from_client, to_broker, weather.clone(), half_closed.subscribe(), Way::ToBroker);
    let down = pass(from_broker, to_client, weather, half_closed.subscribe(), Way::ToClient);
    let both = async { tokio::try_join!(up, down).map(|_| ()) };
    let incident = async {
        loop {
            match incidents.recv().await {
                Ok(Incident::HalfClose(way)) => drop(half_closed.send_replace(Some(way))),
                Ok(Incident::Cut) | Err(_) => return,
            }
        }
    };
    tokio::select! {
        ended = both => ended,
        () = incident => Ok(()),
    }
}

/// One way, until its end.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    mut half_closed: watch::Receiver<Option<Way>>,
    way: Way,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let mut length = tokio::select! {
            length = from.read(&mut buffer) => length?,
            _ = half_closed.wait_for(|closed| *closed == Some(way)) => 0,
        };
        if length == 0 {
            to.shutdown().await?;
            // The sockets stay open until the other way has ended too.
            return Ok(());
        }
        let now = *weather.borrow();
        if let Some(merge) = now.merge {
            let deadline = Instant::now() + merge;
            while length < buffer.len()
                && let Ok(more) = timeout_at(deadline, from.read(&mut buffer[length..])).await
            {
                match more? {
                    0 => break, // the next read tells again
                    more => length += more,
                }
            }
        }
        let segment = now.segment.unwrap_or(buffer.len());
        for segment in buffer[..length].chunks(segment) {
            if let Some(rate) = now.bytes_per_second {
                sleep(Duration::from_secs(1) * u32::try_from(segment.len()).unwrap_or(u32::MAX) / rate).await;
            }
            let _ = weather.wait_for(|weather| !weather.frozen).await; // a proxy that is gone ends this anyway
            to.write_all(segment).await?;
            tokio::task::yield_now().await;
        }
    }
}
