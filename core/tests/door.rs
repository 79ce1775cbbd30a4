//! A client in terms of bytes, over a transport in memory: what goes in, what comes out, and when it wakes its host.

#![cfg(feature = "door")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nolag_core::door::{Door, Settings};
use nolag_core::driver::memory::{Memory, ServerEnd};
use rmpv::Value;
use tokio::sync::mpsc::Receiver;

#[path = "kit/mod.rs"]
mod kit;
#[path = "kit/peer.rs"]
mod peer;
use kit::{message, number};
use peer::Peer;

/// A host that has opened a door.
struct Host {
    door: Door,
    wakes: Arc<AtomicUsize>,
    wake: Arc<tokio::sync::Notify>,
    items: Vec<Value>,
}

fn bytes(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    rmpv::encode::write_value(&mut out, value).unwrap();
    out
}

fn list<const N: usize>(values: [Value; N]) -> Value {
    Value::Array(values.into())
}

fn map<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Map(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

fn settings<const N: usize>(fields: [(&str, Value); N]) -> Result<Settings, nolag_core::Error> {
    Settings::read(&bytes(&map(fields)))
}

impl Host {
    fn open(settings: Settings) -> (Self, Receiver<ServerEnd>) {
        let (transport, queue) = Memory::new();
        let (wakes, wake) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
        let told = (Arc::clone(&wakes), Arc::clone(&wake));
        let (door, driver) = Door::open(
            settings,
            Box::new(transport),
            Box::new(move || {
                told.0.fetch_add(1, Ordering::Relaxed);
                told.1.notify_one();
            }),
        );
        tokio::spawn(driver);
        (Self { door, wakes, wake, items: Vec::new() }, queue)
    }

    fn send<const N: usize>(&self, command: [Value; N]) {
        self.door.send(&bytes(&list(command))).unwrap();
    }

    /// The next item of this kind; those before it are dropped. A message's kind is `message`.
    async fn item(&mut self, kind: &str) -> Vec<Value> {
        loop {
            while !self.items.is_empty() {
                let item = self.items.remove(0).as_array().unwrap().clone();
                if item[0].as_str().unwrap_or("message") == kind {
                    return item;
                }
            }
            self.wake.notified().await;
            let batch = self.door.take();
            let mut rest = &batch[..];
            while !rest.is_empty() {
                self.items.push(rmpv::decode::read_value(&mut rest).unwrap());
            }
        }
    }

    /// Connects, and subscribes to `t`.
    async fn subscribed(settings: Settings) -> (Self, Peer) {
        let (mut host, mut queue) = Self::open(settings);
        host.send(["connect".into(), 1.into()]);
        host.send(["subscribe".into(), 2.into(), "t".into()]);
        let mut peer = Peer::accept(&mut queue).await;
        peer.welcome().await;
        assert_eq!(host.item("done").await, ["done".into(), 1.into(), Value::Nil]);
        assert_eq!(host.item("done").await, ["done".into(), 2.into(), Value::Nil]);
        (host, peer)
    }
}

fn plain() -> Settings {
    settings([("url", "ws://broker".into()), ("token", "t".into())]).unwrap()
}

/// A batch is one wake-up; a topic is named once; what was dispatched is acknowledged, and not before.
#[tokio::test(start_paused = true)]
async fn messages_come_in_batches() {
    let (mut host, mut peer) = Host::subscribed(plain()).await;
    host.door.take();
    let before = host.wakes.load(Ordering::Relaxed);
    for id in ["m-1", "m-2", "m-3"] {
        peer.send(message("t", Some(id), &number(7))).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.wakes.load(Ordering::Relaxed), before + 1, "one wake-up until somebody takes");
    let first = host.item("message").await;
    assert_eq!(first, [1.into(), "t".into(), 7.into(), 2.into(), "m-1".into()]);
    let second = host.item("message").await;
    assert_eq!(second[0], 2.into());
    assert_eq!(second[4], "m-2".into());
    host.item("message").await;
    let silence = tokio::time::timeout(Duration::from_secs(5), peer.read()).await;
    assert!(silence.is_err(), "nothing was dispatched yet");
    host.send(["upTo".into(), 2.into()]);
    assert_eq!(kit::describe(&peer.read().await.unwrap()), "batchAck m-1,m-2");
    host.send(["handled".into(), list([3.into()]), Value::Nil]);
    assert_eq!(kit::describe(&peer.read().await.unwrap()), "ack m-3");
}

/// While the application takes no more, nothing is read; then all of it comes.
#[tokio::test(start_paused = true)]
async fn a_full_host_pauses_the_client() {
    let (mut host, mut peer) = Host::subscribed(plain()).await;
    host.send(["full".into(), true.into()]);
    peer.send(message("t", None, &number(1))).await;
    let early = tokio::time::timeout(Duration::from_secs(1), host.item("message")).await;
    assert!(early.is_err());
    host.send(["full".into(), false.into()]);
    assert_eq!(host.item("message").await[2], 1.into());
}

/// Publishes carry any value as it is; a receipt comes back, or nothing where nobody waits; what fails is told either way.
#[tokio::test(start_paused = true)]
async fn publishes_and_their_answers() {
    let (mut host, mut peer) = Host::subscribed(plain()).await;
    host.send(["publish".into(), 0.into(), "t".into(), 1.into()]);
    host.send(["publish".into(), 3.into(), "t".into(), 2.into(), map([("qos", 1.into())])]);
    assert_eq!(peer.serve(2).await, [1, 2]);
    let done = host.item("done").await;
    assert_eq!(done[1], 3.into(), "nothing was told of the other");
    let receipt = &done[3];
    assert_eq!(receipt["outcome"], "accepted".into());
    assert_eq!(receipt["effectiveQos"], 1.into());

    host.send(["publish".into(), 4.into(), "t".into(), 2.into(), map([("qos", 3.into())])]);
    let error = host.item("done").await.remove(2);
    assert_eq!((&error["class"], &error["code"]), (&"ConfigError".into(), &"bad_option".into()));
    assert_eq!(error["message"], "qos: 0, 1 or 2 is expected".into());
    host.send(["publish".into(), 0.into(), "a/+".into(), 2.into()]);
    let error = host.item("failed").await.remove(1);
    assert_eq!((&error["code"], &error["local"]), (&"invalid_topic".into(), &true.into()));
}

/// Whoever holds calls back is told once when there is room for more.
#[tokio::test(start_paused = true)]
async fn room_for_calls() {
    let (mut host, mut peer) = Host::subscribed(plain()).await;
    for n in 0..3 {
        host.send(["publish".into(), 0.into(), "t".into(), n.into()]);
    }
    assert_eq!(host.door.open_calls(), 3);
    host.send(["room".into(), 2.into()]);
    peer.serve(2).await;
    host.item("room").await;
    assert!(host.door.open_calls() < 2);
    host.send(["room".into(), 2.into()]);
    host.item("room").await;
}

/// API-072: the application is asked for each token; one that it has not got is a failure that passes.
#[tokio::test(start_paused = true)]
async fn tokens_are_asked_for() {
    let (mut host, mut queue) = Host::open(settings([("url", "ws://broker".into())]).unwrap());
    host.send(["connect".into(), 1.into()]);
    let mut peer = Peer::accept(&mut queue).await;
    let question = host.item("token").await;
    assert_eq!(question[2..4], ["initial".into(), 1.into()]);
    host.send(["tokenFailed".into(), question[1].clone(), "no".into(), false.into()]);
    assert_eq!(peer.read().await, None);
    let mut peer = Peer::accept(&mut queue).await;
    let question = host.item("token").await;
    host.send(["token".into(), question[1].clone(), "secret".into(), Value::Nil]);
    let auth = peer.read().await.unwrap();
    assert!(auth.windows(6).any(|part| part == b"secret"));
}

/// A str that is not UTF-8 goes out as bytes, wherever it stands.
#[tokio::test(start_paused = true)]
async fn text_that_is_none_is_bytes() {
    let (mut host, mut peer) = Host::subscribed(plain()).await;
    let data = [0x92, 0xa1, 0xff, 0x81, 0xa1, b'k', 0xa1, 0xfe];
    peer.send(message("t", None, &data)).await;
    let data = host.item("message").await.remove(2);
    assert_eq!(data, list([Value::Binary(vec![0xff]), map([("k", Value::Binary(vec![0xfe]))])]));
}

/// After `disconnect` the client is closed, and a door that is dropped closes it too.
#[tokio::test(start_paused = true)]
async fn ends() {
    let (mut host, mut peer) = Host::subscribed(plain()).await;
    host.send(["disconnect".into(), 3.into()]);
    let state = host.item("state").await;
    assert_eq!(state[2], "closed".into());
    assert_eq!(peer.read().await, None);
    host.send(["publish".into(), 4.into(), "t".into(), 1.into()]);
    assert_eq!(host.item("done").await[1], 3.into());
    assert_eq!(host.item("done").await[2]["class"], "ClosedError".into());

    let (host, mut peer) = Host::subscribed(plain()).await;
    drop(host);
    assert_eq!(peer.read().await, None);
}

/// Options that are unfit are refused by name, with what is expected.
#[test]
fn unfit_options() {
    let refused = |name: &str, value: Value| settings([(name, value)]).unwrap_err().to_string();
    assert_eq!(refused("nonsense", 1.into()), "there is no option \"nonsense\"");
    assert_eq!(refused("reconnect", 1.into()), "reconnect: true or false is expected");
    assert_eq!(refused("ackTimeout", 0.into()), "ackTimeout: a time in ms above 0 is expected");
    assert_eq!(
        refused("ackTimeout", (-1).into()),
        "ackTimeout: a time in ms from 0 to ten years is expected"
    );
    assert_eq!(refused("maxInFlight", 1.5.into()), "maxInFlight: a whole number of at least 1 is expected");
    assert_eq!(
        refused("offlineQueue", map([("overflow", "x".into())])),
        "offlineQueue.overflow: one of reject, dropOldest, block is expected"
    );
    let features = refused("features", list(["x".into()]));
    assert!(
        features.starts_with("features: a list of ") && features.ends_with("not \"x\", is expected"),
        "{features}"
    );
    let settings =
        settings([("ackTimeout", 1_500.into()), ("qos", Value::Nil), ("group", true.into())]).unwrap();
    assert_eq!(settings.options.ack_timeout, Duration::from_millis(1_500));
}

/// What is no command is the binding's mistake: it is refused, the commands before it are carried out, and none behind it.
#[tokio::test(start_paused = true)]
async fn malformed_commands() {
    let (mut host, _queue) = Host::open(plain());
    for bad in [&[0xc1][..], &[0xc0], &[0x90], &[0x92, 0xa1, b'x', 1], &[0x91, 0xa7]] {
        assert!(host.door.send(bad).is_err(), "{bad:?}");
    }
    let good = bytes(&list(["connect".into(), 1.into()]));
    assert!(host.door.send(&[&good[..], &[0xc1]].concat()).is_err());
    assert_eq!(host.item("state").await[2], "connecting".into());
}
