//! What client-api promises beside the lives of connections, subscriptions and publishes that other files follow: bounds, counters,
//! single calls, presence at the ends of a life.

use std::time::Duration;

use bytes::Bytes;
use nolag_core::error::ConnectionCode;
use nolag_core::event::{Change, Event, State, Warning};
use nolag_core::options::{Credentials, Options, PublishOptions, Qos, Secret, SubscribeOptions};
use nolag_core::session::{Call, Dispatched, FilterChange, Hint, Stats, Transport};
use nolag_protocol::frame::{
    AuthReply, BatchAck, ClientFrame, Data, ErrorReply, PresenceEvent, PresenceList,
};
use rmpv::Value;

#[path = "kit/mod.rs"]
mod kit;
use kit::*;

fn refused() -> Transport {
    Transport::Failed { code: ConnectionCode::Refused, message: "refused".into(), retry_after: None }
}

/// API-014, API-016: a hundred clients that lose one broker spread their first three attempts; whatever the number of failures, no
/// wait leaves its bounds, and none is over 30 s.
#[test]
fn a_hundred_clients_come_back() {
    let mut attempts = Vec::new();
    for seed in 0..100 {
        let options = Options::new(options().credentials);
        let mut rig = Rig::seeded(Options { heartbeat_interval: Duration::ZERO, ..options }, seed);
        rig.call(Call::Connect);
        rig.accept();
        rig.wait(Duration::from_secs(60));
        let lost = rig.now;
        rig.cut();
        for n in 0..10 {
            let waited = rig.wait_for_attempt();
            let full = ms(500 << n).min(Duration::from_secs(30));
            assert!(waited >= full / 2 && waited <= full + ms(1), "{waited:?} after {n} failures");
            if n < 3 {
                attempts.push(rig.now.saturating_sub(lost));
            }
            rig.transport(refused());
        }
    }
    for window in 0..700 {
        let window = ms(window * 10)..ms(window * 10 + 100);
        let within = attempts.iter().filter(|at| window.contains(at)).count();
        assert!(within * 10 <= attempts.len() * 3, "{within} of {} in {window:?}", attempts.len());
    }
}

/// API-030: subscribing again, equally, while a connection is being restored sends nothing more, and is answered with it.
#[test]
fn the_same_again_while_connecting() {
    let mut rig = Rig::new(quiet());
    rig.call(Call::Connect);
    let first = rig.subscribe("t");
    rig.accept();
    assert!(rig.events.iter().any(|event| matches!(event, Event::Connected { .. })));
    let again = rig.subscribe("t");
    assert_eq!(rig.frames(), ["auth t-1", "subscribe t"]);
    rig.server(subscribed("t"));
    assert!(rig.is_done(first) && rig.is_done(again));
    assert!(rig.frames().is_empty());
}

/// API-052, client-api 7.3: a flush is done when nothing is queued or in flight, or over with its time.
#[test]
fn flushing() {
    let mut rig = Rig::connected(Options { max_in_flight: 1, ..quiet() });
    let at_once = rig.call(Call::Flush { timeout: None });
    assert!(rig.is_done(at_once));
    for n in 1..=2 {
        rig.publish("t", n);
    }
    let short = rig.call(Call::Flush { timeout: Some(ms(100)) });
    let long = rig.call(Call::Flush { timeout: None });
    rig.wait(ms(100));
    assert_eq!(rig.failure(short).code(), "flush_timeout");
    let msg_ref = rig.sent_ref(0);
    rig.server(published("t", Some(&msg_ref)));
    assert!(rig.is_open(long), "one is in flight still");
    rig.sent.pop_front();
    assert_eq!(rig.publish_all(), [2]);
    assert!(rig.is_done(long));
}

