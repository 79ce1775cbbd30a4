//! Worker groups whose members acknowledge, over whole connections on a paused clock (features 6).

mod kit;

use std::sync::Arc;
use std::time::Duration;

use kit::{Client, broker, settle};
use nolag_broker::Broker;
use nolag_broker::config::Settings;
use rmpv::Value;
use tokio::time::Instant;

const TOPIC: &str = "demo/general/jobs";

/// Connects and negotiates redelivery.
async fn login(broker: &Arc<Broker>, token: &str) -> Client {
    let mut client = Client::connect(broker).await;
    let features = Value::Array(vec!["redeliver".into()]);
    let auth = map! {"type": "auth", "token": token, "protocolVersion": 2, "features": features.clone()};
    let reply = client.ask(auth).await;
    assert_eq!(reply["features"], features);
    client
}

fn subscribe(timeout: u64) -> Value {
    map! {
        "type": "subscribe", "topic": TOPIC, "loadBalance": true, "loadBalanceGroup": "workers", "redeliver": true,
        "ackTimeoutMs": timeout
    }
}

async fn worker(broker: &Arc<Broker>) -> Client {
    let mut client = login(broker, "dev-token-bob").await;
    let reply = client.ask(subscribe(60_000)).await;
    assert_eq!(reply["type"], Value::from("subscribed"), "{reply}");
    client
}

async fn publish(client: &mut Client, numbers: std::ops::Range<u64>) {
    for number in numbers {
        client.send(map! {"type": "publish", "topic": TOPIC, "data": number, "qos": 1}).await;
    }
    settle().await;
}

/// The next messages, each of which has to be acknowledged: their data, their ids, and whether they came before.
async fn take(client: &mut Client, count: usize) -> Vec<(u64, Value, bool)> {
    let mut messages = Vec::new();
    while messages.len() < count {
        let frame = client.next().await;
        assert_eq!((&frame["type"], &frame["requiresAck"]), (&"message".into(), &true.into()), "{frame}");
        messages.push((
            frame["data"].as_u64().unwrap(),
            frame["msgId"].clone(),
            frame["redelivered"].as_bool() == Some(true),
        ));
    }
    messages
}

async fn acknowledge(client: &mut Client, messages: &[(u64, Value, bool)]) {
    for chunk in messages.chunks(1_000) {
        let ids: Vec<_> = chunk.iter().map(|(_, id, _)| id.clone()).collect();
        client.send(map! {"type": "batchAck", "msgIds": ids}).await;
    }
    settle().await;
}

/// Nothing more is there for a client.
async fn nothing_more(client: &mut Client) {
    client.send(map! {"type": "unsubscribe", "topic": "demo/general/nothing"}).await;
    let reply = client.next().await;
    assert_eq!(reply["type"], Value::from("unsubscribed"), "{reply}");
}

/// FC-28, F-13: a worker dies while it holds messages. What it had acknowledged is done, the rest goes to the others, and when it
/// comes back it gets its share of what is new.
#[tokio::test(start_paused = true)]
async fn a_worker_dies() {
    let broker = broker(Settings { publish_rate_limit: 0, ..Settings::default() });
    let (mut one, mut two, mut three) = (worker(&broker).await, worker(&broker).await, worker(&broker).await);
    let mut publisher = Client::login(&broker, "dev-token-alice").await;
    publish(&mut publisher, 0..300).await;
    let held = take(&mut two, 100).await;
    acknowledge(&mut two, &held[..60]).await;
    drop(two);
    settle().await;
    publish(&mut publisher, 300..330).await;

    let mut done: Vec<u64> = held[..60].iter().map(|(data, ..)| *data).collect();
    let mut again = Vec::new();
    for client in [&mut one, &mut three] {
        let messages = take(client, 100 + 20 + 15).await;
        nothing_more(client).await;
        acknowledge(client, &messages).await;
        done.extend(messages.iter().map(|(data, ..)| *data));
        again.extend(messages.into_iter().filter(|(.., again)| *again).map(|(data, id, _)| (data, id)));
    }
    again.sort_by_key(|(data, _)| *data);
    let open: Vec<_> = held[60..].iter().map(|(data, id, _)| (*data, id.clone())).collect();
    assert_eq!(again, open, "once each, with the same id");
    done.sort_unstable();
    assert_eq!(done, (0..330).collect::<Vec<_>>());

    let mut back = worker(&broker).await;
    nothing_more(&mut back).await;
    publish(&mut publisher, 330..333).await;
    assert_eq!(take(&mut back, 1).await.len(), 1);
    nothing_more(&mut back).await;
}

