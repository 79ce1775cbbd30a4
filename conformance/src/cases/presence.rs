//! Presence in rooms (wire protocol 19).

use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;
use serde_json::{Value as Json, json};

use crate::broker::{Broker, Launch};
use crate::client::Client;
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{brief, frame, get, holds, kind, lacks, list, text};

pub(super) fn cases() -> Vec<Case> {
    use Needs::{Broker, Nothing};
    vec![
        case!(
            "C-094",
            Both,
            Nothing,
            "sends join then update on the first presence, to all members",
            join_and_update
        ),
        case!("C-095", Both, Broker, "sends leave when a connection ends or moves to another room", leave),
        case!("C-096", Both, Broker, "keeps a connection in at most one room", one_room),
        case!("C-097", Both, Broker, "sends presence events to members only", members_only),
        case!("C-098", Both, Broker, "keeps scopes apart in presence and lobbies", scopes),
        case!("C-099", Both, Broker, "never sends actor_type in presence events", no_actor_type),
        case!("C-100", Both, Broker, "leaves the room on nil presence (kraken: an update with nil)", nil),
        case!("C-101", Both, Broker, "lists live members with their presence, joinedAt and status", lists),
        case!("C-102", Both, Broker, "lists nothing for a room outside the actor's rules", foreign_rooms),
    ]
}

/// An actor with two rooms, `red` and `blue`, both shown by the lobby `hall`.
fn painter(name: &str) -> Json {
    json!({
        "actorTokenId": name, "projectId": "p", "actorType": "agent",
        "allowedTopics": [
            {"pattern": "app/red/#", "permission": "pubSub", "room_id": "id-red", "room_slug": "red"},
            {"pattern": "app/blue/#", "permission": "pubSub", "room_id": "id-blue", "room_slug": "blue"},
        ],
        "allowedLobbies": [{"lobby_slug": "hall", "lobby_id": "id-hall"}],
    })
}

/// A broker with the actors `ann`, `ben` and `cas`, who are painters.
async fn painters(context: &Context) -> Result<Broker> {
    context
        .start(Launch::tokens(json!({"ann": painter("ann"), "ben": painter("ben"), "cas": painter("cas")})))
        .await
}

/// The frame that sets presence.
fn set(room: &str, data: impl Into<Value>) -> Value {
    frame! {"type" => "presence", "roomId" => room, "data" => data.into()}
}

/// Sets presence and insists on the connection's own `join` and `update`. One that comes from another room is told of
/// its own `leave` there (19.2).
async fn enter(context: &Context, client: &mut Client, actor: &str, room: &str, data: &str) -> Result<()> {
    client.send(set(room, data)).await?;
    let events = client.settle().await?;
    let moved = events.first().is_some_and(|event| text(event, "event") == "leave");
    let told = &events[usize::from(moved)..];
    ensure!(told.len() == 2, "the own entry into {room} was told as {events:?}");
    for (event, name) in told.iter().zip(["join", "update"]) {
        holds(event, &frame! {"type" => "presence", "event" => name})?;
        event_holds(context, event, actor, room, &Value::from(data))?;
    }
    Ok(())
}

/// An event with presence names the actor, the data and, by X-04, the room.
fn event_holds(context: &Context, event: &Value, actor: &str, room: &str, data: &Value) -> Result<()> {
    let inner = get(event, "data").cloned().unwrap_or(Value::Nil);
    holds(&inner, &frame! {"actor_token_id" => actor, "presence" => data.clone()})
        .with_context(|| format!("the event {}", brief(event)))?;
    names_room(context, event, room)
}

fn names_room(context: &Context, event: &Value, room: &str) -> Result<()> {
    if context.extended() {
        holds(event, &frame! {"roomId" => room}).context("X-04")
    } else {
        lacks(event, &["roomId"])
    }
}