/// Client-api 7.3, 7.4: quality 0 that was not written when the connection went is dropped as if it had come then; without a queue
/// nothing is kept, but what is in flight goes again.
#[test]
fn what_is_not_kept_over_a_loss() {
    let mut rig = Rig::new(quiet());
    rig.call(Call::Connect);
    rig.open();
    rig.server(AuthReply { limits: None, ..accepted() });
    let casual: Vec<_> = (0..46).map(|n| rig.publish_qos0("t", n)).collect();
    assert!(rig.is_done(casual[44]) && rig.is_open(casual[45]), "45 a second");
    rig.cut();
    assert_eq!(rig.failure(casual[45]).code(), "not_connected");

    let mut options = Options { max_in_flight: 1, ..quiet() };
    options.queue.enabled = false;
    let mut rig = Rig::connected(options);
    let (written, waiting) = (rig.publish("t", 1), rig.publish("t", 2));
    rig.cut();
    let offline = rig.publish("t", 3);
    assert_eq!(
        (rig.failure(waiting).code(), rig.failure(offline).code()),
        ("not_connected", "not_connected")
    );
    rig.wait_for_attempt();
    rig.forget();
    rig.accept();
    assert_eq!(rig.publish_all(), [1]);
    assert!(rig.is_done(written));
}

/// Client-api 12.1: while the transport takes nothing, publishes wait in their queue whatever their quality, and everything else goes
/// out; a new connection takes all.
#[test]
fn a_transport_that_takes_nothing() {
    let mut rig = Rig::connected(quiet());
    rig.session.hold_publishes(rig.now, true);
    let calls = [rig.publish("t", 1), rig.publish_qos0("t", 2)];
    rig.subscribe("t");
    rig.wait(Duration::from_secs(10));
    rig.session.wake(rig.now);
    rig.drain();
    assert_eq!(rig.frames(), ["subscribe t"]);
    assert_eq!(rig.session.stats().outbox.oldest, Some(Duration::from_secs(10)));
    rig.session.hold_publishes(rig.now, false);
    rig.drain();
    assert_eq!(rig.frames(), ["publish t 1", "publish t 2"]);
    assert!(rig.is_open(calls[0]) && rig.is_done(calls[1]));
    rig.session.hold_publishes(rig.now, true);
    rig.cut();
    rig.wait_for_attempt();
    rig.forget();
    rig.accept();
    rig.server(subscribed("t"));
    assert_eq!(rig.publish_all(), [1]);
}

/// K-043, client-api 7.4, 8.4: acknowledgements wait for a connection, ten thousand at most, and go a thousand to a frame.
#[test]
fn acknowledgements_that_wait() {
    let mut rig = Rig::connected(quiet());
    rig.cut();
    let ids = (0..10_002).map(|n| format!("m-{n}")).collect();
    rig.call(Call::Ack { ids });
    let warnings = rig.events.iter().filter(|event| **event == Event::Warning(Warning::AcksDropped));
    assert_eq!(warnings.count(), 1, "once, for two that were dropped");
    assert_eq!(rig.session.stats().ack_backlog, 10_000);
    rig.wait_for_attempt();
    rig.forget();
    rig.accept();
    let acked = rig.sent.iter().skip(1).map(|(_, frame)| match ClientFrame::decode(frame).unwrap() {
        ClientFrame::BatchAck(BatchAck { msg_ids }) => msg_ids.0.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(acked.collect::<Vec<_>>(), [1_000; 10]);
}

/// K-034, K-035: whatever a payload holds is handed out byte for byte: integers of 64 bits, NaN, extensions, keys that are no text.
#[test]
fn any_payload() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    let odd = vec![
        Value::from(u64::MAX),
        Value::from(i64::MIN),
        Value::from(f64::NAN),
        Value::from(f32::INFINITY),
        Value::Ext(-1, vec![0, 0, 0, 1]),
        Value::Ext(42, vec![7; 3]),
        Value::Map(vec![(1.into(), Value::Nil), (Value::Binary(vec![0xff]), true.into())]),
    ];
    let data = pack(&Value::Array(odd));
    rig.server(message("t", None, &data));
    assert_eq!(rig.messages()[0].data, data);
    let sent = rig.call(Call::Publish {
        topic: "t".into(),
        payload: data.clone(),
        options: PublishOptions::default(),
    });
    assert!(rig.is_open(sent));
    let ClientFrame::Publish(publish) = ClientFrame::decode(&rig.sent[0].1).unwrap() else { panic!() };
    assert_eq!(publish.data.bytes, data);
}

/// K-042: subscribing, unsubscribing and changing filters need nothing from the handler that does so.
#[test]
fn subscribing_within_a_handler() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    rig.server(message("t", Some("m-1"), &number(1)));
    let delivery = rig.messages()[0].delivery;
    let (one, other) = (rig.subscribe("u"), rig.unsubscribe("t"));
    assert_eq!(rig.frames(), ["subscribe u", "unsubscribe t"]);
    rig.server(subscribed("u"));
    rig.server(unsubscribed("t"));
    assert!(rig.is_done(one) && rig.is_done(other));
    rig.session.dispatched(rig.now, Dispatched::UpTo(delivery));
    rig.drain();
    assert_eq!(rig.frames(), ["ack m-1"], "it was handled, though nobody wants more of them");
}

