//! Publishing on a stepped clock: statements `K-…` of the wire protocol, `API-…` of client-api.

use std::time::Duration;

use bytes::Bytes;
use nolag_core::Error;
use nolag_core::event::{Event, Outcome, State, Warning};
use nolag_core::options::{Options, Overflow, PublishOptions, Qos, Qos0};
use nolag_core::session::{Call, FilterChange, Hint};
use nolag_protocol::frame::{AuthReply, ClientFrame, ErrorReply, Limits, Published};
use rmpv::Value;

#[path = "kit/mod.rs"]
mod kit;
use kit::*;

/// K-004: a broker that names no version speaks 1, and gets no `msgRef`; a publish resolves when it is written.
#[test]
fn version_one_gets_no_references() {
    let mut rig = Rig::new(quiet());
    rig.call(Call::Connect);
    rig.open();
    rig.server(AuthReply { protocol_version: None, ..accepted() });
    rig.forget();
    rig.subscribe("t");
    let request = rig.publish("t", 1);
    let ClientFrame::Subscribe(subscribe) = ClientFrame::decode(&rig.sent[0].1).unwrap() else { panic!() };
    assert_eq!(subscribe.msg_ref.0, None);
    let ClientFrame::Publish(publish) = ClientFrame::decode(&rig.sent[1].1).unwrap() else { panic!() };
    assert_eq!(publish.msg_ref.0, None);
    assert_eq!(rig.receipt(request).outcome, Outcome::Written);
}

/// K-014: a frame that led to 1009 is not sent again; what is smaller than what was accepted before is.
#[test]
fn what_was_too_big_is_not_sent_again() {
    let mut rig = Rig::connected(quiet());
    rig.publish("t", 1);
    rig.publish_all();
    let payload = pack(&Value::Binary(vec![0; 100_000]));
    let big = rig.call(Call::Publish { topic: "t".into(), payload, options: PublishOptions::default() });
    let small = rig.publish("t", 2);
    rig.forget();
    rig.close(1009, "");
    assert_eq!(rig.failure(big).code(), "message_too_large");
    rig.wait_for_attempt();
    rig.accept();
    assert_eq!(rig.frames(), ["auth t-1", "publish t 2"]);
    assert!(rig.is_open(small));
}

/// The reference of the publish that was written last.
fn last_ref(rig: &Rig) -> String {
    let (_, frame) = rig.history.last().unwrap();
    let ClientFrame::Publish(publish) = ClientFrame::decode(frame).unwrap() else { panic!() };
    publish.msg_ref.0.unwrap().to_owned()
}

/// K-037, API-048, API-099: what the broker would refuse is refused before it is sent, with its own words.
#[test]
fn what_is_wrong_is_not_sent() {
    let mut rig = Rig::new(Options { max_message_size: 10, ..quiet() });
    rig.call(Call::Connect);
    rig.open();
    rig.server(AuthReply {
        limits: Some(Limits { publishes_per_second: None, max_payload_bytes: Some(5) }),
        ..accepted()
    });
    rig.forget();
    let publish =
        |topic: &str, payload: Bytes, options| Call::Publish { topic: topic.into(), payload, options };
    let plain = PublishOptions::default;
    let cases = [
        (publish("a/+/b", number(1), plain()), "invalid_topic"),
        (publish("", number(1), plain()), "invalid_topic"),
        (publish("t", pack(&Value::Binary(vec![0; 8])), plain()), "message_too_large"),
        (publish("t", Bytes::from_static(&[0xc1]), plain()), "encode"),
        (publish("t", Bytes::from_static(&[1, 2]), plain()), "encode"),
        (publish("t", Bytes::from(vec![0x91; 1_000_000]), plain()), "encode"),
        (publish("t", number(1), PublishOptions { filter: Some("a|b".into()), ..plain() }), "invalid_filter"),
        (
            publish("t", number(1), PublishOptions { filters: vec![String::new()], ..plain() }),
            "invalid_filter",
        ),
        (
            publish("t", number(1), PublishOptions { filters: vec!["x".into(); 101], ..plain() }),
            "invalid_filter",
        ),
        (
            publish("t", number(1), PublishOptions { filter: Some("x".repeat(2_000_000)), ..plain() }),
            "message_too_large",
        ),
        (filtered("t", &["a/b"]), "invalid_filter_chars (/, #, +, | not allowed)"),
        (filtered("a/#/b", &[]), "invalid_topic"),
        (Call::Filters { topic: "nothing".into(), change: FilterChange::Set(vec![]) }, "not_subscribed"),
    ];
    for (call, code) in cases {
        let text = format!("{call:?}").chars().take(80).collect::<String>();
        let request = rig.call(call);
        assert_eq!(rig.failure(request).code(), code, "{text}");
    }
    let request = rig.call(publish("t", pack(&Value::Binary(vec![0; 8])), plain()));
    let Error::Server(server) = rig.failure(request) else { panic!() };
    assert_eq!(server.max_size_bytes, Some(5));
    assert!(rig.frames().is_empty());
    assert_eq!(rig.state(), State::Connected, "and the client is still usable");
}

