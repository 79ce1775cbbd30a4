//! Presence in several rooms at once (features 4).

mod kit;

use std::sync::Arc;

use kit::{Client, End, broker_with, settle};
use nolag_broker::Broker;
use nolag_broker::auth::{AllowAll, StaticAuth};
use nolag_broker::config::{Profile, Settings};
use rmpv::Value;

/// Two actors who know equally named rooms of two apps, one app by its slug and one by its pattern, and a third room.
fn tokens() -> Arc<Broker> {
    let rules = r#"[
        {"pattern": "red/#", "permission": "pubSub", "room_id": "r1", "room_slug": "hall", "app_slug": "crimson", "app_name": "x"},
        {"pattern": "blue/#", "permission": "pubSub", "room_id": "b1", "room_slug": "hall"},
        {"pattern": "blue/#", "permission": "pubSub", "room_id": "b2", "room_slug": "attic", "app_name": "blue"}]"#;
    let lobbies = r#"[{"lobby_slug": "lounge", "lobby_id": "l1"}]"#;
    let actor = |name: &str| {
        format!(
            r#""{name}": {{"actorTokenId": "{name}", "projectId": "p", "allowedTopics": {rules}, "allowedLobbies": {lobbies}}}"#
        )
    };
    let text = format!(r#"{{"tokens": {{{}, {}}}}}"#, actor("ann"), actor("ben"));
    let auth = StaticAuth::from_text(&text, Profile::Extended).unwrap();
    broker_with(Settings::default(), Arc::new(auth))
}

fn enter(app: &str, room: &str, data: impl Into<Value>) -> Value {
    map! {"type": "presence", "app": app, "roomId": room, "data": data.into(), "msgRef": "entered"}
}

/// What an event tells: of whom, what, and where by which names.
fn told(event: &Value) -> (&str, &str, &str, &str) {
    let text = |value| Value::as_str(value).unwrap_or("none");
    let who = if event["type"] == Value::from("lobbyPresence") {
        &event["actorId"]
    } else {
        &event["data"]["actor_token_id"]
    };
    (text(who), text(&event["event"]), text(&event["app"]), text(&event["roomId"]))
}

/// F-11, X-20: three rooms at once, each left by the end of the connection; the first set is a `join` alone; nil leaves one.
#[tokio::test(start_paused = true)]
async fn a_connection_is_in_several_rooms_and_leaves_all_with_its_end() {
    let broker = tokens();
    let mut ann = Client::login_with(&broker, "ann", &["rooms"]).await;
    let mut ben = Client::login_with(&broker, "ben", &["rooms"]).await;
    let rooms = [("crimson", "hall"), ("blue", "hall"), ("blue", "attic")];
    for (app, room) in rooms {
        ben.send(enter(app, room, 1)).await;
        ben.settled(&["presence", "presenceUpdated"]).await;
    }
    for (app, room) in rooms {
        ann.send(enter(app, room, "first")).await;
        let frames = ann.settled(&["presence", "presenceUpdated"]).await;
        assert_eq!(told(&frames[0]), ("ann", "join", app, room));
        let confirmed = map! {"type": "presenceUpdated", "app": app, "roomId": room, "msgRef": "entered"};
        assert_eq!(kit::sorted(&frames[1]), kit::sorted(&confirmed));
        assert_eq!(told(&ben.next().await), ("ann", "join", app, room));
        ann.send(enter(app, room, "second")).await;
        let frames = ann.settled(&["presence", "presenceUpdated"]).await;
        assert_eq!(told(&frames[0]), ("ann", "update", app, room));
        assert_eq!(told(&ben.next().await), ("ann", "update", app, room));
    }
    ann.send(enter("blue", "attic", Value::Nil)).await;
    let frames = ann.settled(&["presence", "presenceUpdated"]).await;
    assert_eq!(told(&frames[0]), ("ann", "leave", "blue", "attic"));
    assert_eq!(told(&ben.next().await), ("ann", "leave", "blue", "attic"));
    ann.send(enter("blue", "attic", "again")).await;
    ann.settled(&["presence", "presenceUpdated"]).await;
    assert_eq!(told(&ben.next().await), ("ann", "join", "blue", "attic"));

    drop(ann);
    settle().await;
    let mut left = ben.settled(&["presence"; 3]).await;
    left.sort_by_key(|event| rooms.iter().position(|room| *room == (told(event).2, told(event).3)));
    for (event, (app, room)) in left.iter().zip(rooms) {
        assert_eq!(told(event), ("ann", "leave", app, room));
    }
    for (app, room) in rooms {
        let list = ben.ask(map! {"type": "getPresence", "app": app, "roomId": room}).await;
        assert_eq!(list["data"].as_array().unwrap().len(), 1, "{list}");
    }
}

