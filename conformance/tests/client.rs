//! Our client against our broker, both in this process, over real sockets on a free port.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use nolag_broker::auth::{DEMO_TOKENS, StaticAuth};
use nolag_broker::clock::Clock;
use nolag_broker::config::Settings;
use nolag_broker::{Broker, http};
use nolag_core::client::{Room, TokenSource};
use nolag_core::driver::native::{Native, Url};
use nolag_core::driver::{Link, Opening, Outgoing, Received, Transport};
use nolag_core::event::{Actor, Change, Event, Outcome, State};
use nolag_core::options::{AckMode, Features, InitialConnect, Qos, Secret};
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
        Self::with_tokens(DEMO_TOKENS).await
    }

    async fn with_tokens(tokens: &str) -> Self {
        Self::serve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), tokens).await
    }

    async fn on(address: SocketAddr) -> Self {
        Self::serve(address, DEMO_TOKENS).await
    }

    async fn serve(address: SocketAddr, tokens: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let settings = Settings::default();
        let auth = StaticAuth::from_text(tokens, settings.profile).unwrap();
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

/// Who may be in rooms `one`, `two` and `three` of app `a`, and in `one` of app `b`.
const ROOMS: &str = r#"{ "tokens": {
    "dev-token-alice": { "actorTokenId": "alice", "projectId": "p", "allowedTopics": RULES },
    "dev-token-bob": { "actorTokenId": "bob", "projectId": "p", "allowedTopics": RULES }
} }"#;
const RULES: &str = r#"[
    { "pattern": "a/one/#", "permission": "pubSub", "app_slug": "a", "room_id": "r1", "room_slug": "one" },
    { "pattern": "a/two/#", "permission": "pubSub", "app_slug": "a", "room_id": "r2", "room_slug": "two" },
    { "pattern": "a/three/#", "permission": "pubSub", "app_slug": "a", "room_id": "r3", "room_slug": "three" },
    { "pattern": "b/one/#", "permission": "pubSub", "app_slug": "b", "room_id": "r4", "room_slug": "one" }
]"#;

fn room(client: &Client, app: &str, name: &str) -> Room {
    client.app(app).unwrap().room(name).unwrap()
}

/// The next thing that happens to an actor: what, and in which room.
async fn next_of(events: &mut broadcast::Receiver<Event>, who: &str) -> (Change, String) {
    let is_it = |event: &Event| matches!(event, Event::Presence(_, actor) if actor.actor_id == who);
    let Event::Presence(change, actor) = event(events, is_it).await else { unreachable!() };
    let room = actor.room.unwrap();
    (change, format!("{}/{}", room.app.unwrap(), room.room))
}

fn names(actors: &[Actor]) -> Vec<&str> {
    let mut names: Vec<_> = actors.iter().map(|actor| actor.actor_id.as_str()).collect();
    names.sort_unstable();
    names
}

/// F-11, API-031: presence in three rooms at once; a cut leaves all three, the next connection enters them again, and a close leaves
/// them for good.
#[tokio::test]
async fn three_rooms_at_once() {
    let server = Server::with_tokens(&ROOMS.replace("RULES", RULES)).await;
    let (alice, bob) = (server.connected("alice").await, server.connected("bob").await);
    let mut events = bob.events();
    for name in ["one", "two", "three"] {
        room(&bob, "a", name).set_presence("here").await.unwrap();
        assert_eq!(next_of(&mut events, "bob").await, (Change::Join, format!("a/{name}")));
    }
    for name in ["one", "two", "three"] {
        room(&alice, "a", name).set_presence("here").await.unwrap();
        assert_eq!(next_of(&mut events, "alice").await, (Change::Join, format!("a/{name}")));
    }
    for name in ["one", "two", "three"] {
        let there = soon(room(&bob, "a", name).fetch_presence()).await.unwrap();
        assert_eq!(names(&there), ["alice", "bob"], "{name}");
    }
    alice.close().await.unwrap();
    let mut left = Vec::new();
    for _ in 0..3 {
        left.push(next_of(&mut events, "alice").await);
    }
    left.sort_by(|a, b| a.1.cmp(&b.1));
    assert_eq!(left, ["a/one", "a/three", "a/two"].map(|name| (Change::Leave, name.to_owned())));
    alice.connect().await.unwrap();
    for name in ["one", "two", "three"] {
        assert_eq!(next_of(&mut events, "alice").await, (Change::Join, format!("a/{name}")));
    }
}