/// Features 6: the time that a subscribe asks for passes by itself, and only the holder's acknowledgement counts.
#[tokio::test(start_paused = true)]
async fn time_passes() {
    let broker = broker(Settings::default());
    let mut one = login(&broker, "dev-token-bob").await;
    one.ask(subscribe(1_000)).await;
    let mut publisher = Client::login(&broker, "dev-token-alice").await;
    let start = Instant::now();
    publish(&mut publisher, 0..1).await;
    let first = take(&mut one, 1).await;
    let mut other = login(&broker, "dev-token-bob").await;
    other.send(map! {"type": "ack", "msgId": first[0].1.clone()}).await;
    let second = take(&mut one, 1).await;
    assert_eq!((second[0].2, &second[0].1), (true, &first[0].1), "it is alone");
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_millis(1_100), "{waited:?}");
    one.send(map! {"type": "ack", "msgId": first[0].1.clone()}).await;
    // Until it is closed for being idle.
    assert_eq!(one.rest().await.0, [], "nothing comes again");
}

/// Features 6: after so many times a message is dropped, counted, and published as a dead letter, with its payload and key.
#[tokio::test(start_paused = true)]
async fn a_message_that_nobody_can_handle() {
    let settings =
        Settings { redeliver_max: 3, dead_letter_topic: Some("failed".to_owned()), ..Settings::default() };
    let broker = broker(settings);
    let mut one = login(&broker, "dev-token-bob").await;
    one.ask(subscribe(1_000)).await;
    one.subscribe("demo/general/failed").await;
    let mut publisher = Client::login(&broker, "dev-token-alice").await;
    publisher
        .send(map! {"type": "publish", "topic": TOPIC, "data": "poison", "qos": 1, "filter": "eu"})
        .await;
    for again in [None, Some(true), Some(true), Some(true)] {
        let frame = one.next().await;
        assert_eq!((frame["topic"].as_str(), frame["redelivered"].as_bool()), (Some(TOPIC), again));
    }
    let letter = one.next().await;
    assert_eq!(letter["topic"], Value::from("demo/general/failed"), "{letter}");
    assert_eq!((&letter["data"], &letter["filter"]), (&"poison".into(), &"eu".into()), "{letter}");
    assert_eq!(letter["from"], Value::from("alice"), "{letter}");
    let text = broker.metrics_text();
    assert!(text.contains("nolag_dropped_total{reason=\"redeliver_exhausted\"} 1"), "{text}");
}

/// Features 6: on a connection with the feature only what a group hands out asks for an acknowledgement; on others all do, as ever
/// (C-069), and there a subscribe that asks for it changes nothing (F-02).
#[tokio::test(start_paused = true)]
async fn who_is_asked_to_acknowledge() {
    let broker = broker(Settings { record_messages: true, ..Settings::default() });
    let mut granted = login(&broker, "dev-token-bob").await;
    granted.subscribe(TOPIC).await;
    let mut plain = Client::login(&broker, "dev-token-bob").await;
    plain.subscribe(TOPIC).await;
    let mut old = Client::login(&broker, "dev-token-bob").await;
    let reply = old.ask(subscribe(5)).await;
    assert_eq!(reply["type"], Value::from("subscribed"), "a time out of bounds is not looked at: {reply}");
    let mut publisher = Client::login(&broker, "dev-token-alice").await;
    publish(&mut publisher, 0..1).await;
    let frame = granted.next().await;
    assert!(frame["msgId"].is_str() && frame["requiresAck"].is_nil(), "{frame}");
    assert_eq!(plain.next().await["requiresAck"], Value::from(true));
    assert_eq!(old.next().await["requiresAck"], Value::from(true));
    assert_eq!(old.rest().await.0, [], "nothing comes again");

    let broker = kit::broker(Settings { record_messages: false, ..Settings::default() });
    let mut worker = worker(&broker).await;
    let mut publisher = Client::login(&broker, "dev-token-alice").await;
    publish(&mut publisher, 0..2).await;
    let messages = take(&mut worker, 2).await;
    assert!(
        messages[0].1.is_str() && messages[0].1 != messages[1].1,
        "ids, though messages are not recorded"
    );
}

/// Features 6: a time out of bounds, and redelivery without a group, are 40000.
#[tokio::test(start_paused = true)]
async fn bounds_of_a_subscribe() {
    let broker = broker(Settings::default());
    let mut client = login(&broker, "dev-token-bob").await;
    for timeout in [0, 999, 3_600_001] {
        let reply = client.ask(subscribe(timeout)).await;
        assert_eq!((&reply["type"], &reply["code"]), (&"error".into(), &40000.into()), "{reply}");
        assert_eq!(reply["error"], Value::from("invalid_message"));
    }
    let reply = client.ask(map! {"type": "subscribe", "topic": TOPIC, "redeliver": true}).await;
    assert_eq!((&reply["type"], &reply["code"]), (&"error".into(), &40000.into()), "{reply}");
    for timeout in [1_000, 3_600_000] {
        let reply = client.ask(subscribe(timeout)).await;
        assert_eq!(reply["type"], Value::from("subscribed"), "{reply}");
    }
}
