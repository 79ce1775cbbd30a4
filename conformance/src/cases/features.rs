//! What is negotiated (features).

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;
use serde_json::json;

use crate::broker::{Broker, Launch, actor};
use crate::client::{Incoming, Values, granted, names};
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{brief, encode, frame, get, holds, kind, lacks, text};

/// All features, in the order of the specification.
const ALL: [&str; 7] = ["recover", "dedupe", "rooms", "batch", "redeliver", "reauth", "trace"];

pub(super) fn cases() -> Vec<Case> {
    use Needs::{Broker as Own, Nothing};
    vec![
        case!(
            "F-02",
            Both,
            Nothing,
            "grants what it knows of what was asked; other names change nothing",
            unknown
        ),
        case!("F-11", Extended, Own, "tells of the end of a connection in each of its three rooms", rooms),
        case!("F-17", Extended, Own, "keeps equally named rooms of two apps apart", apps),
        case!(
            "F-12",
            Extended,
            Nothing,
            "handles frames of one message in order; a bad one leaves those before it",
            batch
        ),
        case!(
            "features 1",
            Both,
            Own,
            "NOLAG_FEATURES limits what is granted, the kraken profile to none",
            limited
        ),
    ]
}

/// F-02: by both encodings. Who asks for nothing is told of nothing, and kraken's profile never grants anything.
async fn unknown(context: Context) -> Result<()> {
    for token in [&context.token, &context.other_token] {
        let mut client = context.open().await?;
        let reply = client.auth(token).await?;
        holds(&reply, &frame! {"type" => "auth", "success" => true})?;
        lacks(&reply, &["features"])?;
        client.quiet().await?;
    }
    let asked = [&ALL[..], &["", "time-travel", "BATCH"]].concat();
    let mut client = context.open().await?;
    let request = frame! {"type" => "auth", "token" => context.token.as_str(), "protocolVersion" => 2,
    "features" => names(&asked)};
    let reply = client.ask(request).await?;
    holds(&reply, &frame! {"type" => "auth", "success" => true, "protocolVersion" => 2})?;
    let all = granted(&reply)?;
    ensure!(all.iter().all(|name| ALL.contains(name)), "granted {all:?}");
    ensure!(context.extended() || all.is_empty(), "the kraken profile granted {all:?}");
    client.quiet().await?;

    // JSON text asks alike.
    let mut client = context.open().await?;
    client
        .send_text(
            &serde_json::json!({"type": "auth", "token": context.token, "features": asked}).to_string(),
        )
        .await?;
    let reply = client.frame().await?;
    ensure!(granted(&reply)? == all, "granted {all:?} by MessagePack, and {reply} by text");

    let mut client = context.open().await?;
    let request =
        frame! {"type" => "auth", "token" => context.token.as_str(), "features" => names(&["time-travel"])};
    let reply = client.ask(request).await?;
    holds(&reply, &frame! {"type" => "auth", "success" => true})?;
    lacks(&reply, &["features"])?;
    client.quiet().await
}

/// F-12, against the bytes themselves: `subscribed` and `message` come before the error that the bad third is answered with, and
/// the fourth is never handled.
async fn batch(context: Context) -> Result<()> {
    let topic = context.topic("batch");
    let mut client = context.open().await?.negotiated(&context.token, &["batch"]).await?;
    let publish =
        |data: &str| encode(&frame! {"type" => "publish", "topic" => topic.as_str(), "data" => data});
    let subscribe = encode(&frame! {"type" => "subscribe", "topic" => topic.as_str()});
    client.send_bytes([subscribe, publish("second"), vec![0xc1], publish("fourth")].concat()).await?;
    client.expect(frame! {"type" => "subscribed", "topic" => topic.as_str()}).await?;
    client.expect(frame! {"type" => "message", "topic" => topic.as_str(), "data" => "second"}).await?;
    client.expect(frame! {"type" => "error", "code" => 40000, "error" => "invalid_message"}).await?;
    client.quiet().await?;

    // A heartbeat stays a message of its own, also between frames.
    client.heartbeat().await?;
    ensure!(matches!(client.next().await?, Incoming::Heartbeat), "no answer to a heartbeat");
    client.send_bytes([publish("a"), publish("b")].concat()).await?;
    ensure!(client.payloads().await? == ["a".into(), "b".into()], "two in one message were not two");
    Ok(())
}

