//! The table against the plain decision of [`Interest::wants`], and that against the vectors.

mod recovering;
mod redelivering;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nolag_protocol::features::Features;
use nolag_protocol::filter::{self, Item};
use nolag_protocol::frame::ServerFrame;
use nolag_protocol::topic::is_wildcard;
use proptest::prelude::*;
use serde_json::Value;

use super::{Envelope, Hub, Interest, Join, Origin, Publication, Subscription};
use crate::config::Settings;
use crate::outgoing::{Entry, Outgoing};
use crate::store::disk::Bounds;
use crate::store::{Disk, Kept, Memory};

fn interest(topic: &str, keys: Vec<String>, descends: bool) -> Interest {
    Interest {
        topic: topic.into(),
        base: format!("app/{topic}").into(),
        app_levels: 1,
        wildcard: is_wildcard(topic),
        exact: false,
        keys,
        group: None,
        descends,
        scope: None,
        features: Features::NONE,
        worker: None,
    }
}

fn publication<'a>(base: &'a str, key: Option<&'a str>, reaches_below: bool) -> Publication<'a> {
    let topic = base.strip_prefix("app/").unwrap_or(base);
    Publication {
        message: Envelope {
            origin: Origin { base, topic, exact: false, key, reaches_below },
            data: &[0x01],
            msg_id: None,
            from: "alice",
            from_type: "actor",
            timestamp: 0,
            trace: None,
        },
        keep: false,
        msg_ref: None,
        silent: None,
        silent_client: None,
        retain: None,
    }
}

fn hub(settings: &Settings) -> Hub {
    Hub::new(settings, Arc::default(), Arc::new(Memory), Kept::nothing(), Duration::ZERO)
}

/// Subscribes, with an empty frame for a reply.
fn subscribe(hub: &Hub, outgoing: &Arc<Outgoing>, interest: Interest) -> Subscription {
    hub.subscribe(outgoing, interest, None, &Join::default(), |_| Some(Bytes::new()))
}

/// All frames that are queued for a connection.
fn drain(outgoing: &Outgoing) -> Vec<Bytes> {
    let mut entries = VecDeque::new();
    match outgoing.poll_take(&mut entries, &Context::from_waker(Waker::noop())) {
        Poll::Ready(_) | Poll::Pending => {}
    }
    let frames = entries.into_iter().flat_map(|entry| match entry {
        Entry::Frame(frame) => vec![frame],
        Entry::Replay(replay) => replay.collect(),
    });
    frames.collect()
}

fn subscriber(id: u64) -> Arc<Outgoing> {
    Arc::new(Outgoing::new(id, usize::MAX))
}

fn text(case: &Value, key: &str) -> Option<String> {
    case[key].as_str().map(str::to_owned)
}

/// C-059: every `deliver` case of the vectors, live and retained.
#[test]
fn deliver_vectors() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../../../../protocol/vectors/topics.json")).unwrap();
    let mut checked = 0;
    for case in cases.iter().filter(|case| case["kind"] == "deliver") {
        checked += 1;
        let filters = case["filters"].as_array().unwrap();
        let items: Vec<Item> =
            filters.iter().map(|item| Item::Value(item.as_str().unwrap().into())).collect();
        let keys = filter::subscription_keys(Some(&filter::encode(&items))).unwrap();
        let wanted = interest(case["subscription"].as_str().unwrap(), keys, true);
        let (base, key) = (format!("app/{}", case["topic"].as_str().unwrap()), text(case, "filterKey"));

        for retained in [false, true] {
            let hub = hub(&Settings::default());
            let outgoing = subscriber(1);
            let mut message = publication(&base, key.as_deref(), true);
            if retained {
                message.retain = Some(Settings::default().retain_ttl);
                hub.publish(&message, None).unwrap();
            }
            subscribe(&hub, &outgoing, wanted.clone());
            if !retained {
                hub.publish(&message, None).unwrap();
            }
            let frames = drain(&outgoing);
            let got = match &frames[1..] {
                [] => Value::Null,
                [frame] => {
                    let Ok(ServerFrame::Message(message)) = ServerFrame::decode(frame) else {
                        panic!("{frame:?}")
                    };
                    assert_eq!(message.retained, retained.then_some(true));
                    let mut got = serde_json::json!({ "topic": message.topic });
                    for (name, value) in [("filter", message.filter), ("sourceTopic", message.source_topic)] {
                        if let Some(value) = value {
                            got[name] = value.into();
                        }
                    }
                    got
                }
                more => panic!("{}: delivered {} times", case["id"], more.len()),
            };
            assert_eq!(got, case["expect"], "{} retained: {retained}", case["id"]);
        }
    }
    assert!(checked >= 15, "only {checked} cases");
}