/// Client-api 6: taking filters from a topic that has none is no failure, and needs no frame.
#[test]
fn filters_that_are_not_there() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    for topic in ["t", "unknown"] {
        let change = FilterChange::Remove(vec!["a".into()]);
        let request = rig.call(Call::Filters { topic: topic.into(), change });
        assert!(rig.is_done(request), "{topic}");
    }
    assert!(rig.frames().is_empty());
}

fn presence(rig: &mut Rig, event: &str, pairs: &[(&str, Value)]) {
    let data = map(pairs);
    rig.server(PresenceEvent { event, app: None, room_id: Some("r"), data: Data::new(&data) });
}

fn list(rig: &mut Rig, room: &str, entries: Vec<Value>) {
    let data = pack(&Value::Array(entries));
    let data = Data::new(&data);
    rig.server(PresenceList { app: None, room_id: Some(room), data, truncated: None, msg_ref: None });
}

fn entry(id: &str) -> Value {
    Value::Map(vec![("actorTokenId".into(), id.into())])
}

fn changes(rig: &mut Rig) -> Vec<(Change, String)> {
    let changes = rig.events.drain(..).filter_map(|event| match event {
        Event::Presence(change, actor) => Some((change, actor.actor_id)),
        _ => None,
    });
    changes.collect()
}

/// API-066: a roster is empty after `disconnect`, stays through a loss, and is put right by the list that follows a reconnect.
#[test]
fn rosters_over_a_life() {
    let mut rig = Rig::connected(quiet());
    rig.call(Call::SetPresence { room: Some(room("r")), data: Some(number(1)) });
    list(&mut rig, "r", vec![entry("me"), entry("ann")]);
    let members = |rig: &Rig| rig.session.roster(&room("r")).count();
    assert_eq!(members(&rig), 2);
    rig.forget();
    rig.cut();
    assert_eq!(members(&rig), 2);
    rig.wait_for_attempt();
    rig.accept();
    list(&mut rig, "r", vec![entry("me"), entry("bob")]);
    assert_eq!(changes(&mut rig), [(Change::Leave, "ann".into()), (Change::Join, "bob".into())]);
    rig.call(Call::Disconnect);
    assert_eq!(members(&rig), 0);
    rig.call(Call::Connect);
    rig.accept();
    list(&mut rig, "r", vec![entry("me")]);
    assert_eq!(changes(&mut rig), [(Change::Join, "me".into())]);
}

