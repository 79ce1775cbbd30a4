//! Subscriptions that continue, over whole connections on a paused clock (features 2, 3).

mod kit;

use std::sync::Arc;
use std::time::Duration;

use kit::{Client, broker, broker_with, settle};
use nolag_broker::Broker;
use nolag_broker::auth::StaticAuth;
use nolag_broker::config::Settings;
use rmpv::Value;

const TOPIC: &str = "demo/general/messages";

/// Connects and negotiates everything.
async fn login(broker: &Arc<Broker>, token: &str) -> Client {
    let features = Value::Array(vec!["recover".into(), "dedupe".into(), "time travel".into()]);
    let mut client = Client::connect(broker).await;
    let reply = client
        .ask(map! {"type": "auth", "token": token, "protocolVersion": 2, "clientId": "tab-1", "features": features})
        .await;
    assert_eq!(reply["features"], Value::Array(vec!["recover".into(), "dedupe".into()]));
    client
}

async fn publish(client: &mut Client, data: impl Into<Value>, msg_ref: &str) -> Value {
    let data = data.into();
    let frame = map! {"type": "publish", "topic": TOPIC, "data": data, "qos": 1, "msgRef": msg_ref};
    client.ask(frame).await
}

fn position(of: &Value) -> Value {
    map! {"epoch": of["epoch"].clone(), "seq": of["seq"].clone()}
}

/// Wire protocol 10.4: a publish that names no quality has 1, and is kept.
#[tokio::test(start_paused = true)]
async fn no_quality_is_one() {
    let broker = broker(Settings::default());
    let mut bob = login(&broker, "dev-token-bob").await;
    let publish = map! {"type": "publish", "topic": TOPIC, "data": 7, "msgRef": "r-1"};
    assert_eq!(bob.ask(publish).await["level"], Value::from("memory"));
    let mut alice = login(&broker, "dev-token-alice").await;
    alice.ask(map! {"type": "subscribe", "topic": TOPIC, "history": 1}).await;
    let mut replayed = alice.next().await;
    while replayed["type"] != Value::from("message") {
        replayed = alice.next().await;
    }
    assert_eq!(replayed["data"], Value::from(7));
}

/// Settings may be as long as somebody likes to write: no clock is asked for a time that it cannot tell.
#[tokio::test(start_paused = true)]
async fn times_without_end() {
    let broker = broker(Settings {
        retain_ttl: Duration::MAX,
        idle_timeout: Duration::MAX,
        revalidation_interval: Duration::MAX,
        auth_cache_ttl: Duration::MAX,
        resume_retention: Duration::MAX,
        ..Settings::default()
    });
    let mut bob = login(&broker, "dev-token-bob").await;
    let kept = map! {"type": "publish", "topic": TOPIC, "data": 7, "retain": true, "msgRef": "r-1"};
    assert_eq!(bob.ask(kept).await["type"], Value::from("published"));
    drop(bob);
    let mut alice = login(&broker, "dev-token-alice").await;
    alice.ask(map! {"type": "subscribe", "topic": TOPIC}).await;
    assert_eq!(alice.next().await["retained"], Value::from(true));
}

/// F-03, F-09: what was published meanwhile comes once, before what is live, also what the publisher sent three times.
#[tokio::test(start_paused = true)]
async fn a_connection_continues() {
    let broker = broker(Settings::default());
    let mut bob = login(&broker, "dev-token-bob").await;
    let mut alice = login(&broker, "dev-token-alice").await;
    let subscribed = alice.ask(map! {"type": "subscribe", "topic": TOPIC}).await;
    assert_eq!(subscribed["seq"], Value::from(0));
    let published = publish(&mut bob, 0, "r-0").await;
    assert_eq!((published["level"].as_str(), published["duplicate"].as_bool()), (Some("memory"), None));
    let first = alice.next().await;
    assert_eq!(first["seq"], Value::from(1));
    drop(alice);
    for n in 1..=3 {
        for again in [None, Some(true), Some(true)] {
            let published = publish(&mut bob, n, &format!("r-{n}")).await;
            assert_eq!(published["duplicate"].as_bool(), again);
        }
    }
    let mut alice = login(&broker, "dev-token-alice").await;
    let after = map! {"epoch": subscribed["epoch"].clone(), "seq": 1};
    let answer = alice.ask(map! {"type": "subscribe", "topic": TOPIC, "recover": after}).await;
    assert_eq!(answer["recovered"], Value::from(true));
    publish(&mut bob, 4, "r-4").await;
    let mut seen = Vec::new();
    for _ in 0..6 {
        let frame = alice.next().await;
        seen.push((
            frame["type"].as_str().unwrap().to_owned(),
            frame["data"].as_u64(),
            frame["isReplay"].as_bool(),
        ));
    }
    let replayed = |n| ("message".to_owned(), Some(n), Some(true));
    assert_eq!(
        seen,
        [
            ("replayStart".to_owned(), None, None),
            replayed(1),
            replayed(2),
            replayed(3),
            ("replayEnd".to_owned(), None, None),
            ("message".to_owned(), Some(4), None),
        ]
    );
}

