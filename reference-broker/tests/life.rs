//! What time does to a connection, on a paused clock.

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{BoxFuture, FutureExt as _};
use kit::{Client, End, broker, broker_with, settle};
use nolag_broker::Broker;
use nolag_broker::auth::{Auth, Identity, Refusal, Revalidation};
use nolag_broker::clock::Clock;
use nolag_broker::config::{Profile, Settings};
use nolag_protocol::grant::{Permission, Rule};
use parking_lot::Mutex;
use rmpv::Value;
use tokio::time::{Instant, sleep};

/// A backend that says what a test wants, and counts.
struct Scripted {
    identity: Mutex<Identity>,
    revalidation: Mutex<Option<Revalidation>>,
    takes: Duration,
    revalidated: AtomicUsize,
}

impl Scripted {
    fn new(identity: Identity) -> Arc<Self> {
        Arc::new(Self {
            identity: Mutex::new(identity),
            revalidation: Mutex::new(None),
            takes: Duration::ZERO,
            revalidated: AtomicUsize::new(0),
        })
    }

    fn revalidated(&self) -> usize {
        self.revalidated.load(Ordering::Relaxed)
    }
}

impl Auth for Scripted {
    fn validate<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Identity, Refusal>> {
        async move {
            sleep(self.takes).await;
            Ok(self.identity.lock().clone())
        }
        .boxed()
    }

    fn revalidate<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Revalidation> {
        self.revalidated.fetch_add(1, Ordering::Relaxed);
        async move {
            sleep(self.takes).await;
            let said = self.revalidation.lock().clone();
            said.unwrap_or_else(|| Revalidation::Valid(Box::new(self.identity.lock().clone())))
        }
        .boxed()
    }
}

fn actor(name: &str, pattern: &str) -> Identity {
    Identity {
        actor_token_id: name.into(),
        actor_type: "user".into(),
        organization_id: Some("org".into()),
        rules: vec![Rule {
            pattern: pattern.into(),
            permission: Some(Permission::PubSub),
            app_id: Some("app".into()),
            room_id: Some("room-1".into()),
            room_slug: Some("one".into()),
            ..Rule::default()
        }],
        ..Identity::default()
    }
}

fn disconnect(reason: &str) -> Value {
    map! {"type": "disconnect", "reason": reason}
}