/// K-048, API-062, API-065: an actor is the same in either spelling, in an event and in a list; `waking` is told.
#[test]
fn actors_as_they_are_spelled() {
    let mut rig = Rig::connected(quiet());
    rig.call(Call::SetPresence { room: Some(room("r")), data: Some(number(1)) });
    list(&mut rig, "r", vec![entry("me")]);
    rig.forget();
    let spelled = |id: &'static str, kind: &'static str, joined: &'static str, version: &'static str| {
        [
            (id, Value::from("ann")),
            (kind, "user".into()),
            ("presence", 5.into()),
            (joined, 7.into()),
            ("status", "online".into()),
            (version, 3.into()),
        ]
    };
    let mut told = Vec::new();
    for pairs in [
        spelled("actorTokenId", "actorType", "joinedAt", "advertisementVersion"),
        spelled("actor_token_id", "actor_type", "joined_at", "advertisement_version"),
    ] {
        presence(&mut rig, "join", &pairs);
        presence(&mut rig, "leave", &pairs[..1]);
        told.push(rig.take_events());
        let record = pairs.iter().map(|(key, value)| ((*key).into(), value.clone())).collect();
        rig.call(Call::FetchPresence { room: room("r") });
        list(&mut rig, "r", vec![entry("me"), Value::Map(record)]);
        presence(&mut rig, "leave", &pairs[..1]);
        told.push(rig.take_events());
    }
    assert_eq!(told[0], told[1]);
    assert_eq!((&told[0], &told[1]), (&told[2], &told[3]));
    let Event::Presence(Change::Join, ann) = &told[0][0] else { panic!("{told:?}") };
    assert_eq!(
        (ann.actor_type.as_deref(), ann.joined_at, ann.advertisement_version),
        (Some("user"), Some(7.0), Some(3))
    );
    presence(&mut rig, "waking", &[("actor_token_id", "device".into())]);
    assert_eq!(changes(&mut rig), [(Change::Waking, "device".into())]);
}

/// Client-api 9, features 4: presence without a room is warned of once; a client is in 64 rooms at most.
#[test]
fn bounds_of_presence() {
    let mut rig = Rig::connected(quiet());
    for _ in 0..2 {
        rig.call(Call::SetPresence { room: None, data: Some(number(1)) });
    }
    assert_eq!(rig.take_events(), [Event::Warning(Warning::PresenceWithoutRoom)]);
    let calls: Vec<_> = (0..65)
        .map(|n| rig.call(Call::SetPresence { room: Some(room(&format!("r{n}"))), data: Some(number(1)) }))
        .collect();
    assert!(rig.is_done(calls[63]));
    assert_eq!(rig.failure(calls[64]).code(), "queue_full");
    rig.call(Call::SetPresence { room: Some(room("r0")), data: None });
    let again = rig.call(Call::SetPresence { room: Some(room("r64")), data: Some(number(1)) });
    assert!(rig.is_done(again));
}

/// Client-api 11, 2.2: another static token counts from the next attempt on, also after the first was refused.
#[test]
fn another_token() {
    let mut rig = Rig::connected(quiet());
    rig.close(4001, "token_revoked");
    assert_eq!(rig.state(), State::Failed);
    rig.call(Call::UpdateToken { token: Secret::new("t-2") });
    rig.call(Call::Connect);
    rig.open();
    assert_eq!(rig.frames(), ["auth t-2"]);
}

/// Client-api 11: a provider that hangs has as long as the broker; then the attempt has failed, and the next one asks again.
#[test]
fn a_provider_that_hangs() {
    let mut rig = Rig::new(Options { credentials: Credentials::Provider, ..quiet() });
    rig.call(Call::Connect);
    rig.open();
    rig.wait(Duration::from_secs(10));
    assert_eq!(rig.errors().last().unwrap().code(), "auth_timeout");
    assert_eq!((rig.state(), rig.closed.len()), (State::Backoff, 1));
    let late = rig.token_calls[0].0;
    rig.wait_for_attempt();
    rig.open();
    let token = nolag_core::session::Token { secret: Secret::new("late"), expires_in: None };
    rig.session.token(rig.now, late, Ok(token));
    rig.drain();
    assert!(rig.frames().is_empty(), "an answer to an earlier call is none");
    rig.token("T2");
    assert_eq!(rig.frames(), ["auth T2"]);
}

/// API-068, client-api 10.2: there is one heartbeat at a time, anything that comes answers it, and an echo tells the round trip.
#[test]
fn one_heartbeat_at_a_time() {
    let seconds = Duration::from_secs;
    let mut rig = Rig::connected(Options {
        heartbeat_interval: seconds(10),
        heartbeat_timeout: seconds(60),
        ..options()
    });
    let beats = |rig: &Rig| rig.history.iter().filter(|(_, frame)| frame.is_empty()).count();
    rig.freeze(seconds(45));
    assert_eq!(beats(&rig), 1);
    rig.server(message("nobody's", None, &number(1)));
    rig.freeze(seconds(10));
    assert_eq!(beats(&rig), 2);
    rig.freeze(ms(30));
    rig.transport(Transport::Frame(Bytes::new()));
    assert!(rig.session.stats().round_trip.is_some_and(|time| time >= ms(30)));
    rig.freeze(seconds(64));
    assert_eq!(rig.state(), State::Connected, "sixty seconds after the third one");
    rig.freeze(seconds(2));
    assert_ne!(rig.state(), State::Connected);
}