/// The receiver of a scoped subscription sees addresses as it writes them (13.5).
#[test]
fn a_scope_is_not_shown() {
    let mut wanted = interest("chat/acme/+/messages", Vec::new(), false);
    wanted.topic = "chat/+/messages".into();
    wanted.scope = Some("acme".into());
    let message = publication("app/chat/acme/general/messages", None, false);
    let delivery = wanted.wants(&message.message.origin).unwrap();
    assert_eq!(delivery.source_topic().as_deref(), Some("chat/general/messages"));
}

/// C-079, C-081: each message goes to one member, in turn, and never to the one that shall not hear it.
#[test]
fn members_of_a_group_take_turns() {
    let hub = hub(&Settings::default());
    let members: Vec<_> = (1..=3).map(subscriber).collect();
    let mut wanted = interest("jobs", Vec::new(), false);
    wanted.group = Some("workers".into());
    let mut subscriptions: Vec<_> =
        members.iter().map(|member| subscribe(&hub, member, wanted.clone())).collect();
    let counts = || members.iter().map(|member| drain(member).len()).collect::<Vec<_>>();
    assert_eq!(counts(), [1, 1, 1], "the replies");

    let mut message = publication("app/jobs", None, false);
    for _ in 0..7 {
        assert_eq!(hub.publish(&message, None).unwrap(), 1);
    }
    assert_eq!(counts(), [3, 2, 2]);
    message.silent = Some(2);
    for _ in 0..4 {
        assert_eq!(hub.publish(&message, None).unwrap(), 1);
    }
    assert_eq!(counts()[1], 0);
    message.silent = None;

    hub.unsubscribe(&subscriptions.remove(0));
    for _ in 0..4 {
        hub.publish(&message, None).unwrap();
    }
    assert_eq!(counts(), [0, 2, 2]);
    hub.unsubscribe(&subscriptions.remove(0));
    message.silent = Some(3);
    assert_eq!(hub.publish(&message, None).unwrap(), 0, "its only member shall not hear it");
}

/// C-071, and the bound on their number: one message per routing key, the oldest out first.
#[tokio::test(start_paused = true)]
async fn retained_messages_have_bounds() {
    let settings = Settings { retain_max: 3, ..Settings::default() };
    let hub = hub(&settings);
    let mut message = publication("app/a", None, false);
    message.retain = Some(Settings::default().retain_ttl);
    for base in ["app/a", "app/b", "app/a", "app/c", "app/d"] {
        message.message.origin.base = base;
        hub.publish(&message, None).unwrap();
    }
    let kept = || {
        let outgoing = subscriber(9);
        let everything =
            Interest { topic: "#".into(), base: "app/#".into(), ..interest("#", Vec::new(), true) };
        subscribe(&hub, &outgoing, everything);
        drain(&outgoing).len() - 1
    };
    assert_eq!((kept(), hub.kept().0), (3, 3));
    message.message.data = nolag_protocol::msgpack::NIL;
    hub.publish(&message, None).unwrap();
    assert_eq!(kept(), 2, "nil clears");
    tokio::time::advance(settings.retain_ttl).await;
    assert_eq!(kept(), 0, "and time does");
}

