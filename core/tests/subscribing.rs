//! Subscriptions, messages, lobbies and recovery on a stepped clock: statements `K-…` of the wire protocol, `API-…` of
//! client-api.

use std::time::Duration;

use nolag_core::Error;
use nolag_core::event::{Change, Event, State};
use nolag_core::options::{AckMode, Filter, Group, Options, SubscribeOptions};
use nolag_core::session::{Call, Dispatched, FilterChange, Reply, Transport};
use nolag_protocol::frame::{
    ClientFrame, Data, ErrorReply, FiltersUpdated, Hydration, LobbyPresence, LobbySubscribed, Nilable,
    PresenceList, ReplayEnd, ReplayStart, Unsubscribed,
};
use rmpv::Value;

#[path = "kit/mod.rs"]
mod kit;
use kit::*;

fn filters_of(frame: &[u8]) -> Vec<String> {
    let raw = match ClientFrame::decode(frame).unwrap() {
        ClientFrame::Subscribe(frame) => frame.filters.map(|raw| raw.0),
        ClientFrame::SetFilters(frame) => Some(frame.filters.0),
        other => panic!("{other:?}"),
    };
    nolag_protocol::filter::subscription_keys(raw).unwrap()
}

/// K-020, K-023, API-024, API-027, API-031, API-034, API-035: everything is restored, in this order, and told in this order.
#[test]
fn recovery() {
    let mut rig = Rig::new(quiet());
    let named = SubscribeOptions { group: Some(Group::Named("g".into())), ..SubscribeOptions::default() };
    rig.call(Call::Subscribe { topic: "b".into(), options: named });
    rig.subscribe("a");
    for name in ["one", "two"] {
        rig.call(Call::SetPresence { room: Some(room(name)), data: Some(number(1)) });
    }
    rig.call(Call::SetPresence { room: Some(room("one")), data: Some(number(2)) });
    rig.call(Call::Connect);
    rig.call(Call::WatchLobby { lobby: "main".into() });
    let empty =
        LobbySubscribed { lobby_id: "main", presence: Data::new(&[0x80]), truncated: None, msg_ref: None };
    let list = |room| PresenceList {
        app: None,
        room_id: Some(room),
        data: Data::new(&[0x90]),
        truncated: None,
        msg_ref: None,
    };
    let expected = [
        "auth t-1",
        "subscribe b",
        "subscribe a",
        "presence two",
        "getPresence two",
        "presence one",
        "getPresence one",
        "lobbySubscribe main",
    ];
    for round in 0..2 {
        rig.accept();
        let queued = rig.publish("a", round);
        assert_eq!(rig.frames(), expected, "round {round}");
        let connected = rig.events.iter().position(|event| matches!(event, Event::Connected { .. }));
        assert!(connected.is_some());
        assert!(!rig.events.iter().any(|event| matches!(event, Event::Ready(_))));
        rig.server(subscribed("b"));
        rig.server(subscribed("a"));
        rig.server(list("two"));
        rig.server(list("one"));
        assert!(rig.frames().is_empty(), "the queue waits for the recovery");
        rig.server(empty.clone());
        assert_eq!(rig.frames(), [format!("publish a {round}")]);
        let mut names = Vec::new();
        for event in rig.take_events() {
            match event {
                Event::Disconnected { .. } => names.push("disconnect"),
                Event::Reconnecting { .. } => names.push("reconnecting"),
                Event::Connected { .. } => names.push("connect"),
                Event::Gap(gap) => {
                    assert_eq!((&*gap.topic, gap.reason.as_str()), ("a", "unsupported"));
                    names.push("gap");
                }
                Event::Ready(ready) => {
                    assert_eq!(ready.resubscribed.iter().map(|t| &**t).collect::<Vec<_>>(), ["b", "a"]);
                    assert!(!ready.resumed);
                    names.push("ready");
                }
                Event::Reconnected => names.push("reconnect"),
                _ => {}
            }
        }
        if round == 0 {
            assert_eq!(names, ["connect", "ready"]);
        } else {
            assert_eq!(names, ["disconnect", "reconnecting", "connect", "gap", "ready", "reconnect"]);
        }
        let msg_ref = last_ref(&rig);
        rig.server(published("a", Some(&msg_ref)));
        assert!(rig.is_done(queued));
        rig.cut();
        rig.wait_for_attempt();
    }
}