/// F-17: equal slugs in two apps are two rooms, in events, lists and snapshots of lobbies; without `app` the first is meant, and named.
#[tokio::test(start_paused = true)]
async fn equal_slugs_of_two_apps_are_two_rooms() {
    let broker = tokens();
    let mut ann = Client::login_with(&broker, "ann", &["rooms"]).await;
    let mut ben = Client::login_with(&broker, "ben", &["rooms"]).await;
    let mut watcher = Client::login_with(&broker, "ben", &["rooms"]).await;
    assert_eq!(
        watcher.ask(map! {"type": "lobbySubscribe", "lobbyId": "lounge"}).await["type"],
        "lobbySubscribed".into()
    );
    ann.send(enter("crimson", "hall", "in red")).await;
    ann.settled(&["presence", "presenceUpdated"]).await;
    ann.send(enter("blue", "hall", "in blue")).await;
    ann.settled(&["presence", "presenceUpdated"]).await;
    let mut seen = watcher.settled(&["lobbyPresence"; 2]).await;
    assert_eq!(told(&seen[0]), ("ann", "join", "crimson", "hall"));
    assert_eq!(told(&seen.remove(1)), ("ann", "join", "blue", "hall"));
    assert_eq!(seen[0]["lobbyId"], "lounge".into());

    let list = watcher.ask(map! {"type": "getLobbyPresence", "lobbyId": "lounge"}).await;
    let mut rooms: Vec<_> =
        list["presence"].as_map().unwrap().iter().map(|(key, _)| key.to_string()).collect();
    rooms.sort_unstable();
    assert_eq!(rooms, ["\"attic\"", "\"hall\"", "\"r1\""], "the second hall goes by its id");

    ben.send(enter("blue", "hall", "in blue too")).await;
    ben.settled(&["presence", "presenceUpdated"]).await;
    let frames = ann.settled(&["presence"]).await;
    assert_eq!(told(&frames[0]), ("ben", "join", "blue", "hall"));
    for (app, count) in [("crimson", 1), ("blue", 2), ("no such app", 0)] {
        let list = ann.ask(map! {"type": "getPresence", "app": app, "roomId": "hall"}).await;
        assert_eq!((&list["app"], &list["roomId"]), (&app.into(), &"hall".into()));
        assert_eq!(list["data"].as_array().unwrap().len(), count, "{list}");
    }
    let list = ann.ask(map! {"type": "getPresence", "roomId": "hall"}).await;
    assert_eq!((&list["app"], list["data"].as_array().unwrap().len()), (&"crimson".into(), 1));
    ann.send(map! {"type": "presence", "roomId": "hall", "data": "the first"}).await;
    assert_eq!(told(&ann.next().await), ("ann", "update", "crimson", "hall"));

    let refused = ann.ask(enter("crimson", "attic", 1)).await;
    let expected = (&"unknown_room".into(), &"crimson".into(), &"attic".into(), &"entered".into());
    assert_eq!((&refused["error"], &refused["app"], &refused["roomId"], &refused["msgRef"]), expected);
    // A room's internal id is a name in lists too, and belongs to its app.
    for (app, count) in [("crimson", 1), ("blue", 0)] {
        let list = ann.ask(map! {"type": "getPresence", "app": app, "roomId": "r1"}).await;
        assert_eq!(list["data"].as_array().unwrap().len(), count, "{app}");
    }
}

