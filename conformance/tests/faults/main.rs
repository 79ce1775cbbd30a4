//! Faults for real: our client, the broker's process, and between them a proxy that does what networks do.
//!
//! Each fault strikes a publisher's line and, in another run beside it, a subscriber's, while messages flow. Afterwards nothing that was
//! acknowledged is missing, doubled or out of order, or, where the features for that are not granted, what is was told.

#[path = "../kit/mod.rs"]
mod kit;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use kit::program::Broker;
use kit::proxy::{Proxy, Way};
use kit::{event, soon};
use nolag_core::event::{Change, Event, State};
use nolag_core::options::{Feature, Features};
use nolag_core::{Client, client::Subscription};
use tokio::sync::broadcast::Receiver;
use tokio::time::sleep;

const TOPIC: &str = "demo/general/messages";
/// How many messages flow while a fault strikes.
const MESSAGES: u64 = 400;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A client that notices a dead line soon.
fn client(name: &str, address: SocketAddr) -> Client {
    let builder = Client::builder(format!("dev-token-{name}")).url(format!("ws://{address}"));
    let options = builder.options(|options| {
        options.heartbeat_interval = ms(500);
        options.heartbeat_timeout = ms(1_000);
        options.backoff.base = ms(50);
        options.backoff.max = ms(500);
    });
    options.build().unwrap()
}

/// A client that is connected, what it is told from then on, and what it was granted.
async fn connected(name: &str, address: SocketAddr) -> (Client, Receiver<Event>, Features) {
    let client = client(name, address);
    let mut events = client.events();
    soon("a connection", client.connect()).await.unwrap();
    let Event::Connected { features, .. } =
        event("a connection", &mut events, |event| matches!(event, Event::Connected { .. })).await
    else {
        unreachable!("it waited for this event")
    };
    event("ready", &mut events, |event| matches!(event, Event::Ready(_))).await;
    (client, events, features)
}

/// Publishes numbers one after another, and returns those that had to be sent more than once.
async fn publish_all(publisher: &Client) -> BTreeSet<u64> {
    let mut publishes = Vec::new();
    for number in 0..MESSAGES {
        let publish = publisher.publish(TOPIC, &number).into_future();
        publishes.push(tokio::spawn(publish));
        sleep(ms(3)).await; // so that the fault finds some under way
    }
    let mut sent_again = BTreeSet::new();
    for (number, publish) in (0..).zip(publishes) {
        let receipt = soon("a receipt", publish).await.unwrap().unwrap();
        if receipt.attempts > 1 {
            sent_again.insert(number);
        }
    }
    sent_again
}

/// Publishes a last number, and returns what came before it.
async fn read_all(publisher: &Client, messages: &mut Subscription) -> Vec<u64> {
    soon("a last publish", publisher.publish(TOPIC, &MESSAGES).into_future()).await.unwrap();
    let mut seen = Vec::new();
    loop {
        let message = soon("the last message", messages.next()).await.unwrap().unwrap();
        match message.decode().unwrap() {
            MESSAGES => return seen,
            number => seen.push(number),
        }
    }
}

/// A fault strikes a publisher's line. All that was accepted arrives, in the order of the calls; twice only what was sent twice, and not
/// even that with `dedupe` (API-043, FC-09).
async fn strike_publisher(broker: SocketAddr, fault: impl AsyncFnOnce(&Proxy)) {
    let proxy = Proxy::start(broker).await;
    let (publisher, mut events, features) = connected("alice", proxy.address).await;
    let (subscriber, ..) = connected("bob", broker).await;
    let mut messages = subscriber.subscribe(TOPIC).await.unwrap();
    let (sent_again, ()) = tokio::join!(publish_all(&publisher), fault(&proxy));
    let seen = read_all(&publisher, &mut messages).await;
    let mut first_sights = BTreeSet::new();
    let mut twice = Vec::new();
    let mut order = Vec::new();
    for number in seen {
        if first_sights.insert(number) {
            order.push(number);
        } else {
            twice.push(number);
        }
    }
    assert!(order.iter().copied().eq(0..MESSAGES), "{order:?}");
    assert!(twice.iter().all(|number| sent_again.contains(number)), "{twice:?} of {sent_again:?}");
    assert!(twice.is_empty() || !features.has(Feature::Dedupe), "{twice:?}");
    let failures =
        std::iter::from_fn(|| events.try_recv().ok()).filter(|event| matches!(event, Event::Failed(_)));
    assert_eq!(failures.count(), 0);
}

/// A fault strikes a subscriber's line. Each message arrives at most once, and in order; with `recover` none is missing, and else a gap
/// tells (API-035).
async fn strike_subscriber(broker: SocketAddr, fault: impl AsyncFnOnce(&Proxy)) {
    let proxy = Proxy::start(broker).await;
    let (publisher, ..) = connected("alice", broker).await;
    let (subscriber, mut events, features) = connected("bob", proxy.address).await;
    let mut messages = subscriber.subscribe(TOPIC).await.unwrap();
    let (sent_again, ()) = tokio::join!(publish_all(&publisher), fault(&proxy));
    assert!(sent_again.is_empty(), "nothing befell the publisher");
    // It may be away still, and may not have noticed yet.
    sleep(ms(2_000)).await;
    soon("to be back", subscriber.wait_for_connected(None)).await.unwrap();
    soon("answers", subscriber.subscribe("demo/general/other").into_future()).await.unwrap();
    let seen = read_all(&publisher, &mut messages).await;
    assert!(seen.is_sorted_by(|one, other| one < other), "{seen:?}");
    let gaps: Vec<_> = std::iter::from_fn(|| events.try_recv().ok())
        .filter(|event| matches!(event, Event::Gap(gap) if &*gap.topic == TOPIC))
        .collect();
    let complete = seen.len() as u64 == MESSAGES;
    assert!(complete || !gaps.is_empty(), "{} messages came, and no gap was told", seen.len());
    assert!(gaps.is_empty() || !features.has(Feature::Recover), "{gaps:?}");
}