/// The reference of the publish that was written last.
fn last_ref(rig: &Rig) -> String {
    let (_, frame) = rig.history.last().unwrap();
    let ClientFrame::Publish(publish) = ClientFrame::decode(frame).unwrap() else { panic!() };
    publish.msg_ref.0.unwrap().to_owned()
}

/// API-028, K-056, client-api 6: filters are what is wanted, whenever they were changed; groups stay.
#[test]
fn filters_survive() {
    let mut rig = Rig::connected(quiet());
    let group = Filter::Group(vec!["X".into(), "y".into()]);
    let filters = vec![Filter::Value("a".into()), group];
    rig.call(Call::Subscribe {
        topic: "t".into(),
        options: SubscribeOptions { filters, ..SubscribeOptions::default() },
    });
    rig.server(subscribed("t"));
    rig.forget();
    let change = |change| Call::Filters { topic: "t".into(), change };
    let add = rig.call(change(FilterChange::Add(vec!["b".into()])));
    assert_eq!(filters_of(&rig.sent[0].1), ["a", "b", "x|y"]);
    rig.server(FiltersUpdated { topic: "t", filters: None, msg_ref: None });
    assert!(rig.is_done(add));
    rig.cut();
    let remove = rig.call(change(FilterChange::Remove(vec!["a".into()])));
    rig.wait_for_attempt();
    rig.forget();
    rig.accept();
    assert_eq!(filters_of(&rig.sent[1].1), ["b", "x|y"]);
    assert!(rig.is_open(remove), "after the recovery");
    rig.server(subscribed("t"));
    assert!(rig.is_done(remove));
    // A refusal leaves what was before.
    rig.forget();
    let set = rig.call(change(FilterChange::Set(vec![Filter::Value("c".into())])));
    rig.server(ErrorReply { topic: Some("t"), ..error("invalid_message") });
    assert_eq!(rig.failure(set).code(), "invalid_message");
    rig.cut();
    rig.wait_for_attempt();
    rig.forget();
    rig.accept();
    assert_eq!(filters_of(&rig.sent[1].1), ["b", "x|y"]);
}

/// Client-api 6: equal options need no frame; others replace; what the broker does not have is subscribed instead.
#[test]
fn subscribing_again() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    let again = rig.subscribe("t");
    assert!(rig.is_done(again));
    assert!(rig.frames().is_empty());
    rig.call(filtered("t", &["a"]));
    assert_eq!(rig.frames(), ["subscribe t"]);
    rig.server(subscribed("t"));
    let set = rig.call(Call::Filters { topic: "t".into(), change: FilterChange::Set(vec![]) });
    assert_eq!(rig.frames(), ["setFilters t"]);
    rig.server(ErrorReply { topic: Some("t"), ..error("not_subscribed") });
    assert_eq!(rig.frames(), ["subscribe t"]);
    rig.server(subscribed("t"));
    assert!(rig.is_done(set));
}

