//! Our client against our broker, both in this process, over real sockets on a free port.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nolag_broker::auth::{DEMO_TOKENS, StaticAuth};
use nolag_broker::clock::Clock;
use nolag_broker::config::Settings;
use nolag_broker::{Broker, http};
use nolag_core::client::TokenSource;
use nolag_core::event::{Change, Event, Outcome, State};
use nolag_core::options::{AckMode, InitialConnect, Qos, Secret};
use nolag_core::session::{Token, TokenReason};
use nolag_core::{Client, Error};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

const TOPIC: &str = "demo/general/messages";
/// Longer than anything takes that happens at all.
const PATIENCE: Duration = Duration::from_secs(20);

/// A broker that can be killed and started again on its port.
struct Server {
    broker: Arc<Broker>,
    task: JoinHandle<()>,
    address: SocketAddr,
}

impl Server {
    async fn start() -> Self {
        Self::on(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    async fn on(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let settings = Settings::default();
        let auth = StaticAuth::from_text(DEMO_TOKENS, settings.profile).unwrap();
        let broker = Broker::new(settings, Arc::new(auth), Clock::follow_tokio());
        let task = tokio::spawn(http::serve(broker.clone(), listener));
        Self { broker, task, address }
    }

    /// Ends it, and returns where it was.
    async fn stop(self) -> SocketAddr {
        self.task.abort();
        self.broker.shutdown().await;
        self.address
    }

    fn client(&self, name: &str) -> Client {
        let token = format!("dev-token-{name}");
        let builder = Client::builder(token).url(format!("ws://{}", self.address));
        builder.options(|options| options.backoff.base = Duration::from_millis(50)).build().unwrap()
    }

    async fn connected(&self, name: &str) -> Client {
        let client = self.client(name);
        client.connect().await.unwrap();
        client
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

async fn event(events: &mut broadcast::Receiver<Event>, is_it: impl Fn(&Event) -> bool) -> Event {
    soon(async {
        loop {
            let event = events.recv().await.unwrap();
            if is_it(&event) {
                return event;
            }
        }
    })
    .await
}

/// The quick start: what alice publishes reaches bob, who subscribed once.
#[tokio::test]
async fn quick_start() {
    let server = Server::start().await;
    let (alice, bob) = (server.connected("alice").await, server.connected("bob").await);
    let mut messages = bob.subscribe(TOPIC).await.unwrap();
    let receipt = alice.publish(TOPIC, &("hi", 1)).await.unwrap();
    assert_eq!(receipt.outcome, Outcome::Accepted);
    let message = soon(messages.next()).await.unwrap().unwrap();
    assert_eq!(message.decode::<(String, u8)>().unwrap(), ("hi".into(), 1));
    assert_eq!((&*message.topic, message.meta().from), (TOPIC, Some("alice")));
    alice.close().await.unwrap();
    assert_eq!(alice.state(), State::Closed);
}

/// API-027, API-093, K-020: one subscribe lives through any number of broker restarts, and nothing queued is lost.
#[tokio::test]
async fn restarts() {
    let mut server = Server::start().await;
    let (alice, bob) = (server.connected("alice").await, server.connected("bob").await);
    let mut messages = bob.subscribe(TOPIC).await.unwrap();
    let mut events = bob.events();
    for round in 0..3_u64 {
        let address = server.stop().await;
        event(&mut events, |event| matches!(event, Event::Disconnected { .. })).await;
        server = Server::on(address).await;
        event(&mut events, |event| matches!(event, Event::Reconnected)).await;
        soon(alice.publish(TOPIC, &round).into_future()).await.unwrap();
        let message = soon(messages.next()).await.unwrap().unwrap();
        assert_eq!(message.decode::<u64>().unwrap(), round);
    }
}

/// API-037: what is published while the broker is away arrives once, in order, when it is back.
#[tokio::test]
async fn the_queue_survives_an_outage() {
    let server = Server::start().await;
    let (alice, bob) = (server.connected("alice").await, server.connected("bob").await);
    let mut messages = bob.subscribe(TOPIC).await.unwrap();
    let (mut alice_events, mut bob_events) = (alice.events(), bob.events());
    let address = server.stop().await;
    event(&mut alice_events, |event| matches!(event, Event::Disconnected { .. })).await;
    let publishes: Vec<_> =
        (0..100_u64).map(|n| tokio::spawn(alice.publish(TOPIC, &n).into_future())).collect();
    event(&mut bob_events, |event| matches!(event, Event::Disconnected { .. })).await;
    let receipts = tokio::spawn(async move {
        for publish in publishes {
            publish.await.unwrap().unwrap();
        }
    });
    // Bob has to be there first: without the feature `recover` a broker keeps nothing for him.
    alice.notify_offline();
    let _server = Server::on(address).await;
    event(&mut bob_events, |event| matches!(event, Event::Reconnected)).await;
    alice.notify_online();
    let mut seen = Vec::new();
    while seen.len() < 100 {
        seen.push(soon(messages.next()).await.unwrap().unwrap().decode::<u64>().unwrap());
    }
    assert!(seen.iter().copied().eq(0..100), "{seen:?}");
    soon(receipts).await.unwrap();
}

/// API-042: far more than the broker takes in a second all succeed, because the client keeps to the limit it was told.
#[tokio::test]
async fn a_burst_is_paced() {
    let server = Server::start().await;
    let alice = server.connected("alice").await;
    let publishes: Vec<_> =
        (0..1_500_u64).map(|n| tokio::spawn(alice.publish(TOPIC, &n).into_future())).collect();
    let mut accepted = 0;
    let mut full = 0;
    for publish in publishes {
        match publish.await.unwrap() {
            Ok(receipt) => {
                assert_eq!(receipt.attempts, 1, "no refusal");
                accepted += 1;
            }
            Err(error) => {
                assert_eq!(error.code(), "queue_full");
                full += 1;
            }
        }
    }
    assert_eq!(accepted + full, 1_500);
    assert!(accepted >= 1_000, "{accepted} accepted");
}

/// Filters and groups through the real broker: each message to one member, and only what the filters say.
#[tokio::test]
async fn filters() {
    let server = Server::start().await;
    let (alice, bob) = (server.connected("alice").await, server.connected("bob").await);
    let mut red = bob.subscribe(TOPIC).filters(["red"]).await.unwrap();
    for (n, colour) in [(1, "green"), (2, "red")] {
        alice.publish(TOPIC, &n).filter(colour).await.unwrap();
    }
    let message = soon(red.next()).await.unwrap().unwrap();
    assert_eq!((message.decode::<u8>().unwrap(), message.meta().filter), (2, Some("red")));
    red.filters(nolag_core::session::FilterChange::Add(vec!["green".into()])).await.unwrap();
    alice.publish(TOPIC, &3).filter("green").await.unwrap();
    assert_eq!(soon(red.next()).await.unwrap().unwrap().decode::<u8>().unwrap(), 3);
}

/// Presence and lobbies through the real broker, over a restart: joins and leaves as they are.
#[tokio::test]
async fn presence_and_lobbies() {
    let server = Server::start().await;
    let (alice, bob) = (server.connected("alice").await, server.connected("bob").await);
    let mut events = bob.events();
    let snapshot = bob.watch_lobby("lounge").await.unwrap();
    assert!(snapshot.iter().all(|(_, actors)| actors.is_empty()), "{snapshot:?}");
    let room = |client: &Client| client.app("demo").unwrap().room("general").unwrap();
    room(&bob).set_presence("here").await.unwrap();
    room(&alice).set_presence("there").await.unwrap();
    let is = |change: Change, id: &'static str| move |event: &Event| matches!(event, Event::Presence(found, actor) if *found == change && actor.actor_id == id);
    event(&mut events, is(Change::Join, "alice")).await;
    let mut present: Vec<_> =
        room(&bob).fetch_presence().await.unwrap().into_iter().map(|actor| actor.actor_id).collect();
    present.sort_unstable();
    assert_eq!(present, ["alice", "bob"]);
    let mut lobby = bob.events();
    alice.disconnect().await.unwrap();
    event(&mut events, is(Change::Leave, "alice")).await;
    event(&mut lobby, |event| matches!(event, Event::Lobby(change) if change.change == Change::Leave)).await;
    let error = bob.watch_lobby("nowhere").await.unwrap_err();
    assert_eq!((error.code(), error.topic()), ("not_authorized", Some("nowhere")));
    alice.connect().await.unwrap();
    event(&mut events, is(Change::Join, "alice")).await;
}

/// Mistakes: each a typed error that says what is wrong, and the client is usable after.
#[tokio::test]
async fn mistakes() {
    let server = Server::start().await;
    for (url, code) in [("", "url_required"), ("ftp://x", "bad_url"), ("ws://a:b@x", "bad_url")] {
        let error = Client::builder("t").url(url).build().unwrap_err();
        assert_eq!(error.code(), code);
    }
    let refused = server.client("mallory");
    assert_eq!(refused.connect().await.unwrap_err().code(), "access_denied");
    assert_eq!(refused.state(), State::Failed);

    let once = |url: String| {
        let builder = Client::builder("dev-token-bob").url(url);
        builder.options(|options| options.initial_connect = InitialConnect::Once).build().unwrap()
    };
    let nowhere = once("ws://127.0.0.1:1".into()).connect().await.unwrap_err();
    assert_eq!(nowhere.code(), "refused");
    let no_upgrade = once(format!("ws://{}/health", server.address)).connect().await.unwrap_err();
    assert_eq!(no_upgrade.code(), "handshake_rejected", "{no_upgrade}");
    let no_tls = once(format!("wss://{}", server.address)).connect().await.unwrap_err();
    assert_eq!(no_tls.code(), "tls", "{no_tls}");

    let bob = server.connected("bob").await;
    assert_eq!(bob.publish("a/+/b", &1).await.unwrap_err().code(), "invalid_topic");
    assert_eq!(bob.publish(TOPIC, &f64::NAN).await.unwrap_err().code(), "encode");
    assert_eq!(bob.publish(TOPIC, &"x".repeat(950_000)).await.unwrap_err().code(), "message_too_large");
    let unknown = bob.publish("elsewhere/x/y", &1).await.unwrap_err();
    assert_eq!(
        (unknown.code(), unknown.server_code(), unknown.topic()),
        ("unknown_topic", Some(42940), Some("elsewhere/x/y"))
    );
    assert_eq!(bob.subscribe("elsewhere/#").await.unwrap_err().code(), "unknown_topic");
    assert!(matches!(bob.app("a/b"), Err(Error::Config { .. })));
    bob.publish(TOPIC, &1).qos(Qos::AtMostOnce).await.unwrap();
    bob.publish(TOPIC, &1).await.unwrap();
}

/// API-001, API-011: nothing is opened before `connect`; dropping the last handle closes the connection.
#[tokio::test]
async fn a_dropped_client_is_gone() {
    let server = Server::start().await;
    let client = server.client("bob");
    tokio::task::yield_now().await;
    assert_eq!(server.broker.connections(), 0);
    client.connect().await.unwrap();
    let subscription = client.subscribe(TOPIC).await.unwrap();
    drop(client);
    assert_eq!(server.broker.connections(), 1, "a subscription is a handle too");
    drop(subscription);
    soon(async {
        while server.broker.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// API-079: dropping the last reader of a topic unsubscribes.
#[tokio::test]
async fn dropping_a_subscription_unsubscribes() {
    let server = Server::start().await;
    let bob = server.connected("bob").await;
    let (first, mut second) = (bob.subscribe(TOPIC).await.unwrap(), bob.subscribe(TOPIC).await.unwrap());
    drop(first);
    bob.publish(TOPIC, &1).await.unwrap();
    assert!(soon(second.next()).await.unwrap().is_ok());
    drop(second);
    let mut third = bob.subscribe(TOPIC).await.unwrap();
    bob.publish(TOPIC, &2).await.unwrap();
    assert_eq!(soon(third.next()).await.unwrap().unwrap().decode::<u8>().unwrap(), 2);
}

/// Unsubscribing by name ends whoever reads the topic, and a later subscription is not touched by their going.
#[tokio::test]
async fn unsubscribing_ends_its_readers() {
    let server = Server::start().await;
    let bob = server.connected("bob").await;
    let (mut first, mut second) = (bob.subscribe(TOPIC).await.unwrap(), bob.subscribe(TOPIC).await.unwrap());
    bob.publish(TOPIC, &1).await.unwrap();
    bob.unsubscribe(TOPIC).await.unwrap();
    assert!(soon(first.next()).await.is_none());
    let mut third = bob.subscribe(TOPIC).await.unwrap();
    drop(first);
    assert!(soon(second.next()).await.is_none());
    drop(second);
    bob.publish(TOPIC, &2).await.unwrap();
    assert_eq!(soon(third.next()).await.unwrap().unwrap().decode::<u8>().unwrap(), 2);
}

/// API-076: a reader that takes its time slows the broker down, and loses nothing.
#[tokio::test]
async fn a_slow_reader_loses_nothing() {
    let server = Server::start().await;
    let alice = server.connected("alice").await;
    let bob = Client::builder("dev-token-bob")
        .url(format!("ws://{}", server.address))
        .options(|options| {
            options.receive_buffer = 10;
            options.ack_mode = AckMode::AfterHandler;
        })
        .build()
        .unwrap();
    bob.connect().await.unwrap();
    let mut messages = bob.subscribe(TOPIC).await.unwrap();
    for n in 0..500_u64 {
        alice.publish(TOPIC, &n).qos(Qos::AtMostOnce).await.unwrap();
    }
    for n in 0..500_u64 {
        if n % 100 == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(soon(messages.next()).await.unwrap().unwrap().decode::<u64>().unwrap(), n);
    }
}

/// API-006, API-008, API-010: after `disconnect` nothing is handed over, and `connect` brings everything back.
#[tokio::test]
async fn disconnect_and_connect() {
    let server = Server::start().await;
    let (alice, bob) = (server.connected("alice").await, server.connected("bob").await);
    let mut messages = bob.subscribe(TOPIC).await.unwrap();
    for n in 0..10_u64 {
        alice.publish(TOPIC, &n).await.unwrap();
    }
    bob.disconnect().await.unwrap();
    assert_eq!(bob.state(), State::Closed);
    assert!(soon(messages.next()).await.is_none(), "not even what had arrived");
    bob.disconnect().await.unwrap();
    bob.close().await.unwrap();
    assert_eq!(bob.publish(TOPIC, &1).await.unwrap_err().code(), "closed");
    bob.connect().await.unwrap();
    let mut messages = bob.subscribe(TOPIC).await.unwrap();
    alice.publish(TOPIC, &99_u64).await.unwrap();
    soon(async { while messages.next().await.unwrap().unwrap().decode::<u64>().unwrap() != 99 {} }).await;
}

/// K-016, API-072: the provider is asked for every connection.
#[tokio::test]
async fn a_token_provider() {
    let server = Server::start().await;
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = asked.clone();
    let source = TokenSource::provider(move |request| {
        log.lock().unwrap().push(request.reason);
        async { Ok(Token { secret: Secret::new("dev-token-bob"), expires_in: None }) }
    });
    let client = Client::builder(source).url(format!("ws://{}", server.address)).build().unwrap();
    client.connect().await.unwrap();
    let mut events = client.events();
    let address = server.stop().await;
    event(&mut events, |event| matches!(event, Event::Disconnected { .. })).await;
    let _server = Server::on(address).await;
    event(&mut events, |event| matches!(event, Event::Reconnected)).await;
    assert_eq!(*asked.lock().unwrap(), [TokenReason::Initial, TokenReason::Reconnect]);
}
