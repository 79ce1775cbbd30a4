//! Several frames in one message (features 5).

mod kit;

use kit::{Client, broker};
use nolag_broker::config::Settings;
use nolag_protocol::features::Features;
use rmpv::Value;

const TOPIC: &str = "demo/general/news";

fn publish(data: impl Into<Value>) -> Value {
    map! {"type": "publish", "topic": TOPIC, "data": data.into()}
}

/// F-12: in order, as if each had come alone; a bad one ends the message, and what came before it stands. It is bad by its
/// syntax, where nobody can tell what follows, or by its fields.
#[tokio::test(start_paused = true)]
async fn frames_of_one_message_are_handled_in_order_up_to_a_bad_one() {
    let broker = broker(Settings::default());
    for bad in [vec![0xc1], {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &map! {"type": "publish", "topic": 7}).unwrap();
        bytes
    }] {
        let mut client = Client::login_with(&broker, "dev-token-alice", &["batch"]).await;
        let mut bytes = Vec::new();
        for frame in [map! {"type": "subscribe", "topic": TOPIC}, publish("stands")] {
            rmpv::encode::write_value(&mut bytes, &frame).unwrap();
        }
        bytes.extend(bad);
        rmpv::encode::write_value(&mut bytes, &publish("lost")).unwrap();
        client.send_bytes(bytes).await;
        let frames = client.settled(&["subscribed", "message", "error"]).await;
        assert_eq!(frames[1]["data"], Value::from("stands"));
        assert_eq!(frames[2]["error"], Value::from("invalid_message"));
    }
}

/// Features 5: sent only when granted, by either side. Without the feature a second frame is a fault of the first.
#[tokio::test(start_paused = true)]
async fn without_the_feature_a_message_is_one_frame() {
    let settings = Settings { features: Features::NONE, ..Settings::default() };
    for broker in [broker(settings), broker(Settings::default())] {
        let mut client = Client::login(&broker, "dev-token-alice").await;
        client.subscribe(TOPIC).await;
        client.send_together(&[publish(1), publish(2)]).await;
        assert_eq!(client.next().await["error"], Value::from("invalid_message"));
        let mut talker = Client::login(&broker, "dev-token-bob").await;
        for n in 0..100 {
            talker.send(publish(n)).await;
        }
        for n in 0..100 {
            let bytes = client.next_bytes().await.unwrap();
            let mut rest = &*bytes;
            assert_eq!(rmpv::decode::read_value(&mut rest).unwrap()["data"], Value::from(n));
            assert!(rest.is_empty(), "one frame a message");
        }
    }
}

/// Features 5: a message of thousands of frames is handled whole, and others get their turn between.
#[tokio::test(start_paused = true)]
async fn many_frames_in_one_message() {
    let broker = broker(Settings { publish_rate_limit: 0, ..Settings::default() });
    let mut client = Client::login_with(&broker, "dev-token-alice", &["batch"]).await;
    let mut listener = Client::login_with(&broker, "dev-token-bob", &["batch"]).await;
    listener.subscribe(TOPIC).await;
    client.send_together(&(0..5_000).map(publish).collect::<Vec<_>>()).await;
    for n in 0..5_000 {
        assert_eq!(listener.next().await["data"], Value::from(n));
    }
}

/// Features 5: what is ready goes together, in messages of at most 64 KiB, but a large frame and a heartbeat go alone.
#[tokio::test(start_paused = true)]
async fn what_is_ready_shares_messages() {
    let broker = broker(Settings { publish_rate_limit: 0, ..Settings::default() });
    let mut listener = Client::login_with(&broker, "dev-token-alice", &["batch"]).await;
    listener.subscribe(TOPIC).await;
    let mut talker = Client::login_with(&broker, "dev-token-bob", &["batch"]).await;
    // All in one message, so that the listener's writer finds many at a time.
    let mut frames: Vec<Value> = (0..1_000).map(publish).collect();
    frames.insert(500, publish("x".repeat(20_000)));
    talker.send_together(&frames).await;
    let (mut messages, mut next) = (0, 0);
    while next < 1_000 {
        let bytes = listener.next_bytes().await.unwrap();
        messages += 1;
        assert!(bytes.len() <= 64 * 1024);
        let mut rest = &*bytes;
        while !rest.is_empty() {
            let frame = rmpv::decode::read_value(&mut rest).unwrap();
            if frame["data"].is_str() {
                assert_eq!((next, rest.len()), (500, 0), "in order, and alone");
                assert!(bytes.len() < 21_000, "alone");
            } else {
                assert_eq!(frame["data"], Value::from(next));
                next += 1;
            }
        }
    }
    assert!(messages < 200, "{messages} messages for 1,001 frames");

    listener.send_together(&[map! {"type": "getPresence"}, map! {"type": "getPresence"}]).await;
    listener.heartbeat().await;
    assert_eq!(listener.next().await["type"], Value::from("presenceList"));
    assert_eq!(listener.next().await["type"], Value::from("presenceList"));
    assert!(listener.next_bytes().await.unwrap().is_empty(), "a heartbeat is an empty message");
}