/// The next frame is `leave` of the actor.
async fn expect_leave(context: &Context, client: &mut Client, actor: &str, room: &str) -> Result<()> {
    let event = client.expect(frame! {"type" => "presence", "event" => "leave"}).await?;
    let inner = get(&event, "data").cloned().unwrap_or(Value::Nil);
    holds(&inner, &frame! {"actor_token_id" => actor})?;
    lacks(&inner, &["presence"])?;
    names_room(context, &event, room)
}

/// Who is in the room, as the client sees it, sorted.
async fn roster(client: &mut Client, room: &str) -> Result<Vec<String>> {
    let request = frame! {"type" => "getPresence", "roomId" => room};
    let list = client.ask_for(request, frame! {"type" => "presenceList", "roomId" => room}).await?;
    let entries = get(&list, "data").and_then(Value::as_array).context("a list without data")?;
    let mut names: Vec<String> = entries.iter().map(|entry| text(entry, "actorTokenId").to_owned()).collect();
    names.sort();
    Ok(names)
}

/// C-094: at any broker, in its one known room. A later presence is an `update` alone.
async fn join_and_update(context: Context) -> Result<()> {
    let alone = context.alone().await?;
    let room = alone.room.as_str();
    let mut first = alone.open().await?;
    let alice = text(&first.auth(&alone.token).await?, "actorTokenId").to_owned();
    let mut second = alone.open().await?;
    let bob = text(&second.auth(&alone.other_token).await?, "actorTokenId").to_owned();
    enter(&context, &mut first, &alice, room, "one").await?;
    enter(&context, &mut second, &bob, room, "two").await?;
    let to_first = first.settle().await?;
    let events: Vec<&str> = to_first.iter().map(|event| text(event, "event")).collect();
    ensure!(events == ["join", "update"], "a member heard {events:?} of another's first presence");
    to_first.iter().try_for_each(|event| event_holds(&context, event, &bob, room, &Value::from("two")))?;

    let data = frame! {"status" => "away", "nested" => list![1, frame! {"x" => 2.5}]};
    second.send(set(room, data.clone())).await?;
    for client in [&mut second, &mut first] {
        let events = client.settle().await?;
        ensure!(events.len() == 1, "one later presence was told as {events:?}");
        holds(&events[0], &frame! {"type" => "presence", "event" => "update"})?;
        event_holds(&context, &events[0], &bob, room, &data)?;
    }
    first.close().await?;
    expect_leave(&context, &mut second, &alice, room).await
}

/// C-095: by a close frame, by a lost TCP connection and by a move; each connection of an actor has its own.
async fn leave(context: Context) -> Result<()> {
    let broker = painters(&context).await?;
    let mut watcher = broker.connect("ann").await?;
    enter(&context, &mut watcher, "ann", "red", "watching").await?;
    for way in ["close", "loss", "move"] {
        let mut twins = vec![broker.connect("ben").await?, broker.connect("ben").await?];
        for twin in &mut twins {
            enter(&context, twin, "ben", "red", "here").await?;
        }
        let joined = watcher.settle().await?;
        ensure!(joined.len() == 4, "two connections of one actor were told as {joined:?}");
        for mut twin in twins.into_iter().rev() {
            match way {
                "close" => twin.close().await?,
                "loss" => twin.vanish(),
                _ => {
                    twin.settle().await?;
                    enter(&context, &mut twin, "ben", "blue", "there").await?;
                    twin.settle().await?;
                }
            }
            expect_leave(&context, &mut watcher, "ben", "red").await.with_context(|| way)?;
        }
        watcher.quiet().await.with_context(|| way)?;
    }
    Ok(())
}