/// A restart brings them back as old as they were: the oldest is still the first to go, and what has expired meanwhile is gone.
#[test]
fn retained_messages_keep_their_age() {
    let folder = tempfile::TempDir::new().unwrap();
    let start = |settings: &Settings, date| {
        let path = folder.path().join("store");
        let (disk, kept) = Disk::open(&path, Bounds::default()).unwrap();
        let disk = Arc::new(disk);
        (Hub::new(settings, Arc::default(), disk.clone(), kept, date), disk)
    };
    let settings = Settings::default();
    let (hub, disk) = start(&settings, Duration::ZERO);
    for (base, ttl) in [("app/c", 3_600), ("app/b", 3_600), ("app/a", 3_600), ("app/d", 1)] {
        let retain = Some(Duration::from_secs(ttl));
        hub.publish(&Publication { retain, ..publication(base, None, false) }, None).unwrap();
    }
    disk.close();

    // Where there is room for fewer.
    let (hub, disk) = start(&Settings { retain_max: 2, ..settings }, Duration::from_secs(10));
    let outgoing = subscriber(1);
    let everything = Interest { topic: "#".into(), base: "app/#".into(), ..interest("#", Vec::new(), true) };
    subscribe(&hub, &outgoing, everything);
    let mut sources = Vec::new();
    for frame in &drain(&outgoing)[1..] {
        let Ok(ServerFrame::Message(message)) = ServerFrame::decode(frame) else { panic!("{frame:?}") };
        sources.push(message.source_topic.map(str::to_owned));
    }
    assert_eq!(sources, ["a", "b"].map(|topic| Some(topic.to_owned())));
    disk.close();
}

/// Levels few enough that patterns and topics meet often.
fn level() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", ""])
}

fn pattern() -> impl Strategy<Value = String> {
    let level = prop::sample::select(vec!["a", "b", "", "+"]);
    (prop::collection::vec(level, 1..4), any::<bool>(), any::<bool>()).prop_map(
        |(levels, open, only_open)| {
            let path = levels.join("/");
            match (open, only_open) {
                (true, true) => "#".to_owned(),
                (true, false) => format!("{path}/#"),
                _ => path,
            }
        },
    )
}

fn wanted() -> impl Strategy<Value = Interest> {
    let keys =
        prop::collection::btree_set(level().prop_filter("a key is not empty", |key| !key.is_empty()), 0..3);
    (pattern(), keys, any::<bool>()).prop_map(|(topic, keys, descends)| {
        interest(&topic, keys.into_iter().map(str::to_owned).collect(), descends)
    })
}

proptest! {
    /// The table finds exactly the subscriptions that want a message, each once, also after others have left.
    #[test]
    fn the_table_agrees_with_the_decision(
        interests in prop::collection::vec((wanted(), any::<bool>()), 1..12),
        topics in prop::collection::vec(prop::collection::vec(level(), 1..5), 1..6),
        key in prop::option::of(prop::sample::select(vec!["a", "b"])),
        reaches_below in any::<bool>(),
    ) {
        let hub = hub(&Settings::default());
        let mut live = Vec::new();
        let mut gone = Vec::new();
        for (id, (interest, leaves)) in (1..).zip(interests) {
            let outgoing = subscriber(id);
            let subscription = subscribe(&hub, &outgoing, interest);
            drain(&outgoing);
            if leaves { gone.push(subscription) } else { live.push((subscription, outgoing)) }
        }
        for subscription in &gone {
            hub.unsubscribe(subscription);
        }
        for levels in topics {
            let base = format!("app/{}", levels.join("/"));
            let message = publication(&base, key, reaches_below);
            let expected = live.iter().filter(|(it, _)| it.interest.wants(&message.message.origin).is_some()).count();
            prop_assert_eq!(hub.publish(&message, None).unwrap(), expected as u64);
            for (subscription, outgoing) in &live {
                let frames = drain(outgoing);
                match subscription.interest.wants(&message.message.origin) {
                    None => prop_assert!(frames.is_empty()),
                    Some(delivery) => {
                        let expected = message.message.frame(0, true, &delivery, super::Coming::Live);
                        prop_assert_eq!(frames, vec![expected], "{:?} gets {}", subscription.interest, base);
                    }
                }
            }
        }
        for (subscription, _) in &live {
            hub.unsubscribe(subscription);
        }
        prop_assert!(hub.state.lock().table.is_empty(), "nothing is left behind");
    }
}