async fn strike(fault: impl AsyncFn(&Proxy)) {
    let (one, other) = tokio::join!(Broker::start([]), Broker::start([]));
    tokio::join!(strike_publisher(one.address, &fault), strike_subscriber(other.address, &fault));
}

#[tokio::test]
async fn cuts() {
    strike(async |proxy| {
        for _ in 0..4 {
            sleep(ms(250)).await;
            proxy.cut();
        }
        assert!(proxy.accepted() > 1, "it came back");
    })
    .await;
}

/// Shorter than what a heartbeat waits for: nobody notices.
#[tokio::test]
async fn a_short_freeze() {
    strike(async |proxy| {
        sleep(ms(300)).await;
        proxy.weather(|weather| weather.frozen = true);
        sleep(ms(200)).await;
        proxy.weather(|weather| weather.frozen = false);
    })
    .await;
}

/// Longer: the client gives the line up, and comes back when it can; what the old line held up comes to the broker all the same.
#[tokio::test]
async fn a_long_freeze() {
    strike(async |proxy| {
        sleep(ms(300)).await;
        proxy.weather(|weather| weather.frozen = true);
        sleep(ms(4_000)).await;
        proxy.weather(|weather| weather.frozen = false);
    })
    .await;
}

#[tokio::test]
async fn an_end_in_one_direction() {
    strike(async |proxy| {
        for way in [Way::ToClient, Way::ToBroker] {
            sleep(ms(300)).await;
            proxy.half_close(way);
        }
    })
    .await;
}

/// Slow is not dead: nobody gives up.
#[tokio::test]
async fn a_slow_line() {
    strike(async |proxy| {
        proxy.weather(|weather| weather.bytes_per_second = Some(30_000));
        sleep(ms(1_500)).await;
        assert_eq!(proxy.accepted(), 1);
        proxy.weather(|weather| weather.bytes_per_second = None);
    })
    .await;
}

#[tokio::test]
async fn segments_that_are_split_and_merged() {
    strike(async |proxy| {
        for segment in [1, 2, 7] {
            proxy.weather(|weather| weather.segment = Some(segment));
            sleep(ms(300)).await;
        }
        proxy.weather(|weather| {
            weather.segment = None;
            weather.merge = Some(ms(50));
        });
        sleep(ms(500)).await;
        assert_eq!(proxy.accepted(), 1);
    })
    .await;
}

/// FC-15, K-012, API-067: a line on which nothing passes is given up, without waiting for anybody's consent; another is tried at once,
/// and the old one does not stay.
#[tokio::test]
async fn a_frozen_line_is_given_up() {
    let broker = Broker::start([]).await;
    let proxy = Proxy::start(broker.address).await;
    let (client, mut events, _) = connected("bob", proxy.address).await;
    proxy.weather(|weather| weather.frozen = true);
    let lost = event("a loss", &mut events, |event| matches!(event, Event::Disconnected { .. })).await;
    assert!(
        matches!(&lost, Event::Disconnected { reason, .. } if reason == "the broker does not answer"),
        "{lost:?}"
    );
    soon("another attempt", async {
        while proxy.accepted() < 2 {
            sleep(ms(10)).await;
        }
    })
    .await;
    assert_ne!(client.state(), State::Connected);
    proxy.weather(|weather| weather.frozen = false);
    event("its return", &mut events, |event| matches!(event, Event::Reconnected)).await;
    soon("the end of every line but one", async {
        while proxy.open() > 1 {
            sleep(ms(10)).await;
        }
    })
    .await;
}

/// FC-14: who vanishes without a word leaves when the broker has heard nothing for its idle time; what the old line held up does not bring
/// it back, and a new one is one join.
#[tokio::test]
async fn a_vanished_peer_leaves() {
    let broker = Broker::start([("WS_IDLE_TIMEOUT_MS", "1500")]).await;
    let proxy = Proxy::start(broker.address).await;
    let room = |client: &Client| client.app("demo").unwrap().room("general").unwrap();
    let (observer, mut events, _) = connected("bob", broker.address).await;
    room(&observer).set_presence("here").await.unwrap();
    let is = |change: Change| move |event: &Event| matches!(event, Event::Presence(found, actor) if *found == change && actor.actor_id == "alice");
    let (vanishing, ..) = connected("alice", proxy.address).await;
    room(&vanishing).set_presence("here").await.unwrap();
    event("a join", &mut events, is(Change::Join)).await;
    proxy.weather(|weather| weather.frozen = true);
    event("a leave", &mut events, is(Change::Leave)).await;
    proxy.weather(|weather| weather.frozen = false);
    event("a join", &mut events, is(Change::Join)).await;
    // Long enough for the broker to miss the old line again, if it took it for alive.
    sleep(ms(2_500)).await;
    let more = std::iter::from_fn(|| events.try_recv().ok());
    let more: Vec<_> = more.filter(|event| is(Change::Join)(event) || is(Change::Leave)(event)).collect();
    assert_eq!(more, []);
    let present = room(&observer).fetch_presence().await.unwrap();
    assert_eq!(present.iter().filter(|actor| actor.actor_id == "alice").count(), 1, "{present:?}");
}