/// C-096: seen by the lists of both rooms.
async fn one_room(context: Context) -> Result<()> {
    let broker = painters(&context).await?;
    let mut watcher = broker.connect("ann").await?;
    let mut client = broker.connect("ben").await?;
    for (enters, empty) in [("red", "blue"), ("blue", "red"), ("red", "blue")] {
        enter(&context, &mut client, "ben", enters, "here").await?;
        client.settle().await?;
        let (there, nowhere) = (roster(&mut watcher, enters).await?, roster(&mut watcher, empty).await?);
        ensure!(there == ["ben"] && nowhere.is_empty(), "in {enters}: {there:?}, in {empty}: {nowhere:?}");
    }
    Ok(())
}

/// C-097: a topic subscription, a list that was asked for, or a membership elsewhere make no member.
async fn members_only(context: Context) -> Result<()> {
    let broker = painters(&context).await?;
    let mut subscriber = broker.connect("ann").await?;
    subscriber.subscribe("app/red/x").await?;
    subscriber.subscribe("app/red/#").await?;
    roster(&mut subscriber, "red").await?;
    let mut elsewhere = broker.connect("ann").await?;
    enter(&context, &mut elsewhere, "ann", "blue", "elsewhere").await?;
    let mut former = broker.connect("ann").await?;
    enter(&context, &mut former, "ann", "red", "was here").await?;
    enter(&context, &mut former, "ann", "blue", "moved").await?;
    former.settle().await?;
    elsewhere.settle().await?;
    let mut roomless = broker.connect("ann").await?;
    roomless.send(frame! {"type" => "presence", "data" => "nowhere"}).await?;
    roomless.quiet().await.context("presence without a room")?;

    let mut member = broker.connect("ben").await?;
    enter(&context, &mut member, "ben", "red", "one").await?;
    member.send(set("red", "two")).await?;
    member.settle().await?;
    let mut guest = broker.connect("cas").await?;
    guest.send(set("red", "three")).await?;
    let own = guest.settle().await?;
    ensure!(own.len() == 2, "the guest heard {own:?}");
    for (who, client) in [
        ("a subscriber of the room's topics", &mut subscriber),
        ("a member of another room", &mut elsewhere),
        ("a former member", &mut former),
        ("one without a room", &mut roomless),
    ] {
        client.quiet().await.context(who)?;
    }
    let heard = member.settle().await?;
    ensure!(heard.len() == 2, "the member heard {heard:?}");
    Ok(())
}

/// C-098: the same rooms and lobby under two scopes, and without one.
async fn scopes(context: Context) -> Result<()> {
    let scoped = |name: &str, scope: &str| {
        let mut entry = painter(name);
        entry["scopeSlug"] = json!(scope);
        entry["scopeId"] = json!(format!("id-{scope}"));
        entry
    };
    let tokens = json!({"acme-1": scoped("acme-1", "acme"), "acme-2": scoped("acme-2", "acme"),
        "globex": scoped("globex", "globex"), "plain": painter("plain")});
    let broker = context.start(Launch::tokens(tokens)).await?;
    let mut clients = Vec::new();
    for actor in ["acme-1", "globex", "plain"] {
        let mut client = broker.connect(actor).await?;
        let mut observer = broker.connect(actor).await?;
        let request = frame! {"type" => "lobbySubscribe", "lobbyId" => "hall"};
        observer.ask_for(request, frame! {"type" => "lobbySubscribed"}).await?;
        enter(&context, &mut client, actor, "red", actor).await?;
        clients.push((actor, client, observer));
    }
    let mut second = broker.connect("acme-2").await?;
    enter(&context, &mut second, "acme-2", "red", "second").await?;
    for (actor, client, observer) in &mut clients {
        let acme = *actor == "acme-1";
        let heard = client.settle().await?;
        ensure!(heard.len() == if acme { 2 } else { 0 }, "{actor} heard {heard:?}");
        let expected: Vec<&str> = if acme { vec!["acme-1", "acme-2"] } else { vec![*actor] };
        ensure!(
            roster(client, "red").await? == expected,
            "{actor}: {:?} in its room",
            roster(client, "red").await?
        );
        let seen: Vec<String> =
            observer.settle().await?.iter().map(|event| text(event, "actorId").to_owned()).collect();
        let events: Vec<&str> =
            if acme { vec!["acme-1", "acme-1", "acme-2", "acme-2"] } else { vec![*actor, *actor] };
        ensure!(seen == events, "the lobby of {actor} told of {seen:?}");
        let request = frame! {"type" => "getLobbyPresence", "lobbyId" => "hall"};
        let snapshot = observer.ask_for(request, frame! {"type" => "lobbyPresenceList"}).await?;
        let red =
            get(&snapshot, "presence").and_then(|rooms| get(rooms, "red")).cloned().unwrap_or(Value::Nil);
        let mut present: Vec<&str> =
            red.as_map().into_iter().flatten().filter_map(|(name, _)| name.as_str()).collect();
        present.sort_unstable();
        ensure!(present == expected, "the lobby of {actor} lists {present:?}");
    }
    Ok(())
}