/// K-055, API-050: what a publish carries.
#[test]
fn a_publish_as_it_is_asked_for() {
    let mut rig = Rig::connected(quiet());
    rig.publish("t", 1);
    let options = PublishOptions {
        qos: Some(Qos::ExactlyOnce),
        retain: true,
        no_echo: true,
        filter: Some("f".into()),
        filters: vec!["g".into()],
        msg_ref: Some("mine".into()),
        ..PublishOptions::default()
    };
    rig.publish_with("t", 2, options);
    let frames: Vec<_> = rig.sent.iter().map(|(_, frame)| frame.clone()).collect();
    let ClientFrame::Publish(plain) = ClientFrame::decode(&frames[0]).unwrap() else { panic!() };
    assert_eq!((plain.retain.0, plain.echo.0, plain.filter, plain.filters), (None, None, None, None));
    assert_eq!(plain.qos, Some(Qos::AtLeastOnce));
    let ClientFrame::Publish(full) = ClientFrame::decode(&frames[1]).unwrap() else { panic!() };
    assert_eq!((full.retain.0, full.echo.0, full.msg_ref.0), (Some(true), Some(false), Some("mine")));
    assert_eq!((full.filter.map(|raw| raw.0), full.filters), (Some(&[0xa1, b'f'][..]), None));
    assert!(rig.events.contains(&Event::Warning(Warning::QosReduced)), "API-045");
    rig.server(Published { duplicate: Some(true), level: Some("memory"), ..published("t", Some("mine")) });
    let receipt = rig.receipt(nolag_core::session::RequestId(3));
    assert_eq!((receipt.outcome, receipt.effective_qos), (Outcome::Duplicate, Qos::AtLeastOnce));
}

/// Wire protocol 12.3: quality 0 carries a reference only while a subscribe of its topic is pending.
#[test]
fn quality_zero_and_references() {
    let mut rig = Rig::connected(quiet());
    let has_ref = |rig: &Rig| {
        let ClientFrame::Publish(publish) = ClientFrame::decode(&rig.sent.back().unwrap().1).unwrap() else {
            panic!()
        };
        publish.msg_ref.0.is_some()
    };
    let request = rig.publish_qos0("t", 1);
    assert!(rig.is_done(request) && !has_ref(&rig));
    rig.subscribe("t");
    rig.publish_qos0("t", 2);
    assert!(has_ref(&rig));
    rig.publish_qos0("other", 3);
    assert!(!has_ref(&rig));
}