/// C-028: outgoing traffic does not keep a connection alive, and a heartbeat does.
#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_closed_after_a_minute() {
    let broker = broker(Settings::default());
    let mut fresh = Client::connect(&broker).await;
    let mut listener = Client::login(&broker, "dev-token-alice").await;
    listener.subscribe("demo/general/news").await;
    let mut talker = Client::login(&broker, "dev-token-bob").await;
    let start = Instant::now();
    tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(7)).await;
            talker.send(map! {"type": "publish", "topic": "demo/general/news", "data": 1}).await;
        }
    });
    assert_eq!(fresh.rest().await, (vec![], End::Close(1000, "idle_timeout".into())));
    let (frames, end) = listener.rest().await;
    assert_eq!(end, End::Close(1000, "idle_timeout".into()));
    assert_eq!(frames.len(), 8, "one every 7 s until the close");
    assert!((60..61).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn heartbeats_keep_a_connection_and_are_answered() {
    let broker = broker(Settings::default());
    let mut client = Client::login(&broker, "dev-token-alice").await;
    for _ in 0..10 {
        sleep(Duration::from_secs(59)).await;
        client.heartbeat().await;
        assert!(client.next_bytes().await.unwrap().is_empty());
    }
}

/// FC-14, with the idle time in the place of a heartbeat of the broker.
#[tokio::test(start_paused = true)]
async fn a_vanished_peer_leaves_its_room_once() {
    let broker = broker(Settings::default());
    let mut observer = Client::login(&broker, "dev-token-alice").await;
    observer.send(map! {"type": "presence", "roomId": "general", "data": 1}).await;
    for event in ["join", "update"] {
        assert_eq!(observer.next().await["event"], Value::from(event));
    }
    // A link on which nothing moves any more: the socket stays open and is never touched again.
    let mut vanished = Client::login(&broker, "dev-token-bob").await;
    vanished.send(map! {"type": "presence", "roomId": "general", "data": 2}).await;
    for event in ["join", "update"] {
        assert_eq!(observer.next().await["event"], Value::from(event));
    }
    sleep(Duration::from_secs(40)).await;
    observer.heartbeat().await;
    assert!(observer.next_bytes().await.unwrap().is_empty());
    let left = observer.next().await;
    assert_eq!((&left["event"], &left["data"]["actor_token_id"]), (&"leave".into(), &"bob".into()));
    let list = observer.ask(map! {"type": "getPresence", "roomId": "general"}).await;
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    drop(vanished);
    settle().await;
    let list = observer.ask(map! {"type": "getPresence", "roomId": "general"}).await;
    assert_eq!(list["type"], Value::from("presenceList"), "no second leave came before it");
}

/// C-037: by timer, without a heartbeat.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_token_ends_the_connection() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut identity = actor("alice", "#");
    identity.expires_at = Some(now + 30);
    let broker = broker_with(Settings::default(), Scripted::new(identity));
    let start = Instant::now();
    let mut client = Client::login(&broker, "t").await;
    let (frames, end) = client.rest().await;
    assert_eq!((frames, end), (vec![disconnect("token_expired")], End::Close(4003, "token_expired".into())));
    assert!((28..=31).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

/// Wire protocol 7, C-037: the end is a moment of the monotonic clock from the validation on. Setting the wall clock back an
/// hour moves it neither way, whatever is validated again, and a renewed token moves it.
#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_is_set_back_ends_no_token_early_or_late() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut identity = actor("alice", "#");
    identity.expires_at = Some(now + 100);
    let backend = Scripted::new(identity.clone());
    let clock = Clock::follow_tokio();
    let settings = Settings { revalidation_interval: Duration::from_secs(20), ..Settings::default() };
    let broker = Broker::new(settings, backend.clone(), clock.clone());
    let start = Instant::now();
    let mut left = Client::login(&broker, "left as it is").await;
    let mut renewed = Client::login_with(&broker, "to be renewed", &["reauth"]).await;
    sleep(Duration::from_secs(10)).await;
    clock.set_back(Duration::from_secs(3_600));
    sleep(Duration::from_secs(25)).await;
    assert!(backend.revalidated() > 0, "the same end was told again after the clock was set back");

    // By the clock as it is now: 200 s from here, 235 s from the start.
    identity.expires_at = Some(clock.now().as_secs() + 200);
    *backend.identity.lock() = identity;
    let reply = renewed.ask(map! {"type": "reauth", "token": "new"}).await;
    assert_eq!(reply["success"], Value::from(true), "{reply}");
    *backend.revalidation.lock() = Some(Revalidation::Unavailable);
    let beating = tokio::spawn(async move {
        for _ in 0..4 {
            renewed.heartbeat().await;
            sleep(Duration::from_secs(50)).await;
        }
        (renewed.rest().await.1, start.elapsed())
    });
    left.heartbeat().await;
    sleep(Duration::from_secs(30)).await;
    left.heartbeat().await;
    let expired = End::Close(4003, "token_expired".into());
    assert_eq!(left.rest().await.1, expired);
    assert!((99..=101).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    let (end, after) = beating.await.unwrap();
    assert_eq!(end, expired);
    assert!((234..=236).contains(&after.as_secs()), "{after:?}");
}

/// Features 5: what comes behind a `reauth` in the same message waits for its answer.
#[tokio::test(start_paused = true)]
async fn frames_behind_a_reauth_in_one_message_wait() {
    let mut backend = Scripted::new(actor("alice", "#"));
    Arc::get_mut(&mut backend).unwrap().takes = Duration::from_secs(20);
    let broker = broker_with(Settings::default(), backend);
    let mut client = Client::login_with(&broker, "t", &["batch", "reauth"]).await;
    let before = Instant::now();
    let ask = |msg_ref: &str| map! {"type": "getPresence", "msgRef": msg_ref};
    let reauth = map! {"type": "reauth", "token": "another"};
    client.send_together(&[ask("first"), reauth, ask("second"), ask("third")]).await;
    client.send(ask("fourth")).await;
    assert_eq!(client.next().await["msgRef"], Value::from("first"));
    assert!(before.elapsed() < Duration::from_secs(1), "what comes before it does not wait");
    assert_eq!(client.next().await["type"], Value::from("reauth"));
    assert!(before.elapsed() >= Duration::from_secs(20));
    for msg_ref in ["second", "third", "fourth"] {
        assert_eq!(client.next().await["msgRef"], Value::from(msg_ref));
    }
}

/// C-030: on the first heartbeat that is late enough, one at a time.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_asks_the_backend_again_when_it_is_time() {
    let mut backend = Scripted::new(actor("alice", "#"));
    Arc::get_mut(&mut backend).unwrap().takes = Duration::from_secs(20);
    let broker = broker_with(Settings::default(), backend.clone());
    let mut client = Client::login(&broker, "t").await;
    client.heartbeat().await;
    client.next_bytes().await.unwrap();
    for minute in 0..10 {
        sleep(Duration::from_secs(58)).await;
        client.heartbeat().await;
        client.next_bytes().await.unwrap();
        assert_eq!(backend.revalidated(), 0, "minute {minute}");
    }
    sleep(Duration::from_secs(20)).await;
    for _ in 0..3 {
        client.heartbeat().await;
        client.next_bytes().await.unwrap();
    }
    assert_eq!(backend.revalidated(), 1, "one at a time");
}

/// Wire protocol 8: a client that only pings is validated again by timer.
#[tokio::test(start_paused = true)]
async fn without_heartbeats_the_backend_is_asked_by_timer() {
    let backend = Scripted::new(actor("alice", "#"));
    let broker = broker_with(
        Settings { idle_timeout: Duration::from_secs(10_000), ..Settings::default() },
        backend.clone(),
    );
    let mut client = Client::login(&broker, "t").await;
    sleep(Duration::from_secs(659)).await;
    assert_eq!(backend.revalidated(), 0);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(backend.revalidated(), 1);

    // C-031: a backend that cannot say changes nothing, and is asked again.
    *backend.revalidation.lock() = Some(Revalidation::Unavailable);
    sleep(Duration::from_secs(660)).await;
    let asked = backend.revalidated();
    assert!(asked >= 2);
    sleep(Duration::from_secs(61)).await;
    assert_eq!(backend.revalidated(), asked + 1);

    // A close frame holds 123 bytes of a reason, and no half characters.
    let reason = format!("subscription_ended {}", "é".repeat(100));
    *backend.revalidation.lock() = Some(Revalidation::Invalid(reason.clone()));
    let (frames, end) = client.rest().await;
    assert_eq!(frames, [disconnect(&reason)]);
    assert_eq!(end, End::Close(4001, format!("subscription_ended {}", "é".repeat(52))));
}

/// C-032, C-033, C-047: new grants take what they do not cover, wherever it was subscribed.
#[tokio::test(start_paused = true)]
async fn lost_grants_take_their_subscriptions() {
    let backend = Scripted::new(actor("alice", "demo/#"));
    let broker = broker_with(
        Settings { idle_timeout: Duration::from_secs(10_000), ..Settings::default() },
        backend.clone(),
    );
    let mut client = Client::login(&broker, "t").await;
    client.subscribe("demo/a/x").await;
    client.subscribe("demo/a").await;
    client.subscribe("demo/+/x").await;
    *backend.identity.lock() = actor("alice", "demo/a");
    let said = client.next().await;
    let lost = [said, client.next().await].map(|frame| {
        assert_eq!((&frame["type"], &frame["reason"]), (&"unsubscribed".into(), &"not_authorized".into()));
        frame["topic"].as_str().unwrap().to_owned()
    });
    assert!(lost.contains(&"demo/a/x".to_owned()) && lost.contains(&"demo/+/x".to_owned()), "{lost:?}");
    let refused = client.ask(map! {"type": "publish", "topic": "demo/a/x", "data": 1, "msgRef": "p"}).await;
    assert_eq!(refused["error"], Value::from("unknown_topic"));
    let published = client.ask(map! {"type": "publish", "topic": "demo/a", "data": 1, "msgRef": "p"}).await;
    assert_eq!(published["type"], Value::from("published"));
    assert_eq!(client.next().await["topic"], Value::from("demo/a"), "the grant that stayed still delivers");
}

/// C-034: above the limit the connection goes, at the limit it stays.
#[tokio::test(start_paused = true)]
async fn over_the_limit_after_a_revalidation() {
    let backend = Scripted::new(actor("alice", "#"));
    let broker = broker_with(
        Settings { idle_timeout: Duration::from_secs(10_000), ..Settings::default() },
        backend.clone(),
    );
    let mut first = Client::login(&broker, "t").await;
    let mut second = Client::login(&broker, "t").await;
    backend.identity.lock().max_connections = Some(2);
    sleep(Duration::from_secs(661)).await;
    for client in [&mut first, &mut second] {
        client.heartbeat().await;
        assert!(client.next_bytes().await.unwrap().is_empty());
    }
    backend.identity.lock().max_connections = Some(1);
    let (frames, end) = first.rest().await;
    assert_eq!(frames, [disconnect("connection_limit_reached")]);
    assert_eq!(end, End::Close(4002, "connection_limit_reached".into()));
}

/// C-108: longer than the five minutes that kraken remembers.
#[tokio::test(start_paused = true)]
async fn a_lobby_is_watched_as_long_as_one_wants() {
    let broker = broker(Settings { idle_timeout: Duration::from_secs(100_000), ..Settings::default() });
    let mut watcher = Client::login(&broker, "dev-token-alice").await;
    let reply = watcher.ask(map! {"type": "lobbySubscribe", "lobbyId": "lounge"}).await;
    assert_eq!(reply["type"], Value::from("lobbySubscribed"));
    let mut member = Client::login(&broker, "dev-token-bob").await;
    for hour in 0..3 {
        sleep(Duration::from_secs(3_600)).await;
        member.send(map! {"type": "presence", "roomId": "general", "data": hour}).await;
        let mut events = if hour == 0 { vec!["join", "update"] } else { vec!["update"] };
        for expected in events.drain(..) {
            let event = watcher.next().await;
            assert_eq!((&event["event"], &event["lobbyId"]), (&expected.into(), &"lounge".into()));
            assert_eq!(event["lobbyUuid"], Value::from("lobby-lounge"));
        }
    }
}

/// C-070: a retained message lasts an hour.
#[tokio::test(start_paused = true)]
async fn a_retained_message_grows_old() {
    let broker = broker(Settings { idle_timeout: Duration::from_secs(100_000), ..Settings::default() });
    let mut client = Client::login(&broker, "dev-token-alice").await;
    client.send(map! {"type": "publish", "topic": "demo/general/t", "data": 7, "retain": true}).await;
    sleep(Duration::from_secs(3_599)).await;
    client.subscribe("demo/general/t").await;
    let kept = client.next().await;
    assert_eq!((&kept["data"], &kept["retained"]), (&7.into(), &true.into()));
    sleep(Duration::from_secs(2)).await;
    client.subscribe("demo/general/t").await;
    let list = client.ask(map! {"type": "getPresence", "roomId": "general"}).await;
    assert_eq!(list["type"], Value::from("presenceList"), "nothing came before it");
}

/// C-073: the window is a second of the wall clock.
#[tokio::test(start_paused = true)]
async fn the_publish_rate_starts_again_every_second() {
    let broker = broker(Settings { publish_rate_limit: 50, ..Settings::default() });
    let mut client = Client::login(&broker, "dev-token-alice").await;
    for second in 0..3 {
        for n in 0..52 {
            let reply = client
                .ask(map! {"type": "publish", "topic": "demo/general/r", "data": n, "msgRef": "r"})
                .await;
            let expected = if n < 50 { "published" } else { "error" };
            assert_eq!(reply["type"], Value::from(expected), "publish {n} of second {second}");
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// While a backend is asked about a token, later frames wait and what others send still arrives.
#[tokio::test(start_paused = true)]
async fn a_slow_backend_holds_up_only_what_asks_it() {
    let mut backend = Scripted::new(actor("alice", "#"));
    Arc::get_mut(&mut backend).unwrap().takes = Duration::from_secs(5);
    let broker = broker_with(Settings::default(), backend);
    let mut asking = Client::login(&broker, "t").await;
    asking.subscribe("a/b/c").await;
    let mut other = Client::login(&broker, "t").await;
    asking.send(map! {"type": "reauth", "token": "another of the same actor"}).await;
    asking.send(map! {"type": "getPresence", "roomId": "one"}).await;
    other.send(map! {"type": "publish", "topic": "a/b/c", "data": 1}).await;
    let kinds = [asking.next().await, asking.next().await, asking.next().await]
        .map(|frame| frame["type"].to_string());
    assert_eq!(kinds, ["\"message\"", "\"reauth\"", "\"presenceList\""]);
}

/// C-126: the backlog of one that does not read is bounded, and nobody waits for it.
#[tokio::test(start_paused = true)]
async fn a_slow_consumer_is_closed_and_others_are_not_slowed() {
    let settings = Settings { publish_rate_limit: 0, max_outbound_bytes: 200_000, ..Settings::default() };
    let broker = broker(settings);
    let mut slow = Client::login(&broker, "dev-token-alice").await;
    slow.subscribe("demo/general/flood").await;
    let mut quick = Client::login(&broker, "dev-token-alice").await;
    quick.subscribe("demo/general/flood").await;
    let mut talker = Client::login(&broker, "dev-token-bob").await;
    let start = Instant::now();
    for n in 0..1_000 {
        let data = Value::from(vec![Value::from(n), Value::from("x".repeat(1_000))]);
        talker.send(map! {"type": "publish", "topic": "demo/general/flood", "data": data}).await;
        assert_eq!(quick.next().await["data"][0], Value::from(n));
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "nobody waited");
    let (frames, end) = slow.rest().await;
    assert_eq!(end, End::Close(4008, "slow_consumer".into()));
    assert_eq!(frames.last(), Some(&disconnect("slow_consumer")));
    let got: Vec<_> =
        frames[..frames.len() - 1].iter().map(|frame| frame["data"][0].as_u64().unwrap()).collect();
    assert_eq!(got, (0..got.len() as u64).collect::<Vec<_>>(), "what it got is the beginning, in order");
    assert!(got.len() < 500, "{} of 1000", got.len());
    drop(slow);
    settle().await;
    let metrics = broker.metrics_text();
    let dropped =
        metrics.lines().find_map(|line| line.strip_prefix("nolag_dropped_total{reason=\"slow_consumer\"} "));
    let dropped: usize = dropped.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{metrics}"));
    // Its whole backlog, of a little over a kilobyte a message; afterwards it was not subscribed any more.
    assert!((150..=1_000 - got.len()).contains(&dropped), "{dropped} dropped, {} got", got.len());
}

/// FC-30: only what a subscribe brings is marked, and it comes before what is live.
#[tokio::test(start_paused = true)]
async fn the_retained_mark() {
    let broker = broker(Settings::default());
    let topic = "demo/general/temp";
    let mut publisher = Client::login(&broker, "dev-token-bob").await;
    let mut publish = async |data: u64, retain: bool| {
        let reply = publisher
            .ask(map! {"type": "publish", "topic": topic, "data": data, "retain": retain, "msgRef": "p"})
            .await;
        assert_eq!(reply["type"], Value::from("published"));
    };
    let mut subscribers = Vec::new();
    for _ in 0..3 {
        subscribers.push(Client::login(&broker, "dev-token-alice").await);
    }
    let [first, second, third] = &mut subscribers[..] else { unreachable!("three of them") };
    first.subscribe(topic).await;
    publish(21, true).await;
    second.subscribe(topic).await;
    publish(22, true).await;
    publish(23, false).await;
    third.subscribe(topic).await;
    first.send(map! {"type": "subscribe", "topic": topic}).await;

    let mut seen = Vec::new();
    for (client, count) in [(first, 5), (second, 3), (third, 1)] {
        let mut frames = Vec::new();
        for _ in 0..count {
            let frame = client.next().await;
            frames.push((frame["data"].as_u64(), frame["retained"].as_bool()));
        }
        seen.push(frames);
    }
    let live = |n| (Some(n), None);
    let marked = |n| (Some(n), Some(true));
    let reply = (None, None);
    assert_eq!(seen[0], [live(21), live(22), live(23), reply, marked(22)]);
    assert_eq!(seen[1], [marked(21), live(22), live(23)]);
    assert_eq!(seen[2], [marked(22)]);
}

/// However a connection's task ends, the broker forgets the connection.
#[tokio::test(start_paused = true)]
async fn an_aborted_task_leaves_nothing() {
    let broker = broker(Settings::default());
    let (mut client, task) = Client::connect_with_task(&broker).await;
    client.send(map! {"type": "auth", "token": "dev-token-alice"}).await;
    assert_eq!(client.next().await["success"], Value::from(true));
    client.subscribe("demo/general/x").await;
    assert_eq!(broker.connections(), 1);
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(broker.connections(), 0);
    assert!(broker.metrics_text().contains("nolag_subscriptions 0\n"));
}

/// C-125 and features 7: everybody is told, spread over time, and nothing is left.
#[tokio::test(start_paused = true)]
async fn a_shutdown_tells_everybody_and_ends() {
    let broker = broker(Settings::default());
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(Client::login(&broker, "dev-token-alice").await);
    }
    let stopping = tokio::spawn({
        let broker = broker.clone();
        async move { broker.shutdown().await }
    });
    let mut waits = Vec::new();
    for client in &mut clients {
        let (frames, end) = client.rest().await;
        assert_eq!(end, End::Close(1012, "draining".into()));
        assert_eq!((frames.len(), &frames[0]["reason"]), (1, &"draining".into()));
        waits.push(frames[0]["retryAfterMs"].as_u64().unwrap());
    }
    waits.sort_unstable();
    assert_eq!(waits, (0..100).map(|n| 500 + 50 * n).collect::<Vec<u64>>(), "spread evenly");
    stopping.await.unwrap();
    drop(clients);
    settle().await;
    assert_eq!(broker.connections(), 0);
    assert!(broker.is_draining());
    let (frames, end) = Client::connect(&broker).await.rest().await;
    assert_eq!((frames.len(), end), (1, End::Close(1012, "draining".into())), "who comes now is sent away");
}

/// The `kraken` column of the second `auth` vector: the identity changes, subscriptions stay.
#[tokio::test(start_paused = true)]
async fn kraken_takes_a_second_auth() {
    let broker = broker(Settings { profile: Profile::Kraken, ..Settings::default() });
    let mut client = Client::login(&broker, "dev-token-alice").await;
    client.subscribe("demo/general/x").await;
    let reply = client.ask(map! {"type": "auth", "token": "dev-token-bob", "protocolVersion": 2}).await;
    assert_eq!((&reply["success"], &reply["actorTokenId"]), (&true.into(), &"bob".into()));
    client.send(map! {"type": "publish", "topic": "demo/general/x", "data": 1}).await;
    let message = client.next().await;
    assert_eq!((&message["topic"], &message["from"]), (&"demo/general/x".into(), &"bob".into()));
    drop(client);
    settle().await;
    assert_eq!(broker.connections(), 0);
}