/// F-01, C-100: who was not granted the feature is in one room, hears of no app, and gets `update` after `join`, whoever comes.
#[tokio::test(start_paused = true)]
async fn without_the_feature_all_is_as_it_was() {
    let broker = tokens();
    let mut old = Client::login(&broker, "ben").await;
    let mut watcher = Client::login(&broker, "ben").await;
    watcher.ask(map! {"type": "lobbySubscribe", "lobbyId": "lounge"}).await;
    let mut new = Client::login_with(&broker, "ann", &["rooms"]).await;
    // `app` means nothing here, so this is the first room of that slug.
    old.send(enter("blue", "hall", 1)).await;
    let frames = old.settled(&["presence", "presence", "presenceUpdated"]).await;
    assert_eq!(told(&frames[1]), ("ben", "update", "none", "hall"));
    watcher.settled(&["lobbyPresence", "lobbyPresence"]).await;

    new.send(enter("crimson", "hall", 2)).await;
    new.settled(&["presence", "presenceUpdated"]).await;
    for seen in [&mut old, &mut watcher] {
        for event in ["join", "update"] {
            assert_eq!(told(&seen.next().await), ("ann", event, "none", "hall"));
        }
    }
    old.send(enter("blue", "attic", 3)).await;
    old.settled(&["presence", "presence", "presence", "presenceUpdated"]).await;
    assert_eq!(told(&new.next().await), ("ben", "leave", "crimson", "hall"));
}

/// Features 4: 64 rooms and no more; a room left makes room for another.
#[tokio::test(start_paused = true)]
async fn a_connection_is_in_64_rooms_at_most() {
    let broker = broker_with(Settings::default(), Arc::new(AllowAll));
    let mut client = Client::login_with(&broker, "ann", &["rooms"]).await;
    for n in 0..64 {
        client.send(enter("any", &format!("room-{n}"), n)).await;
        let frames = client.settled(&["presence", "presenceUpdated"]).await;
        assert_eq!(told(&frames[0]).2, "any", "under AUTH_ALLOW_ALL an app is what the client says");
    }
    let refused = client.ask(enter("any", "one more", 1)).await;
    let expected = (&"invalid_message".into(), &"any".into(), &"one more".into());
    assert_eq!((&refused["error"], &refused["app"], &refused["roomId"]), expected);
    client.send(enter("any", "room-63", 1)).await;
    client.settled(&["presence", "presenceUpdated"]).await;
    client.send(enter("any", "room-0", Value::Nil)).await;
    client.settled(&["presence", "presenceUpdated"]).await;
    client.send(enter("any", "one more", 1)).await;
    client.settled(&["presence", "presenceUpdated"]).await;
}

/// Features 1: a `traceparent` reaches those who were granted it, and nobody else; what is none is dropped.
#[tokio::test(start_paused = true)]
async fn traces_reach_those_who_asked_for_them() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let broker = broker_with(Settings::default(), Arc::new(AllowAll));
    let mut with = Client::login_with(&broker, "with", &["trace"]).await;
    let mut without = Client::login(&broker, "without").await;
    with.subscribe("a/b/c").await;
    without.subscribe("a/b/c").await;
    let publish = |trace: &str| map! {"type": "publish", "topic": "a/b/c", "data": 1, "trace": trace};
    let long = format!("01{}-{}", &TRACE[2..], "x".repeat(128));
    with.send(publish(TRACE)).await;
    with.send(publish("none")).await;
    with.send(publish(&long)).await;
    without.send(publish(TRACE)).await;
    settle().await;
    let frames = with.settled(&["message"; 4]).await;
    let traces: Vec<_> = frames.iter().map(|frame| &frame["trace"]).collect();
    assert_eq!(traces, [&TRACE.into(), &Value::Nil, &Value::Nil, &Value::Nil]);
    for message in without.settled(&["message"; 4]).await {
        assert!(message["trace"].is_nil(), "{message}");
    }
}

/// Features 7: a full organization names a time; it is no sooner than a client would come by itself.
#[tokio::test(start_paused = true)]
async fn a_full_organization_says_when_to_come_again() {
    let text = r#"{"tokens": {"t": {"actorTokenId": "ann", "organizationId": "o", "maxConnections": 1}}}"#;
    for (profile, expected) in [(Profile::Extended, Value::from(30_000)), (Profile::Kraken, Value::Nil)] {
        let auth = StaticAuth::from_text(text, profile).unwrap();
        let broker = broker_with(Settings { profile, ..Settings::default() }, Arc::new(auth));
        let _first = Client::login(&broker, "t").await;
        let mut second = Client::connect(&broker).await;
        let reply = second.ask(map! {"type": "auth", "token": "t"}).await;
        assert_eq!(
            (&reply["error"], &reply["retryAfterMs"]),
            (&"connection_limit_reached".into(), &expected)
        );
        broker.shutdown().await;
        assert_eq!(second.rest().await.1, End::Close(1012, "draining".into()));
    }
}