/// K-024, K-025, K-026, K-027, K-031, K-032: which answer settles what.
#[test]
fn answers_settle_what_they_belong_to() {
    let mut rig = Rig::connected(quiet());
    let (subscribe, publish) = (rig.subscribe("t"), rig.publish("t", 1));
    let (sub_ref, pub_ref) = (rig.sent_ref(0), rig.sent_ref(1));
    assert!(rig.is_open(subscribe), "not settled by sending");
    for name in ["monthly_quota_exceeded", "message_too_large", "rate_limit_exceeded"] {
        rig.server(ErrorReply { topic: Some("t"), ..error(name) });
        assert!(rig.is_open(subscribe) && rig.is_open(publish), "{name}");
    }
    rig.server(published("t", None));
    rig.server(published("t", Some(&sub_ref)));
    rig.server(published("t", Some("unknown")));
    assert!(rig.is_open(subscribe) && rig.is_open(publish));
    rig.server(ErrorReply {
        topic: Some("t"),
        msg_ref: Some(&pub_ref),
        hint: Some("ask"),
        ..error("unknown_topic")
    });
    assert!(rig.is_open(subscribe));
    let failure = rig.failure(publish);
    assert_eq!(
        (failure.code(), failure.server_code(), failure.topic(), failure.hint()),
        ("unknown_topic", Some(42940), Some("t"), Some("ask"))
    );
    let events = rig.errors();
    assert_eq!(events.len(), 4, "each one is an event too");
    rig.server(nolag_protocol::frame::Subscribed { msg_ref: Some(&sub_ref), ..subscribed("t") });
    assert!(rig.is_done(subscribe));
    rig.server(ErrorReply { topic: Some("elsewhere"), ..error("never heard of") });
    assert_eq!(rig.state(), State::Connected);

    // Without references, by request order.
    let lists = [
        rig.call(Call::FetchPresence { room: room("r") }),
        rig.call(Call::FetchPresence { room: room("r") }),
    ];
    let other = rig.call(Call::FetchPresence { room: room("s") });
    let data = pack(&Value::Array(vec![Value::Map(vec![("actorTokenId".into(), "x".into())])]));
    let list = |room, data| PresenceList {
        app: None,
        room_id: Some(room),
        data: Data::new(data),
        truncated: None,
        msg_ref: None,
    };
    rig.server(list("r", &data));
    assert!(rig.is_done(lists[0]) && rig.is_open(lists[1]) && rig.is_open(other), "API-063");
    rig.server(list("s", &[0x90]));
    assert!(rig.is_done(other) && rig.is_open(lists[1]));
}

/// K-028: a late answer settles what timed out, not what came after.
#[test]
fn a_late_answer_is_no_answer_to_the_next() {
    let mut rig = Rig::connected(quiet());
    let first = rig.call(Call::FetchPresence { room: room("r") });
    rig.wait(Duration::from_secs(10));
    assert_eq!(rig.failure(first).code(), "presence_timeout");
    let second = rig.call(Call::FetchPresence { room: room("r") });
    let list = || PresenceList {
        app: None,
        room_id: Some("r"),
        data: Data::new(&[0x90]),
        truncated: None,
        msg_ref: None,
    };
    rig.server(list());
    assert!(rig.is_open(second));
    rig.server(list());
    assert!(rig.is_done(second));

    // A subscribe that timed out stays wanted, and its late answer is believed.
    let first = rig.subscribe("t");
    rig.wait(ms(500));
    assert_eq!(rig.failure(first).code(), "ack_timeout");
    rig.server(subscribed("t"));
    rig.forget();
    let second = rig.subscribe("t");
    assert!(rig.is_done(second));
    assert!(rig.frames().is_empty());
}

/// K-029, client-api 7.4: queries fail at a loss, subscribes wait, unsubscribes are done.
#[test]
fn what_a_loss_settles() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("u");
    let list = rig.call(Call::FetchPresence { room: room("r") });
    let (subscribe, unsubscribe) = (rig.subscribe("t"), rig.unsubscribe("u"));
    rig.cut();
    assert_eq!(rig.failure(list).code(), "lost");
    assert!(rig.failure(list).retryable());
    assert!(rig.is_open(subscribe) && rig.is_done(unsubscribe));
    rig.wait_for_attempt();
    rig.forget();
    rig.accept();
    assert_eq!(rig.frames(), ["auth t-1", "subscribe t"]);
    rig.server(subscribed("t"));
    assert!(rig.is_done(subscribe));
}

/// K-039, K-040, K-061, client-api 8.7: what a message carries.
#[test]
fn a_message_as_it_came() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("x/+/z");
    rig.server(nolag_protocol::frame::Message {
        filter: Some("#"),
        from: Some("bob"),
        from_type: Some("actor"),
        source_topic: Some("x/y/z"),
        timestamp: Some(5),
        ..message("x/+/z", None, &number(1))
    });
    rig.server(message("x/y/z", None, &number(2)));
    let messages = rig.messages();
    assert_eq!(messages.len(), 1, "by the exact subscription");
    let meta = messages[0].meta();
    assert_eq!((meta.filter, meta.from, messages[0].is_replay), (None, Some("bob"), false));
    assert_eq!((meta.source_topic, meta.timestamp), (Some("x/y/z"), Some(5)));
    for text in ["[]", "not json", "", r#"{"type":"message","topic":"x/+/z","data":[1,{"a":null}]}"#] {
        rig.transport(Transport::Text(text.into()));
    }
    assert_eq!(rig.messages().len(), 1);
    assert_eq!(rig.state(), State::Connected);
}