/// Client-api 10.4: what is to be acknowledged is written before the application sleeps.
#[test]
fn acknowledged_before_a_sleep() {
    let mut rig = Rig::connected(Options { ack_batch_interval: Duration::from_secs(5), ..quiet() });
    rig.subscribed("t");
    rig.server(message("t", Some("m-1"), &number(1)));
    let delivery = rig.messages()[0].delivery;
    rig.session.dispatched(rig.now, Dispatched::UpTo(delivery));
    rig.session.hint(rig.now, Hint::Suspend);
    rig.drain();
    assert_eq!(rig.frames(), ["ack m-1"]);
}

/// F-15: the bound in a refusal of `auth` counts as well; features 8: 4004 passes.
#[test]
fn bounds_on_the_next_attempt() {
    let mut rig = Rig::new(quiet());
    rig.call(Call::Connect);
    rig.open();
    rig.server(AuthReply {
        success: false,
        error: Some("broker_unavailable"),
        retry_after_ms: Some(7_000),
        ..accepted()
    });
    assert!(rig.wait_for_attempt() >= Duration::from_secs(7));
    rig.accept();
    rig.close(4004, "auth_unavailable");
    assert_eq!(
        rig.errors().last().map(|error| (error.code(), error.fatal())),
        Some(("auth_unavailable", false))
    );
    assert!(rig.wait_for_attempt() < Duration::from_secs(7));
}

/// API-095: a refusal of the broker's reaches its call and the `error` event, once each; one of a publish that nobody waits for, and
/// one of nobody's, are events.
#[test]
fn a_refusal_is_told_once() {
    let mut rig = Rig::connected(quiet());
    let subscribe = rig.subscribe("t");
    let publish = rig.publish("u", 1);
    let (sub_ref, pub_ref) = (rig.sent_ref(0), rig.sent_ref(1));
    for (topic, msg_ref) in [("t", Some(&*sub_ref)), ("u", Some(&*pub_ref)), ("v", None)] {
        rig.server(ErrorReply { topic: Some(topic), msg_ref, ..error("unknown_topic") });
    }
    let told: Vec<_> = rig.errors();
    assert_eq!((rig.failure(subscribe), rig.failure(publish)), (&told[0], &told[1]));
    assert_eq!((told.len(), told[2].topic()), (3, Some("v")));
}

/// Of the counters those that only rise (client-api 14).
fn counters(stats: &Stats) -> [u128; 19] {
    [
        stats.connects.into(),
        stats.connect_failures.into(),
        stats.reconnects.into(),
        stats.downtime.as_nanos(),
        stats.frames_in.into(),
        stats.frames_out.into(),
        stats.bytes_in.into(),
        stats.bytes_out.into(),
        stats.published.into(),
        stats.published_again.into(),
        stats.publish_failures.into(),
        stats.queue_dropped.into(),
        stats.queue_expired.into(),
        stats.received.into(),
        stats.handler_errors.into(),
        stats.gaps.into(),
        stats.acks_sent.into(),
        stats.duplicates.into(),
        stats.decode_errors.into(),
    ]
}

