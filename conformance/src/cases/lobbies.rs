//! Lobbies (wire protocol 20).

use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;
use serde_json::json;

use crate::broker::{Broker, Launch};
use crate::client::Client;
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{brief, frame, get, holds, kind, lacks, text};

pub(super) fn cases() -> Vec<Case> {
    use Needs::{Broker as Own, Nothing};
    vec![
        case!("C-106", Both, Nothing, "refuses an unlisted lobby with not_authorized and lobbyId", unlisted),
        case!("C-107", Both, Own, "sends a snapshot keyed by room slug and actor", snapshot),
        case!("C-109", Extended, Own, "names the lobby by the subscribed slug in events", slugs),
    ]
}

/// A broker with the actors `ann` and `ben`, who know two rooms, and `eve`, who sees a lobby and no room, and `one`,
/// whose lobby entry lists one of the rooms.
async fn start(context: &Context) -> Result<Broker> {
    let rooms = json!([
        {"pattern": "app/red/#", "permission": "pubSub", "room_id": "id-red", "room_slug": "red"},
        {"pattern": "app/blue/#", "permission": "pubSub", "room_id": "id-blue", "room_slug": "blue"},
    ]);
    let lobbies = json!([
        {"lobby_slug": "hall", "lobby_id": "id-hall"}, {"lobby_slug": "hall", "lobby_id": "id-annex"},
        {"lobby_slug": "attic", "lobby_id": "id-attic"}, {"lobby_slug": "no-id"}, {"lobby_id": "no-slug"},
    ]);
    let painter = |name: &str| json!({"actorTokenId": name, "projectId": "p", "allowedTopics": rooms, "allowedLobbies": lobbies});
    let narrow = json!([{"lobby_slug": "hall", "lobby_id": "id-hall", "rooms": ["id-red"]}]);
    context
        .start(Launch::tokens(json!({
            "ann": painter("ann"), "ben": painter("ben"),
            "one": {"actorTokenId": "one", "projectId": "p", "allowedTopics": rooms, "allowedLobbies": narrow},
        })))
        .await
}

async fn enter(client: &mut Client, room: &str, data: &str) -> Result<()> {
    client.send(frame! {"type" => "presence", "roomId" => room, "data" => data}).await?;
    client.settle().await?;
    Ok(())
}

/// C-106: by subscribe and by list; unsubscribing is always answered.
async fn unlisted(context: Context) -> Result<()> {
    let mut client = context.alice().await?;
    for name in ["no-such-lobby", "", "LOUNGE"] {
        for request in ["lobbySubscribe", "getLobbyPresence"] {
            let expected = frame! {"type" => "error", "error" => "not_authorized", "lobbyId" => name};
            let reply = client.ask_for(frame! {"type" => request, "lobbyId" => name}, expected).await?;
            lacks(&reply, &["code"])?;
        }
        let request = frame! {"type" => "lobbyUnsubscribe", "lobbyId" => name};
        client.ask_for(request, frame! {"type" => "lobbyUnsubscribed", "lobbyId" => name}).await?;
    }
    let request = frame! {"type" => "lobbySubscribe", "lobbyId" => context.lobby.as_str()};
    client
        .ask_for(request, frame! {"type" => "lobbySubscribed", "lobbyId" => context.lobby.as_str()})
        .await?;
    let request = frame! {"type" => "lobbyUnsubscribe", "lobbyId" => context.lobby.as_str()};
    let frames = {
        client.send(request).await?;
        client.settle().await?
    };
    let answered = frames.iter().any(|frame| kind(frame) == "lobbyUnsubscribed");
    ensure!(answered, "lobbyUnsubscribe was answered with {frames:?}");
    Ok(())
}