/// C-099: in no kind of event, at no depth of the broker's making. The actors here are agents.
async fn no_actor_type(context: Context) -> Result<()> {
    let broker = painters(&context).await?;
    let mut watcher = broker.connect("ann").await?;
    enter(&context, &mut watcher, "ann", "red", "watching").await?;
    let mut lobby = broker.connect("cas").await?;
    lobby
        .ask_for(
            frame! {"type" => "lobbySubscribe", "lobbyId" => "hall"},
            frame! {"type" => "lobbySubscribed"},
        )
        .await?;
    let mut client = broker.connect("ben").await?;
    client.send(set("red", frame! {"n" => 1})).await?;
    client.send(set("red", frame! {"n" => 2})).await?;
    client.send(set("blue", frame! {"n" => 3})).await?;
    client.settle().await?;
    let mut events = watcher.settle().await?;
    events.extend(lobby.settle().await?);
    ensure!(events.len() >= 8, "expected events of all kinds, got {events:?}");
    for event in &events {
        ensure!(!event.to_string().contains("actor_type"), "actor_type in {}", brief(event));
        ensure!(matches!(kind(event), "presence" | "lobbyPresence"), "not an event: {}", brief(event));
    }
    Ok(())
}

/// C-100: X-06.
async fn nil(context: Context) -> Result<()> {
    let broker = painters(&context).await?;
    let mut watcher = broker.connect("ann").await?;
    enter(&context, &mut watcher, "ann", "red", "watching").await?;
    let mut client = broker.connect("ben").await?;
    enter(&context, &mut client, "ben", "red", "here").await?;
    watcher.settle().await?;
    client.send(set("red", Value::Nil)).await?;
    client.settle().await?;
    if !context.extended() {
        let event = watcher.expect(frame! {"type" => "presence", "event" => "update"}).await?;
        event_holds(&context, &event, "ben", "red", &Value::Nil)?;
        let there = roster(&mut watcher, "red").await?;
        ensure!(there == ["ann", "ben"], "after an update with nil the list names {there:?}");
        return watcher.quiet().await;
    }
    expect_leave(&context, &mut watcher, "ben", "red").await?;
    let there = roster(&mut watcher, "red").await?;
    ensure!(there == ["ann"], "after nil presence the list names {there:?}");
    // No member any more: no events, and no second leave at the end; but it may come back.
    watcher.send(set("red", "still watching")).await?;
    watcher.settle().await?;
    client.quiet().await.context("events for one that left by nil")?;
    client.send(set("red", Value::Nil)).await?;
    client.quiet().await.context("nil presence of one that is no member")?;
    enter(&context, &mut client, "ben", "red", "again").await?;
    watcher.settle().await?;
    client.send(set("red", Value::Nil)).await?;
    client.settle().await?;
    expect_leave(&context, &mut watcher, "ben", "red").await?;
    client.close().await?;
    watcher.quiet().await
}