/// K-043, K-044, API-057, API-058: when messages are acknowledged.
#[test]
fn acknowledgements() {
    let deliver = |rig: &mut Rig, ids: &[&str]| {
        for id in ids {
            rig.server(message("t", Some(id), &number(1)));
        }
        rig.server(message("t", None, &number(1)));
        let last = rig.messages().last().unwrap().delivery;
        rig.session.dispatched(rig.now, Dispatched::UpTo(last));
        rig.drain();
    };
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    deliver(&mut rig, &["m-1"]);
    deliver(&mut rig, &["m-2", "m-3"]);
    deliver(&mut rig, &[]);
    assert_eq!(rig.frames(), ["ack m-1", "batchAck m-2,m-3"]);

    let mut rig = Rig::connected(Options { ack_mode: AckMode::Manual, ..quiet() });
    rig.subscribed("t");
    deliver(&mut rig, &["m-1"]);
    assert!(rig.frames().is_empty());
    rig.server(message("t", Some("m-1"), &number(1)));
    let again = rig.messages();
    assert_eq!(again.len(), 1, "nobody has acknowledged it");
    rig.session.dispatched(rig.now, Dispatched::UpTo(again[0].delivery));
    rig.call(Call::Ack { ids: vec!["m-1".into()] });
    assert_eq!(rig.frames(), ["ack m-1"]);

    let mut rig = Rig::connected(Options { ack_batch_interval: ms(100), ..quiet() });
    rig.subscribed("t");
    deliver(&mut rig, &["m-1", "m-2"]);
    rig.wait(ms(50));
    deliver(&mut rig, &["m-3"]);
    assert!(rig.frames().is_empty());
    rig.wait(ms(50));
    assert_eq!(rig.frames(), ["batchAck m-1,m-2,m-3"]);
    deliver(&mut rig, &["m-4"]);
    rig.call(Call::Close { flush: true, timeout: ms(100) });
    assert_eq!(rig.frames(), ["ack m-4"], "before the close");
}

