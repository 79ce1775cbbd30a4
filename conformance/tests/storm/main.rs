//! The storm: a great many clients lose the broker at once, and all come back, with nothing missing.
//!
//! `NOLAG_STORM_CLIENTS=10000 cargo test --release -p nolag-conformance --test storm drains` is a larger one.

#[path = "../kit/mod.rs"]
mod kit;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::program::Broker;
use kit::proxy::Proxy;
use kit::soon;
use nolag_core::event::Event;
use nolag_core::{Client, Error};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::Receiver;
use tokio::task::JoinSet;
use tokio::time::sleep;

const TOPIC: &str = "demo/general/messages";

/// How many clients there are unless `NOLAG_STORM_CLIENTS` says otherwise.
const CLIENTS: usize = 2_000;

/// One storm at a time: each takes all of the machine.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// What the clients tell.
#[derive(Default)]
struct Notes {
    /// How often a client was back.
    returns: AtomicUsize,
    /// The waits before the first attempts after a loss.
    waits: Mutex<Vec<Duration>>,
    /// Gaps, failures, and messages that came out of turn.
    complaints: Mutex<Vec<String>>,
    /// Messages, of all clients together.
    messages: AtomicU64,
}

/// Clients that are subscribed to one topic.
struct Crowd {
    clients: Vec<Client>,
    notes: Arc<Notes>,
}

fn builder(address: SocketAddr, name: &str) -> Result<Client, Error> {
    Client::builder(format!("dev-token-{name}")).url(format!("ws://{address}")).build()
}

impl Crowd {
    async fn gather(size: usize, address: SocketAddr) -> Self {
        let (notes, at_once) = (Arc::<Notes>::default(), Arc::new(Semaphore::new(200)));
        let mut joining = JoinSet::new();
        for _ in 0..size {
            let (notes, at_once) = (Arc::clone(&notes), Arc::clone(&at_once));
            joining.spawn(async move {
                let _seat = at_once.acquire().await;
                let client = builder(address, "bob").unwrap();
                client.connect().await.unwrap();
                tokio::spawn(listen(client.events(), Arc::clone(&notes)));
                let mut messages = client.subscribe(TOPIC).buffer(16).await.unwrap();
                tokio::spawn(async move {
                    let mut expected = 0_u64;
                    while let Some(Ok(message)) = messages.next().await {
                        let number = message.decode::<u64>().unwrap();
                        if number != expected {
                            notes.complaints.lock().unwrap().push(format!("{number} instead of {expected}"));
                        }
                        expected = number + 1;
                        notes.messages.fetch_add(1, Ordering::SeqCst);
                    }
                });
                client
            });
        }
        Self { clients: soon("everybody", joining.join_all()).await, notes }
    }

    /// Waits until everybody has got so many messages, all in turn.
    async fn have(&self, messages: u64) {
        let all = messages * self.clients.len() as u64;
        soon("messages for everybody", async {
            while self.notes.messages.load(Ordering::SeqCst) < all {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert_eq!(self.notes.messages.load(Ordering::SeqCst), all);
        assert_eq!(*self.notes.complaints.lock().unwrap(), Vec::<String>::new());
    }

    /// Waits until everybody has been away and is back.
    async fn are_back(&self) {
        soon("everybody's return", async {
            while self.notes.returns.load(Ordering::SeqCst) < self.clients.len() {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    /// The largest part of the first attempts that one window of this length holds, in percent.
    fn fullest(&self, window: Duration) -> usize {
        let mut waits = self.notes.waits.lock().unwrap().clone();
        assert_eq!(waits.len(), self.clients.len(), "each was lost once");
        waits.sort_unstable();
        let in_window = |from: Duration| {
            let ends = |to| waits.partition_point(|at| *at < to);
            ends(from + window) - ends(from)
        };
        waits.iter().map(|at| in_window(*at)).max().unwrap_or_default() * 100 / waits.len()
    }
}

/// Notes what a client is told.
async fn listen(mut events: Receiver<Event>, notes: Arc<Notes>) {
    loop {
        match events.recv().await {
            Ok(Event::Reconnecting { attempt: 1, delay, .. }) => notes.waits.lock().unwrap().push(delay),
            Ok(Event::Reconnected) => drop(notes.returns.fetch_add(1, Ordering::SeqCst)),
            Ok(event @ (Event::Gap(_) | Event::Failed(_))) => {
                notes.complaints.lock().unwrap().push(format!("{event:?}"));
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// Publishes the numbers, and waits until the broker has all of them.
async fn publish(publisher: &Client, numbers: std::ops::Range<u64>) {
    for number in numbers {
        soon("a receipt", publisher.publish(TOPIC, &number).into_future()).await.unwrap();
    }
}

/// What strikes.
enum Strike {
    /// As `kill -9`, and a start.
    Kill,
    /// SIGTERM, and a start.
    Drain,
    /// The broker lives on; every connection but the publisher's is cut.
    Cut,
}

/// All are connected, subscribed and recovered afterwards, without a gap; and the broker needs less than twice its memory meanwhile.
async fn storm(strike: Strike) -> Crowd {
    let _turn = TURN.lock().await;
    let size = std::env::var("NOLAG_STORM_CLIENTS").map_or(CLIENTS, |text| text.parse().expect("a number"));
    let mut broker = Broker::start([("STORE_PATH", "store")]).await;
    let proxy = Proxy::start(broker.address).await;
    let through = matches!(strike, Strike::Cut);
    // Each connection of the crowd takes a socket here, and one that goes through the proxy two more.
    let sockets = size * if through { 3 } else { 1 };
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap();
    assert!(files > sockets as u64 + 100, "{files} open files are too few for {size} clients");
    let crowd = Crowd::gather(size, if through { proxy.address } else { broker.address }).await;
    let publisher = builder(broker.address, "alice").unwrap();
    publisher.connect().await.unwrap();
    publish(&publisher, 0..10).await;
    crowd.have(10).await;
    let before = broker.memory("VmRSS");

    match strike {
        Strike::Kill => {
            broker.kill().await;
            broker.restart().await;
        }
        Strike::Drain => {
            broker.drain().await;
            broker.restart().await;
        }
        Strike::Cut => {
            broker.forget_peak();
            proxy.cut();
        }
    }
    publish(&publisher, 10..20).await;
    crowd.are_back().await;
    publish(&publisher, 20..30).await;
    crowd.have(30).await;

    let peak = broker.memory("VmHWM");
    assert!(peak < 2 * before, "{} KiB at the peak, and {} before", peak / 1024, before / 1024);
    let authenticated = r#"nolag_connections{protocol="websocket",state="authenticated"}"#;
    assert_eq!(broker.metric(authenticated).await, size as u64 + 1);
    assert_eq!(broker.metric("nolag_subscriptions").await, size as u64);
    println!("{} KiB before, {} KiB at the peak", before / 1024, peak / 1024);
    crowd
}

/// F-16, F-15: those that are told to come back do not come at once.
#[tokio::test(flavor = "multi_thread")]
async fn the_broker_drains() {
    let crowd = storm(Strike::Drain).await;
    let fullest = crowd.fullest(Duration::from_millis(100));
    assert!(fullest <= 5, "{fullest} % in 100 ms");
}

/// API-014: nor do those that nobody told anything.
#[tokio::test(flavor = "multi_thread")]
async fn the_broker_is_killed() {
    let crowd = storm(Strike::Kill).await;
    let fullest = crowd.fullest(Duration::from_millis(100));
    assert!(fullest <= 45, "{fullest} % in 100 ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_connection_is_cut() {
    storm(Strike::Cut).await;
}