/// C-101: an actor with two connections is listed twice.
async fn lists(context: Context) -> Result<()> {
    let broker = painters(&context).await?;
    let now = || SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let before = now();
    let mut clients = Vec::new();
    for (actor, data) in [("ann", "first"), ("ben", "second"), ("ben", "third")] {
        let mut client = broker.connect(actor).await?;
        enter(&context, &mut client, actor, "red", data).await?;
        clients.push(client);
    }
    clients[0].send(set("red", frame! {"changed" => true})).await?;
    clients[0].settle().await?;
    let mut asking = broker.connect("cas").await?;
    let request = frame! {"type" => "getPresence", "roomId" => "red"};
    let list = asking.ask_for(request, frame! {"type" => "presenceList", "roomId" => "red"}).await?;
    lacks(&list, &["truncated"])?;
    let entries = get(&list, "data").and_then(Value::as_array).context("a list without data")?;
    let mut found = Vec::new();
    for entry in entries {
        holds(entry, &frame! {"status" => "online"})?;
        let joined = get(entry, "joinedAt")
            .and_then(Value::as_u64)
            .with_context(|| format!("no joinedAt in {}", brief(entry)))?;
        ensure!((before..=now()).contains(&joined), "joinedAt {joined} is not in seconds, or not now");
        found.push((
            text(entry, "actorTokenId"),
            get(entry, "presence").cloned().unwrap_or(Value::Nil).to_string(),
        ));
    }
    found.sort();
    let expected = [("ann", r#"{"changed": true}"#), ("ben", r#""second""#), ("ben", r#""third""#)];
    ensure!(
        found.iter().map(|(actor, data)| (*actor, data.as_str())).eq(expected),
        "the list holds {found:?}"
    );

    let legacy = asking
        .ask_for(frame! {"type" => "getPresence"}, frame! {"type" => "presenceList", "data" => list![]})
        .await?;
    lacks(&legacy, &["roomId"])
}

/// C-102: by slug or by internal id; and presence there is refused (X-09) or ignored.
async fn foreign_rooms(context: Context) -> Result<()> {
    let stranger = json!({"actorTokenId": "stranger", "projectId": "p", "allowedTopics": [
        {"pattern": "app/#", "permission": "pubSub", "room_id": "id-own", "room_slug": "own"},
        {"pattern": "app/red/#", "permission": "pubSub"},
    ]});
    let broker = context.start(Launch::tokens(json!({"ann": painter("ann"), "stranger": stranger}))).await?;
    let mut member = broker.connect("ann").await?;
    enter(&context, &mut member, "ann", "red", "here").await?;
    let mut client = broker.connect("stranger").await?;
    for room in ["red", "id-red", "nowhere", "", "own", "id-own"] {
        let found = roster(&mut client, room).await.with_context(|| format!("the room `{room}`"))?;
        ensure!(found.is_empty(), "the room `{room}` was listed: {found:?}");
    }
    for room in ["red", "id-red", "nowhere"] {
        client.send(set(room, "intruding")).await?;
        let replies = client.settle().await?;
        if context.extended() {
            ensure!(
                replies.len() == 1,
                "presence in the foreign room `{room}` was answered with {replies:?}"
            );
            holds(&replies[0], &frame! {"type" => "error", "error" => "unknown_room", "roomId" => room})
                .context("X-09")?;
            lacks(&replies[0], &["code"])?;
        } else {
            ensure!(
                replies.is_empty(),
                "presence in the foreign room `{room}` was answered with {replies:?}"
            );
        }
    }
    member.quiet().await?;
    ensure!(roster(&mut member, "red").await? == ["ann"], "the stranger is in the room");
    // On version 1 the error of X-09 is unknown.
    let mut old = broker.open().await?;
    old.ask_for(frame! {"type" => "auth", "token" => "stranger"}, frame! {"success" => true}).await?;
    old.send(set("red", "intruding")).await?;
    old.quiet().await.context("a version 1 connection")
}