/// K-045, K-046, K-047, API-059, API-062: replays and hydration.
#[test]
fn replays_and_hydration() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    rig.server(ReplayStart { topic: None, count: Some(2), oldest_timestamp: None, newest_timestamp: None });
    let replayed =
        |id| nolag_protocol::frame::Message { is_replay: Some(true), ..message("t", Some(id), &[1]) };
    for id in ["m-1", "m-2", "m-1"] {
        rig.server(replayed(id));
    }
    rig.server(ReplayEnd { topic: None, count: Some(2), replayed: None });
    rig.server(ReplayEnd { topic: None, count: None, replayed: Some(2) });
    rig.server(Hydration { topic: "t", data: Data::new(&[0x80]), full_topic: None });
    let kinds: Vec<_> = rig
        .take_events()
        .into_iter()
        .map(|event| match event {
            Event::ReplayStart { count, .. } => format!("start {count}"),
            Event::Message(message) => format!("message {}", message.is_replay),
            Event::ReplayEnd { replayed, .. } => format!("end {replayed}"),
            Event::Hydration { topic, .. } => format!("hydration {topic}"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["start 2", "message true", "message true", "end 2", "end 2", "hydration t"]);
}

/// K-052, API-032, API-064: lobbies by slug or id, differences after a reconnect, refusals at once.
#[test]
fn lobbies() {
    let mut rig = Rig::connected(quiet());
    let watch = rig.call(Call::WatchLobby { lobby: "main".into() });
    let snapshot = |actors: &[&str]| {
        let record =
            |id: &str| Value::Map(vec![("actorTokenId".into(), id.into()), ("presence".into(), 1.into())]);
        let room = Value::Map(actors.iter().map(|id| ((*id).into(), record(id))).collect());
        pack(&Value::Map(vec![("hall".into(), room)]))
    };
    let reply = |data| LobbySubscribed {
        lobby_id: "main",
        presence: Data::new(data),
        truncated: None,
        msg_ref: None,
    };
    let (before, after) = (snapshot(&["a", "b"]), snapshot(&["a", "c"]));
    rig.server(reply(&before));
    let Some(Ok(Reply::Lobby(rooms))) = rig.results.get(&watch) else { panic!() };
    assert_eq!((rooms[0].0.as_str(), rooms[0].1.len()), ("hall", 2));
    rig.forget();
    let event = |event, lobby_id, actor_id| LobbyPresence {
        event,
        lobby_id,
        room_id: Some(Nilable(Some("hall"))),
        actor_id,
        data: Data::new(&[1]),
        lobby_uuid: None,
        app: None,
    };
    let lobbies = |rig: &mut Rig| {
        rig.take_events()
            .into_iter()
            .filter_map(|event| match event {
                Event::Lobby(change) => Some((change.lobby, change.change, change.actor_id)),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    rig.server(event("join", "internal-7", "c"));
    assert_eq!(lobbies(&mut rig), [(Some("main".into()), Change::Join, "c".into())], "the only one");
    rig.call(Call::WatchLobby { lobby: "back".into() });
    rig.server(event("update", "internal-7", "c"));
    rig.server(event("join", "internal-9", "d"));
    assert_eq!(
        lobbies(&mut rig),
        [(Some("main".into()), Change::Update, "c".into()), (None, Change::Join, "d".into())]
    );
    rig.server(ErrorReply { lobby_id: Some("back"), ..error("not_authorized") });
    assert_eq!(rig.failure(nolag_core::session::RequestId(3)).code(), "not_authorized");
    rig.cut();
    rig.wait_for_attempt();
    rig.accept();
    assert_eq!(rig.frames().last().map(String::as_str), Some("lobbySubscribe main"));
    rig.forget();
    rig.server(reply(&after));
    assert_eq!(lobbies(&mut rig), [(Some("main".into()), Change::Leave, "b".into())]);
}

/// K-063, API-033: a subscription that lost its grant, or is refused in recovery: told, kept, and asked for once a reconnect.
#[test]
fn refused_subscriptions() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    rig.subscribed("u");
    rig.server(Unsubscribed { reason: Some("not_authorized"), ..unsubscribed("t") });
    let codes: Vec<_> = rig.errors().iter().map(Error::server_code).collect();
    assert_eq!(codes, [Some(42941)]);
    assert!(rig.frames().is_empty(), "not on this connection");
    rig.cut();
    rig.wait_for_attempt();
    rig.forget();
    rig.accept();
    assert_eq!(rig.frames(), ["auth t-1", "subscribe u"]);
    rig.server(ErrorReply { topic: Some("u"), ..error("unknown_topic") });
    let ready = rig.take_events().into_iter().find_map(|event| match event {
        Event::Ready(ready) => Some(ready),
        _ => None,
    });
    let refused = ready.unwrap().refused;
    assert_eq!((&*refused[0].0, refused[0].1.code()), ("u", "unknown_topic"));
    assert_eq!(rig.frames(), ["subscribe t"], "once, after `ready`");
    rig.server(ErrorReply { topic: Some("t"), ..error("unknown_topic") });
    rig.wait(ms(5_000));
    assert!(rig.frames().is_empty());
    rig.subscribe("u");
    assert_eq!(rig.frames(), ["subscribe u"], "a new call asks again");
}

/// API-060, API-061: garbage is counted, and changes nothing.
#[test]
fn garbage() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    let mut rng = fastrand::Rng::with_seed(1);
    let valid = message("t", Some("m"), &number(1)).to_vec();
    for _ in 0..100_000 {
        let mut bytes = valid.clone();
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(0..bytes.len());
            bytes[at] = rng.u8(..);
        }
        bytes.truncate(rng.usize(1..=bytes.len()));
        rig.transport(Transport::Frame(bytes.into()));
        rig.events.clear();
        rig.sent.clear();
    }
    assert_eq!(rig.state(), State::Connected);
    assert!(rig.session.stats().decode_errors > 0);
    assert!(rig.session.subscriptions().all(|(_, confirmed)| confirmed));
}