/// A broker with two actors who know equally named rooms of two apps.
async fn with_rooms(context: &Context) -> Result<Broker> {
    let rules = json!([
        {"pattern": "red/#", "permission": "pubSub", "room_id": "r1", "room_slug": "hall", "app_slug": "red"},
        {"pattern": "blue/#", "permission": "pubSub", "room_id": "b1", "room_slug": "hall"},
        {"pattern": "blue/#", "permission": "pubSub", "room_id": "b2", "room_slug": "attic"},
    ]);
    context
        .start(Launch::tokens(json!({"ann": actor("ann", rules.clone()), "ben": actor("ben", rules)})))
        .await
}

/// The presence events among frames, as who, what, app and room; anything else fails.
fn events(frames: &[Value]) -> Result<Vec<(&str, &str, &str, &str)>> {
    frames
        .iter()
        .map(|frame| {
            ensure!(kind(frame) == "presence", "not a presence event: {}", brief(frame));
            let data = get(frame, "data").unwrap_or(&Value::Nil);
            Ok((
                text(data, "actor_token_id"),
                text(frame, "event"),
                text(frame, "app"),
                text(frame, "roomId"),
            ))
        })
        .collect()
}

/// F-11: and each first set is a `join` alone.
async fn rooms(context: Context) -> Result<()> {
    let broker = with_rooms(&context).await?;
    let mut ann = broker.open().await?.negotiated("ann", &["rooms"]).await?;
    let mut ben = broker.open().await?.negotiated("ben", &["rooms"]).await?;
    let all = [("red", "hall"), ("blue", "hall"), ("blue", "attic")];
    for client in [&mut ben, &mut ann] {
        for (app, room) in all {
            client.send(frame! {"type" => "presence", "app" => app, "roomId" => room, "data" => 1}).await?;
        }
        client.settle().await?;
    }
    let joined = ben.settle().await?;
    let expected: Vec<_> = all.iter().map(|(app, room)| ("ann", "join", *app, *room)).collect();
    ensure!(events(&joined)? == expected, "three joins were told as {joined:?}");
    ann.close().await?;
    let mut left = Values::default();
    while left.len() < 3 {
        left.push(ben.frame().await?);
    }
    let mut left = events(&left)?;
    left.sort_unstable();
    let mut expected: Vec<_> = all.iter().map(|(app, room)| ("ann", "leave", *app, *room)).collect();
    expected.sort_unstable();
    ensure!(left == expected, "the end was told as {left:?}");
    ben.quiet().await
}

/// F-17: in events and in lists.
async fn apps(context: Context) -> Result<()> {
    let broker = with_rooms(&context).await?;
    let mut ann = broker.open().await?.negotiated("ann", &["rooms"]).await?;
    let mut ben = broker.open().await?.negotiated("ben", &["rooms"]).await?;
    for app in ["red", "blue"] {
        ann.send(frame! {"type" => "presence", "app" => app, "roomId" => "hall", "data" => app}).await?;
    }
    ann.settle().await?;
    ben.send(frame! {"type" => "presence", "app" => "blue", "roomId" => "hall", "data" => 1}).await?;
    ben.settle().await?;
    let told = ann.settle().await?;
    ensure!(events(&told)? == [("ben", "join", "blue", "hall")], "{told:?}");
    for (app, count) in [("red", 1), ("blue", 2)] {
        let request = frame! {"type" => "getPresence", "app" => app, "roomId" => "hall"};
        let expected = frame! {"type" => "presenceList", "app" => app, "roomId" => "hall"};
        let list = ben.ask_for(request, expected).await?;
        let entries = get(&list, "data").and_then(Value::as_array).context("no list")?;
        ensure!(entries.len() == count, "{app} lists {}", brief(&list));
    }
    Ok(())
}

/// Features 1: `none`, a list, and `all` again.
async fn limited(context: Context) -> Result<()> {
    for (setting, allowed) in [("none", &[][..]), ("batch, reauth", &["batch", "reauth"]), ("all", &ALL)] {
        let broker = context.start(Launch::demo().set("NOLAG_FEATURES", setting)).await?;
        let mut client = broker.open().await?;
        let request = frame! {"type" => "auth", "token" => "dev-token-alice", "features" => names(&ALL)};
        let reply = client.ask(request).await?;
        holds(&reply, &frame! {"type" => "auth", "success" => true})?;
        let granted = granted(&reply)?;
        ensure!(granted.iter().all(|name| allowed.contains(name)), "{setting} granted {granted:?}");
        ensure!(context.extended() || granted.is_empty(), "the kraken profile granted {granted:?}");
        if setting == "batch, reauth" && context.extended() {
            ensure!(!granted.is_empty(), "a list of two granted none of them");
        }
    }
    Ok(())
}