/// API-039: what has waited too long fails, and is never written.
#[test]
fn queued_messages_expire() {
    let mut rig = Rig::connected(quiet());
    rig.cut();
    let short = rig.publish_with("t", 1, PublishOptions { ttl: Some(ms(60)), ..PublishOptions::default() });
    let long = rig.publish("t", 2);
    rig.freeze(ms(49));
    assert!(rig.is_open(short));
    rig.freeze(ms(11));
    assert_eq!(rig.failure(short).code(), "queue_expired");
    rig.link.is_none().then(|| rig.wait_for_attempt());
    rig.forget();
    rig.accept();
    assert_eq!(rig.publish_all(), [2]);
    assert!(rig.is_done(long));
}

/// API-042: a thousand queued messages against 50 a second all succeed, and no second holds more than 45; `flushRate` is
/// a further bound on what was queued.
#[test]
fn publishes_are_paced() {
    for (limits, flush_rate, most) in [
        (None, None, 45),
        (Some(Limits { publishes_per_second: Some(100), max_payload_bytes: None }), None, 90),
        (None, Some(10), 10),
    ] {
        let mut options = quiet();
        options.queue.flush_rate = flush_rate;
        options.queue.max_messages = 5_000;
        let mut rig = Rig::new(options);
        rig.call(Call::Connect);
        let calls: Vec<_> = (0..1_000).map(|n| rig.publish("t", n)).collect();
        rig.open();
        rig.server(AuthReply { limits, ..accepted() });
        while calls.iter().any(|call| rig.is_open(*call)) {
            rig.publish_all();
            rig.wait(ms(5));
            assert!(rig.now < Duration::from_secs(200));
        }
        let written: Vec<_> = rig.history.iter().skip(1).map(|(at, _)| *at).collect();
        for (n, first) in written.iter().enumerate() {
            let within = written[n..].iter().take_while(|at| **at < *first + Duration::from_secs(1)).count();
            assert!(within <= most, "{within} within a second");
        }
    }
}

/// API-047: a refusal for the rate stops the line; the refused go again in order, before anything newer; the sixth refusal is
/// final.
#[test]
fn a_refusal_for_the_rate_stops_the_line() {
    let mut rig = Rig::connected(quiet());
    let calls: Vec<_> = (1..=4).map(|n| rig.publish("t", n)).collect();
    let refs: Vec<_> = (0..4).map(|n| rig.sent_ref(n)).collect();
    rig.forget();
    let refuse = |rig: &mut Rig, msg_ref: &str| {
        rig.server(ErrorReply { topic: Some("t"), msg_ref: Some(msg_ref), ..error("rate_limit_exceeded") });
    };
    rig.server(published("t", Some(&refs[0])));
    refuse(&mut rig, &refs[1]);
    let newer = rig.publish("t", 5);
    rig.wait(ms(400));
    assert!(rig.frames().is_empty(), "stopped, also for what is newer");
    refuse(&mut rig, &refs[2]);
    rig.server(published("t", Some(&refs[3])));
    rig.wait(ms(999));
    assert!(rig.frames().is_empty(), "until the second has turned");
    rig.wait(ms(202));
    assert_eq!(rig.frames(), ["publish t 2", "publish t 3", "publish t 5"]);
    assert!(rig.is_done(calls[0]) && rig.is_done(calls[3]) && rig.is_open(newer));
    rig.server(published("t", Some(&refs[2])));
    let newer_ref = rig.receipt(calls[2]).msg_ref.clone();
    assert_eq!(newer_ref.as_deref(), Some(refs[2].as_str()), "the same reference");
    for n in 2..=6 {
        refuse(&mut rig, &refs[1]);
        if n == 2 {
            // What was written with it is awaited first.
            let request = rig.results.len();
            rig.wait(ms(100));
            assert_eq!(rig.results.len(), request);
            let msg_ref = last_ref(&rig);
            rig.server(published("t", Some(&msg_ref)));
        }
        rig.wait(ms(1_201));
        if n < 6 {
            assert_eq!(rig.frames(), ["publish t 2"], "refusal {n}");
        }
    }
    assert_eq!(rig.failure(calls[1]).code(), "rate_limit_exceeded");
}