/// A replay, and retained messages, may be heavier than the backlog that closes a slow consumer.
#[tokio::test(start_paused = true)]
async fn a_replay_is_no_backlog() {
    let broker = broker(Settings { max_outbound_bytes: 100_000, ..Settings::default() });
    let mut bob = login(&broker, "dev-token-bob").await;
    let subscribed = bob.ask(map! {"type": "subscribe", "topic": "demo/general/other"}).await;
    for n in 0..100 {
        let topic = format!("{TOPIC}/{n}");
        let data = Value::Binary(vec![7; 10_000]);
        let frame = map! {"type": "publish", "topic": topic, "data": data, "qos": 1, "retain": true, "msgRef": n.to_string()};
        assert_eq!(bob.ask(frame).await["type"], Value::from("published"));
    }
    for recover in [Some(position(&subscribed)), None] {
        let topic = format!("{TOPIC}/#");
        let mut alice = login(&broker, "dev-token-alice").await;
        let mut frame = vec![("type".into(), "subscribe".into()), ("topic".into(), Value::from(&*topic))];
        frame.extend(recover.clone().map(|position| ("recover".into(), position)));
        let answer = alice.ask(Value::Map(frame)).await;
        assert_eq!(answer["recovered"].as_bool(), recover.is_some().then_some(true));
        settle().await;
        let mut messages = 0;
        while messages < 100 {
            messages += u64::from(alice.next().await["type"] == Value::from("message"));
        }
    }
}

/// What is malformed is refused, and what was asked for without the feature is left out of account.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read() {
    let broker = broker(Settings::default());
    let mut alice = login(&broker, "dev-token-alice").await;
    for recover in [
        Value::from("here"),
        map! {"epoch": "x"},
        map! {"epoch": "x", "seq": -1},
        map! {"epoch": "x", "seq": 1_u64 << 53},
        map! {"epoch": "x".repeat(65), "seq": 1},
    ] {
        let answer = alice.ask(map! {"type": "subscribe", "topic": TOPIC, "recover": recover}).await;
        assert_eq!(answer["code"], Value::from(40_000), "{answer}");
    }
    for history in [0, 1_001] {
        let answer = alice.ask(map! {"type": "subscribe", "topic": TOPIC, "history": history}).await;
        assert_eq!(answer["code"], Value::from(40_000), "{answer}");
    }
    let mut plain = Client::login(&broker, "dev-token-bob").await;
    let position = map! {"epoch": "x", "seq": 1};
    let answer =
        plain.ask(map! {"type": "subscribe", "topic": TOPIC, "recover": position, "history": 5_000}).await;
    assert_eq!(answer["type"], Value::from("subscribed"));
    assert!(answer["recovered"].is_nil() && answer["epoch"].is_nil(), "{answer}");
}

/// F-07: a subscription that lost its grant recovers nothing.
#[tokio::test(start_paused = true)]
async fn without_a_grant_there_is_nothing() {
    let token = |name: &str, topic: &str| {
        format!(
            r#""{name}": {{ "actorTokenId": "alice", "projectId": "p", "appId": "demo-app", "appName": "demo",
                "allowedTopics": [{{ "pattern": "{topic}", "permission": "pubSub" }}] }}"#
        )
    };
    let tokens = [token("both", "demo/general/#"), token("less", "demo/general/other")].join(",");
    let settings = Settings::default();
    let auth = StaticAuth::from_text(&format!(r#"{{"tokens": {{{tokens}}}}}"#), settings.profile).unwrap();
    let broker = broker_with(settings, Arc::new(auth));
    let mut alice = login(&broker, "both").await;
    let subscribed = alice.ask(map! {"type": "subscribe", "topic": TOPIC}).await;
    let mut publisher = login(&broker, "both").await;
    publish(&mut publisher, 1, "r-1").await;
    for (token, recovers) in [("less", false), ("both", true)] {
        let mut alice = login(&broker, token).await;
        let recover = position(&subscribed);
        let answer = alice.ask(map! {"type": "subscribe", "topic": TOPIC, "recover": recover}).await;
        assert_eq!(answer["recovered"].as_bool(), recovers.then_some(true));
        assert_eq!(answer["error"].as_str(), (!recovers).then_some("unknown_topic"));
        drop(alice);
    }
}