/// F-17: one actor in equally named rooms of two apps: two rosters, and no event or list of the one in the other. A room that is named
/// without its app is the first of that name.
#[tokio::test]
async fn equal_names_in_two_apps() {
    let server = Server::with_tokens(&ROOMS.replace("RULES", RULES)).await;
    let (alice, bob) = (server.connected("alice").await, server.connected("bob").await);
    let mut events = bob.events();
    for app in ["a", "b"] {
        room(&bob, app, "one").set_presence("here").await.unwrap();
        assert_eq!(next_of(&mut events, "bob").await, (Change::Join, format!("{app}/one")));
    }
    room(&alice, "b", "one").set_presence("here").await.unwrap();
    assert_eq!(next_of(&mut events, "alice").await, (Change::Join, "b/one".into()));
    let list = async |app| soon(room(&bob, app, "one").fetch_presence()).await.unwrap();
    assert_eq!((names(&list("a").await), names(&list("b").await)), (vec!["bob"], vec!["alice", "bob"]));
    room(&alice, "a", "one").set_presence("here").await.unwrap();
    assert_eq!(next_of(&mut events, "alice").await, (Change::Join, "a/one".into()));
    room(&alice, "b", "one").clear_presence().await.unwrap();
    assert_eq!(next_of(&mut events, "alice").await, (Change::Leave, "b/one".into()));
    assert_eq!((names(&list("a").await), names(&list("b").await)), (vec!["alice", "bob"], vec!["bob"]));
}

/// How many WebSocket messages went each way.
#[derive(Default)]
struct Messages {
    sent: AtomicU64,
    received: AtomicU64,
}

/// A transport that counts them.
struct Counting(Native, Arc<Messages>);

struct CountingLink(Box<dyn Link>, Arc<Messages>);

impl Transport for Counting {
    fn open(&mut self) -> Opening {
        let (opening, messages) = (self.0.open(), Arc::clone(&self.1));
        Box::pin(async move { Ok(Box::new(CountingLink(opening.await?, messages)) as Box<dyn Link>) })
    }
}

impl Link for CountingLink {
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        let received = self.0.poll_read(cx);
        if matches!(received, Poll::Ready(Received::Frame(_))) {
            self.1.received.fetch_add(1, Ordering::Relaxed);
        }
        received
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        self.0.poll_ready(cx)
    }

    fn send(&mut self, message: Outgoing) -> Result<(), String> {
        self.1.sent.fetch_add(1, Ordering::Relaxed);
        self.0.send(message)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        self.0.poll_flush(cx)
    }
}

/// F-12, features 5: with `batch` a burst is fewer messages than frames in both directions, and arrives whole and in order; without it
/// each frame is a message.
#[tokio::test]
async fn batches_in_both_directions() {
    let server = Server::start().await;
    for batch in [true, false] {
        let url = Url::parse(&format!("ws://{}", server.address)).unwrap();
        let messages = Arc::<Messages>::default();
        let native = Native::with_proxy(url, None, None).unwrap();
        let client = Client::builder("dev-token-alice").transport(Counting(native, Arc::clone(&messages)));
        let features = if batch { Features::ALL } else { Features::NONE };
        let client = client.options(|options| options.features = features).build().unwrap();
        client.connect().await.unwrap();
        let mut subscription = client.subscribe(TOPIC).await.unwrap();
        let publishes = (0..500_u64).map(|n| client.publish(TOPIC, &n).into_future());
        let receipts = soon(futures_util::future::join_all(publishes)).await;
        assert!(receipts.iter().all(Result::is_ok));
        for n in 0..500 {
            let message = soon(subscription.next()).await.unwrap().unwrap();
            assert_eq!(message.decode::<u64>().unwrap(), n);
        }
        client.close().await.unwrap();
        let stats = client.stats();
        let (sent, received) =
            (messages.sent.load(Ordering::Relaxed), messages.received.load(Ordering::Relaxed));
        assert!(stats.frames_out >= 502 && stats.frames_in >= 1_002, "{stats:?}");
        if batch {
            assert!(
                sent < stats.frames_out / 2 && received < stats.frames_in / 2,
                "{sent}, {received}: {stats:?}"
            );
        } else {
            assert_eq!((sent, received), (stats.frames_out + 1, stats.frames_in), "and a close");
        }
    }
}