/// Features 8, client-api 7.5: a broker that cannot keep a message now refuses it like one over the rate. Without a reference it
/// cannot be sent again, and is told of.
#[test]
fn a_store_that_is_full() {
    let mut rig = Rig::connected(quiet());
    let (first, second) = (rig.publish("t", 1), rig.publish("t", 2));
    let (one, two) = (rig.sent_ref(0), rig.sent_ref(1));
    let subscribe = rig.subscribe("t");
    rig.publish_qos0("u", 3);
    let full = |msg_ref| ErrorReply { topic: Some("t"), msg_ref, ..error("store_full") };
    rig.server(full(None));
    assert_eq!(rig.errors().iter().map(Error::server_code).collect::<Vec<_>>(), [Some(42970)]);
    assert!(rig.is_open(subscribe), "K-026: it is no answer to a subscribe");
    rig.forget();
    rig.server(full(Some(&one)));
    rig.server(full(Some(&two)));
    assert!(rig.errors().is_empty(), "they go again by themselves");
    rig.wait(ms(999));
    assert!(rig.frames().is_empty(), "the line has stopped");
    rig.wait(ms(202));
    assert_eq!(rig.frames(), ["publish t 1", "publish t 2"]);
    rig.server(published("t", Some(&one)));
    assert_eq!(rig.receipt(first).attempts, 2);
    for _ in 0..5 {
        rig.server(full(Some(&two)));
        rig.wait(ms(1_201));
    }
    assert_eq!((rig.failure(second).code(), rig.failure(second).server_code()), ("store_full", Some(42970)));
}