/// C-107: rooms without members appear, empty; entries have the three keys of 20.2.
async fn snapshot(context: Context) -> Result<()> {
    let broker = start(&context).await?;
    let now = || SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let began = now();
    let mut ben = broker.connect("ben").await?;
    enter(&mut ben, "red", "painting").await?;
    let mut ann = broker.connect("ann").await?;
    enter(&mut ann, "red", "watching").await?;
    let mut observer = broker.connect("ann").await?;
    for (request, reply) in [("lobbySubscribe", "lobbySubscribed"), ("getLobbyPresence", "lobbyPresenceList")]
    {
        let expected = frame! {"type" => reply, "lobbyId" => "hall"};
        let frame = observer.ask_for(frame! {"type" => request, "lobbyId" => "hall"}, expected).await?;
        lacks(&frame, &["truncated"])?;
        let presence = get(&frame, "presence").cloned().unwrap_or(Value::Nil);
        let rooms = presence.as_map().with_context(|| format!("no map of rooms in {}", brief(&frame)))?;
        ensure!(rooms.len() == 2, "expected two rooms in {}", brief(&presence));
        ensure!(
            get(&presence, "blue") == Some(&frame! {}),
            "an empty room is missing in {}",
            brief(&presence)
        );
        let red = get(&presence, "red").with_context(|| format!("no room red in {}", brief(&presence)))?;
        ensure!(
            red.as_map().is_some_and(|members| members.len() == 2),
            "expected two members in {}",
            brief(red)
        );
        for (actor, data) in [("ann", "watching"), ("ben", "painting")] {
            let entry = get(red, actor).with_context(|| format!("no {actor} in {}", brief(red)))?;
            holds(entry, &frame! {"actorTokenId" => actor, "presence" => data})?;
            let joined = get(entry, "joinedAt").and_then(Value::as_u64).context("no joinedAt")?;
            ensure!((began..=now()).contains(&joined), "joinedAt {joined} is not in seconds, or not now");
        }
    }
    if context.extended() {
        // The lobby's own list of rooms (20.4) is our addition.
        let mut narrow = broker.connect("one").await?;
        let request = frame! {"type" => "getLobbyPresence", "lobbyId" => "hall"};
        let list = narrow.ask_for(request, frame! {"type" => "lobbyPresenceList"}).await?;
        let rooms: Vec<&str> = get(&list, "presence")
            .and_then(Value::as_map)
            .into_iter()
            .flatten()
            .filter_map(|(slug, _)| slug.as_str())
            .collect();
        ensure!(rooms == ["red"], "a lobby of one room lists {rooms:?}");
    }
    Ok(())
}

/// C-109: X-05, and what else an event holds (20.3). After `lobbyUnsubscribe` none comes.
async fn slugs(context: Context) -> Result<()> {
    let broker = start(&context).await?;
    let mut observer = broker.connect("ann").await?;
    for lobby in ["attic", "hall"] {
        let request = frame! {"type" => "lobbySubscribe", "lobbyId" => lobby};
        observer.ask_for(request, frame! {"type" => "lobbySubscribed", "lobbyId" => lobby}).await?;
    }
    let mut ben = broker.connect("ben").await?;
    enter(&mut ben, "red", "one").await?;
    enter(&mut ben, "red", "two").await?;
    enter(&mut ben, "blue", "three").await?;
    let events = observer.settle().await?;
    let attic: Vec<&Value> = events.iter().filter(|event| text(event, "lobbyId") == "attic").collect();
    let hall: Vec<&Value> = events.iter().filter(|event| text(event, "lobbyId") == "hall").collect();
    ensure!(attic.len() + hall.len() == events.len(), "events of other lobbies among {events:?}");
    // One slug with two ids may tell each event once or once per id; a lobby with one id tells it once.
    ensure!(
        hall.len() == attic.len() || hall.len() == 2 * attic.len(),
        "attic told {attic:?}, hall {hall:?}"
    );
    let told: Vec<(&str, &str)> =
        attic.iter().map(|event| (text(event, "event"), text(event, "roomId"))).collect();
    let expected = [
        ("join", "red"),
        ("update", "red"),
        ("update", "red"),
        ("leave", "red"),
        ("join", "blue"),
        ("update", "blue"),
    ];
    ensure!(told == expected, "the lobby told of {told:?}");
    for event in &events {
        let data = match text(event, "event") {
            "leave" => frame! {},
            _ => get(event, "data").filter(|data| data.is_str()).cloned().unwrap_or(Value::Nil),
        };
        ensure!(!data.is_nil(), "not the presence data itself in {}", brief(event));
        holds(event, &frame! {"type" => "lobbyPresence", "actorId" => "ben", "data" => data})?;
        let ids: &[&str] =
            if text(event, "lobbyId") == "attic" { &["id-attic"] } else { &["id-hall", "id-annex"] };
        ensure!(ids.contains(&text(event, "lobbyUuid")), "the wrong lobbyUuid in {}", brief(event));
    }
    let request = frame! {"type" => "lobbyUnsubscribe", "lobbyId" => "hall"};
    observer.ask_for(request, frame! {"type" => "lobbyUnsubscribed", "lobbyId" => "hall"}).await?;
    ben.close().await?;
    let event =
        observer.expect(frame! {"type" => "lobbyPresence", "event" => "leave", "lobbyId" => "attic"}).await?;
    holds(&event, &frame! {"roomId" => "blue", "actorId" => "ben", "data" => frame! {}})?;
    observer.quiet().await
}