/// API-097: counters only rise, and each counts something, over a life with losses, repeats, failures and garbage.
#[test]
fn counters_only_rise() {
    let mut rig = Rig::connected(Options { max_in_flight: 3, ..options() });
    let mut before = counters(&rig.session.stats());
    let mut look = |rig: &Rig| {
        let now = counters(&rig.session.stats());
        assert!(before.iter().zip(&now).all(|(before, now)| before <= now), "{before:?}, then {now:?}");
        before = now;
    };
    rig.subscribed("t");
    for round in 0..3 {
        rig.publish("t", 1);
        rig.publish("t", 2);
        let refs = [rig.sent_ref(0), rig.sent_ref(1)];
        rig.server(nolag_protocol::frame::Published {
            duplicate: Some(true),
            ..published("t", Some(&refs[0]))
        });
        rig.server(ErrorReply { topic: Some("t"), msg_ref: Some(&refs[1]), ..error("unknown_topic") });
        for id in ["a", "b", "b"] {
            rig.server(message("t", Some(&format!("{id}-{round}")), &number(1)));
        }
        look(&rig);
        rig.transport(Transport::Frame(Bytes::from_static(&[0xc1])));
        let deliveries: Vec<_> = rig.messages().iter().map(|message| message.delivery).collect();
        rig.session
            .dispatched(rig.now, Dispatched::Finished(vec![(deliveries[0], true), (deliveries[1], false)]));
        rig.drain();
        look(&rig);
        rig.wait(ms(300));
        rig.cut();
        let short = PublishOptions { ttl: Some(ms(10)), ..PublishOptions::default() };
        rig.publish_with("t", 3, short);
        rig.wait_for_attempt();
        rig.transport(refused());
        rig.wait_for_attempt();
        look(&rig);
        rig.forget();
        rig.accept();
        rig.server(subscribed("t"));
        look(&rig);
        rig.forget();
    }
    let missing = before.iter().position(|count| *count == 0);
    assert_eq!(missing, None, "{before:?}");
    let stats = rig.session.stats();
    assert_eq!((stats.connects, stats.connect_failures, stats.reconnects), (4, 3, 3));
    assert_eq!((stats.published, stats.published_again, stats.publish_failures), (3, 3, 3));
    assert_eq!((stats.queue_dropped, stats.queue_expired, stats.gaps), (3, 3, 3));
    assert_eq!((stats.received, stats.handler_errors, stats.duplicates, stats.decode_errors), (6, 3, 3, 3));
    assert_eq!((stats.publish_latency, stats.outbox.queued), (Some(ms(0)), 0));
}

/// API-100: a thousand losses leave nothing behind: what is held for a client is what it wants.
#[test]
fn a_thousand_losses() {
    let mut rig = Rig::connected(quiet());
    for n in 0..100 {
        rig.subscribed(&format!("t/{n}"));
    }
    for round in 0..1_000 {
        rig.cut();
        rig.publish_with(
            "t/0",
            round,
            PublishOptions { qos: Some(Qos::AtLeastOnce), ..PublishOptions::default() },
        );
        rig.wait_for_attempt();
        rig.forget();
        rig.accept();
        for n in 0..100 {
            rig.server(subscribed(&format!("t/{n}")));
        }
        assert_eq!(rig.publish_all(), [round]);
        rig.forget();
        rig.history.clear();
        let stats = rig.session.stats();
        assert_eq!(
            (stats.topics, stats.open_calls, stats.pending_requests, stats.outbox.queued),
            (100, 0, 0, 0)
        );
        assert_eq!((stats.outbox.in_flight, stats.ack_backlog, stats.remembered_ids), (0, 0, 0));
    }
}

/// Appendix B: a subscribe whose answer does not come stays wanted, and one that is wrong is not wanted at all.
#[test]
fn what_stays_wanted() {
    let mut rig = Rig::connected(quiet());
    let late = rig.subscribe("t");
    let options = SubscribeOptions {
        filters: vec![nolag_core::options::Filter::Value("a/b".into())],
        ..SubscribeOptions::default()
    };
    let wrong = rig.call(Call::Subscribe { topic: "u".into(), options });
    rig.wait(ms(500));
    assert_eq!(rig.failure(late).code(), "ack_timeout");
    assert_eq!(rig.failure(wrong).code(), "invalid_filter_chars (/, #, +, | not allowed)");
    assert_eq!(rig.session.subscriptions().map(|(topic, _)| &**topic).collect::<Vec<_>>(), ["t"]);
    rig.cut();
    rig.wait_for_attempt();
    rig.forget();
    rig.accept();
    assert_eq!(rig.frames(), ["auth t-1", "subscribe t"]);
}