/// F-09, API-043, API-044, features 3: what was not confirmed is sent again under the same reference, which no other client object
/// has; a broker that recognises it says so, and then quality 2 is what was given.
#[test]
fn a_copy_is_recognised() {
    let exactly_once = || PublishOptions { qos: Some(Qos::ExactlyOnce), ..PublishOptions::default() };
    let mut rig = Rig::granted(quiet(), &["dedupe"]);
    let calls = [rig.publish("t", 1), rig.publish_with("t", 2, exactly_once())];
    let refs = [rig.sent_ref(0), rig.sent_ref(1)];
    let (prefix, n) = refs[0].split_once('-').unwrap();
    assert!(prefix.len() == 8 && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{prefix}");
    n.parse::<u64>().unwrap();
    let mut other = Rig::seeded(quiet(), 8);
    other.call(Call::Connect);
    other.accept();
    other.forget();
    other.publish("t", 1);
    assert_ne!(other.sent_ref(0).split_once('-').unwrap().0, prefix);

    for _ in 0..3 {
        rig.reconnect(&["dedupe"]);
        let newer = rig.publish("t", 9);
        assert_eq!(rig.frames(), ["auth t-1", "publish t 1", "publish t 2", "publish t 9"]);
        let msg_ref = last_ref(&rig);
        assert!(!refs.contains(&msg_ref));
        rig.server(published("t", Some(&msg_ref)));
        assert!(rig.is_done(newer));
    }
    for (msg_ref, level) in refs.iter().zip([None, Some("disk")]) {
        rig.server(Published { duplicate: Some(true), level, ..published("t", Some(msg_ref)) });
    }
    let qualities = calls.map(|call| {
        let receipt = rig.receipt(call);
        assert_eq!((receipt.outcome, receipt.attempts), (Outcome::Duplicate, 4));
        (receipt.qos, receipt.effective_qos)
    });
    assert_eq!(qualities, [Qos::AtLeastOnce, Qos::ExactlyOnce].map(|qos| (qos, qos)));
    assert_eq!(rig.receipt(calls[1]).level.as_deref(), Some("disk"));
    assert_eq!(rig.receipt(calls[0]).level, None, "nothing keeps it");
    assert_eq!(rig.session.stats().published, 5);
}

/// API-045, client-api 7.2: quality 2 takes that every copy went to a broker that recognises copies, and remembers them; where one
/// does not, it is 1, with one warning a connection.
#[test]
fn quality_two_takes_dedupe_throughout() {
    let exactly_once = || PublishOptions { qos: Some(Qos::ExactlyOnce), ..PublishOptions::default() };
    let warnings = |rig: &Rig| {
        let warning = Event::Warning(Warning::QosReduced);
        rig.events.iter().filter(|event| **event == warning).count()
    };
    let (with, without): (&[&str], &[&str]) = (&["dedupe"], &[]);
    for (first, second, given) in [
        (with, with, Qos::ExactlyOnce),
        (with, without, Qos::AtLeastOnce),
        (without, with, Qos::AtLeastOnce),
        (without, without, Qos::AtLeastOnce),
    ] {
        let mut rig = Rig::granted(quiet(), first);
        let call = rig.publish_with("t", 1, exactly_once());
        rig.publish_with("t", 2, exactly_once());
        assert_eq!(warnings(&rig), usize::from(first == without));
        rig.reconnect(second);
        assert_eq!(warnings(&rig), usize::from(second == without));
        let msg_ref = last_ref(&rig);
        rig.publish_all();
        assert_eq!(rig.receipt(call).effective_qos, given, "{first:?} {second:?} {msg_ref}");
    }

    // A copy that is sent when the broker has forgotten the first may be delivered as well.
    let mut rig = Rig::granted(quiet(), with);
    let ttl = Some(Duration::from_secs(3_600));
    let call = rig.publish_with("t", 1, PublishOptions { ttl, ..exactly_once() });
    rig.cut();
    rig.session.hint(rig.now, Hint::Offline);
    rig.drain();
    rig.now += Duration::from_secs(600);
    rig.session.hint(rig.now, Hint::Online);
    rig.drain();
    rig.forget();
    rig.accept_with(with);
    rig.publish_all();
    assert_eq!(rig.receipt(call).effective_qos, Qos::AtLeastOnce);
    assert_eq!(warnings(&rig), 0);
}

/// API-078: a queued publish can be withdrawn, one in flight goes on without its caller.
#[test]
fn withdrawing_a_publish() {
    let mut rig = Rig::connected(Options { max_in_flight: 1, ..quiet() });
    let (written, queued) = (rig.publish("t", 1), rig.publish("t", 2));
    rig.session.cancel(rig.now, queued);
    rig.session.cancel(rig.now, written);
    rig.drain();
    assert_eq!(
        rig.failure(queued),
        &Error::Closed { what: nolag_core::error::Ended::Aborted, outcome_unknown: false }
    );
    assert!(rig.failure(written).outcome_unknown());
    assert_eq!(rig.publish_all(), [1]);
    assert_eq!(rig.session.stats().open_calls, 0);
    // Withdrawing a connect nobody else waits for closes the socket.
    let mut rig = Rig::new(quiet());
    let connect = rig.call(Call::Connect);
    rig.session.cancel(rig.now, connect);
    rig.drain();
    assert_eq!((rig.state(), rig.link), (State::Closed, None));
}

/// Client-api 7.3: `block` holds the call until there is room.
#[test]
fn calls_can_be_held() {
    let mut options = quiet();
    options.queue.max_messages = 2;
    options.queue.overflow = Overflow::Block;
    options.queue.qos0 = Qos0::Queue;
    let mut rig = Rig::new(options);
    rig.call(Call::Connect);
    let calls: Vec<_> = (0..5).map(|n| rig.publish("t", n)).collect();
    assert_eq!(rig.failure(calls[4]).code(), "queue_full", "of held ones there is an end too");
    assert_eq!(rig.session.stats().outbox.held, 2);
    rig.accept();
    assert_eq!(rig.publish_all(), [0, 1, 2, 3]);
}
