//! Authentication, heartbeat and the idle timeout (wire protocol 5, 6, 8).

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rmpv::Value;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::broker::{Launch, actor};
use crate::client::{Client, Incoming};
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{brief, encode, frame, get, holds, kind, lacks, list, text};

pub(super) fn cases() -> Vec<Case> {
    use Needs::{Broker, Nothing};
    vec![
        case!(
            "C-018",
            Both,
            Nothing,
            "answers frames before authentication with not_authenticated, stays open",
            before_auth
        ),
        case!(
            "C-019",
            Both,
            Nothing,
            "keeps the connection open after a failed auth, accepts a later one",
            second_try
        ),
        case!(
            "C-020",
            Both,
            Nothing,
            "replies with the smaller version; an unusable one counts as 1",
            versions
        ),
        case!("C-021", Both, Nothing, "reports an unknown token as access_denied", unknown_token),
        case!(
            "C-022",
            Both,
            Broker,
            "reports connection_limit_reached exactly at the maximum",
            connection_limit
        ),
        case!("C-025", Extended, Nothing, "refuses a second auth and keeps the identity", second_auth),
        case!("C-026", Extended, Nothing, "closes with 1008 after five failed auth frames", five_failures),
        case!(
            "C-027",
            Both,
            Nothing,
            "echoes an empty binary message when authenticated and not before",
            heartbeat
        ),
        case!("C-028", Both, Broker, "closes with 1000 after silence, whatever it sends itself", idle),
        case!(
            "C-040",
            Both,
            Broker,
            "AUTH_ALLOW_ALL authenticates any token with the identity of 21.1",
            allow_all
        ),
    ]
}

/// C-018: every client frame, frames of no known type, values that are no frame, heartbeats; then a valid `auth`.
async fn before_auth(context: Context) -> Result<()> {
    let mut client = context.open().await?;
    for value in [
        frame! {"type" => "subscribe", "topic" => "demo/x", "msgRef" => "b-1"},
        frame! {"type" => "unsubscribe", "topic" => "demo/x"},
        frame! {"type" => "setFilters", "topic" => "demo/x", "filters" => list![]},
        frame! {"type" => "publish", "topic" => "demo/x", "data" => 1, "msgRef" => "b-2"},
        frame! {"type" => "presence", "roomId" => context.room.as_str(), "data" => 1},
        frame! {"type" => "getPresence"},
        frame! {"type" => "lobbySubscribe", "lobbyId" => "x"},
        frame! {"type" => "lobbyUnsubscribe", "lobbyId" => "x"},
        frame! {"type" => "getLobbyPresence", "lobbyId" => "x"},
        frame! {"type" => "ack", "msgId" => "x"},
        frame! {"type" => "batchAck", "msgIds" => list![]},
        frame! {"type" => "reauth", "token" => context.token.as_str()},
        frame! {"type" => "futureFrame"},
        frame! {"type" => "auth"},
        frame! {"type" => "auth", "token" => Value::Nil},
        frame! {"no type" => 1},
        list![1, 2],
        Value::from("auth"),
    ] {
        let sent = brief(&value);
        client.heartbeat().await?;
        let reply = client.ask_for(value, frame! {"type" => "error", "error" => "not_authenticated"}).await?;
        lacks(&reply, &["code"]).with_context(|| sent)?;
    }
    client.authenticated(&context.token).await?.quiet().await
}

/// C-019: three failures, then success, and the connection works.
async fn second_try(context: Context) -> Result<()> {
    let mut client = context.open().await?;
    for token in ["no such token", "", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln"] {
        let reply = client.auth(token).await?;
        holds(&reply, &frame! {"type" => "auth", "success" => false})
            .with_context(|| format!("the token `{token}`"))?;
        let request = frame! {"type" => "getPresence"};
        client.ask_for(request, frame! {"type" => "error", "error" => "not_authenticated"}).await?;
    }
    client.authenticated(&context.token).await?.quiet().await
}

/// C-020: 6.2. A float is no version (4.3).
async fn versions(context: Context) -> Result<()> {
    let ask = async |version: Option<Value>| {
        let mut client = context.open().await?;
        let mut request = frame! {"type" => "auth", "token" => context.token.as_str()};
        if let Some(version) = &version {
            request = crate::wire::with(request, "protocolVersion", version.clone());
        }
        let reply = client.ask(request).await?;
        holds(&reply, &frame! {"type" => "auth", "success" => true})?;
        lacks(&reply, &["error"])?;
        let version = get(&reply, "protocolVersion").and_then(Value::as_u64);
        anyhow::Ok(version.context("no protocolVersion in the reply")?)
    };
    for (version, expected) in [
        (None, 1),
        (Some(Value::Nil), 1),
        (Some(Value::from(1)), 1),
        (Some(Value::from(2)), 2),
        (Some(Value::from(3)), 2),
        (Some(Value::from(99)), 2),
        (Some(Value::from(u64::MAX)), 2),
        (Some(Value::from(0)), 1),
        (Some(Value::from(-1)), 1),
        (Some(Value::from(2.0)), 1),
        (Some(Value::from("2")), 1),
        (Some(Value::from(true)), 1),
        (Some(list![2]), 1),
    ] {
        let shown = version.as_ref().map_or("none".to_owned(), ToString::to_string);
        let got = ask(version).await.with_context(|| format!("protocolVersion {shown}"))?;
        ensure!(got == expected, "protocolVersion {shown} was answered with {got}, not {expected}");
    }
    Ok(())
}

/// C-021: with the fields of a failure, and no others.
async fn unknown_token(context: Context) -> Result<()> {
    let mut client = context.open().await?;
    let reply = client.auth("no-such-token").await?;
    holds(&reply, &frame! {"type" => "auth", "success" => false, "error" => "access_denied"})?;
    lacks(&reply, &["actorTokenId", "projectId", "actorType", "restoredSubscriptions", "limits"])
}

/// C-022, FC-29 (its second run): the count is per organization, over different actors; a connection that ends makes room again.
async fn connection_limit(context: Context) -> Result<()> {
    let rules = json!([{"pattern": "t/#", "permission": "pubSub"}]);
    let member = |name: &str, organization: &str, most: u32| {
        let mut entry = actor(name, rules.clone());
        entry["organizationId"] = json!(organization);
        entry["maxConnections"] = json!(most);
        entry
    };
    let mut free = actor("free", rules.clone());
    free["maxConnections"] = json!(1);
    let tokens = json!({"tok-a": member("a", "org", 2), "tok-b": member("b", "org", 2), "tok-c": member("c", "other", 1),
        "tok-free": free});
    let mut broker = context.start(Launch::tokens(tokens)).await?;
    let refused = frame! {"type" => "auth", "success" => false, "error" => "connection_limit_reached"};
    let first = broker.connect("tok-a").await?;
    let mut second = broker.connect("tok-b").await.context("the second of two")?;
    // Connections that are not authenticated do not count.
    let mut third = broker.open().await?;
    holds(&third.auth("tok-a").await?, &refused).context("the third of two")?;
    holds(&third.auth("tok-b").await?, &refused).context("the third of two")?;
    let mut other = broker.connect("tok-c").await.context("another organization")?;
    let _without_organization = (broker.connect("tok-free").await?, broker.connect("tok-free").await?);
    second.quiet().await?;
    other.quiet().await?;

    first.close().await?;
    // The count goes down once the broker has noticed the end, which nothing on the wire tells.
    let mut tries = 0;
    while get(&third.auth("tok-a").await?, "success") != Some(&Value::from(true)) {
        tries += 1;
        ensure!(tries < 200, "no room again after a connection ended");
        tokio::time::sleep(Duration::from_millis(20)).await;
        third = broker.open().await?;
    }
    third.quiet().await?;
    broker.alive()
}

/// C-025: X-14. The identity shows in `from`.
async fn second_auth(context: Context) -> Result<()> {
    let topic = context.topic("second-auth");
    let mut bob = context.bob().await?;
    bob.subscribe(&topic).await?;
    let mut client = context.open().await?;
    let first = client.auth(&context.token).await?;
    let actor = text(&first, "actorTokenId").to_owned();
    for token in [&context.other_token, &context.token, "no such token"] {
        let reply = client.auth(token).await?;
        holds(&reply, &frame! {"type" => "auth", "success" => false, "error" => "already_authenticated"})?;
    }
    client.publish(&topic, 1).await?;
    bob.one_message(frame! {"from" => actor}).await?;
    Ok(())
}

/// C-026: X-23.
async fn five_failures(context: Context) -> Result<()> {
    let mut client = context.open().await?;
    for at in 1..=5 {
        let reply = client.auth("no such token").await.with_context(|| format!("attempt {at}"))?;
        holds(&reply, &frame! {"type" => "auth", "success" => false})?;
    }
    let (frames, code, reason) = client.closed().await?;
    ensure!((code, reason.as_str()) == (1008, "too_many_auth_failures"), "closed with {code} `{reason}`");
    ensure!(frames.is_empty(), "frames before the close: {frames:?}");
    Ok(())
}

/// C-027: one for one, in order with replies.
async fn heartbeat(context: Context) -> Result<()> {
    let mut client = context.open().await?;
    client.heartbeat().await?;
    client.ask_for(frame! {"type" => "getPresence"}, frame! {"error" => "not_authenticated"}).await?;
    let mut client = client.authenticated(&context.token).await?;
    for beats in [1, 3] {
        for _ in 0..beats {
            client.heartbeat().await?;
        }
        let incoming = client.settle_all().await?;
        let echoes = incoming.iter().filter(|incoming| matches!(incoming, Incoming::Heartbeat)).count();
        ensure!(
            echoes == beats && incoming.len() == beats,
            "{beats} heartbeats were answered with {incoming:?}"
        );
    }
    Ok(())
}

/// C-028: with a short setting. Two silent connections, one of which receives all the time, are closed; three others
/// live on by heartbeats, by pings and by frames alone.
async fn idle(context: Context) -> Result<()> {
    const IDLE: Duration = Duration::from_millis(1_500);
    let broker = context.start(Launch::demo().set("WS_IDLE_TIMEOUT_MS", IDLE)).await?;
    let topic = "demo/general/idle";
    let began = Instant::now();
    let mut listener = broker.connect("dev-token-bob").await?;
    listener.subscribe(topic).await?;
    let mut stranger = broker.open().await?;
    let mut beating = broker.connect("dev-token-bob").await?;
    let mut pinging = broker.open().await?;
    let mut publishing = broker.connect("dev-token-alice").await?;

    let closed = async |client: &mut Client| {
        let (frames, code, reason) = client.closed().await?;
        ensure!(code == 1000, "closed with {code}, not 1000");
        ensure!(matches!(reason.as_str(), "" | "idle_timeout"), "closed with the reason `{reason}`");
        let waited = began.elapsed();
        ensure!(waited >= IDLE, "closed after {waited:?} already");
        anyhow::Ok(frames)
    };
    let live = async {
        loop {
            beating.heartbeat().await?;
            pinging.send_message(Message::Ping(b"p".to_vec().into())).await?;
            publishing
                .send_bytes(encode(&frame! {"type" => "publish", "topic" => topic, "data" => 1}))
                .await?;
            tokio::time::sleep(IDLE / 8).await;
            if began.elapsed() > IDLE * 3 {
                return anyhow::Ok(());
            }
        }
    };
    let (heard, nothing, live) = tokio::join!(closed(&mut listener), closed(&mut stranger), live);
    live?;
    let heard = heard.context("a subscriber that only listens")?;
    ensure!(heard.len() >= 3, "the subscriber should have received all the time, and got {heard:?}");
    nothing.context("a connection that never authenticates")?;
    beating.settle_all().await.context("a connection with heartbeats")?;
    publishing.quiet().await.context("a connection that publishes")?;
    let mut alive = pinging;
    loop {
        alive.send_message(Message::Ping(b"last".to_vec().into())).await?;
        match alive.next().await? {
            Incoming::Pong(payload) if payload == b"last" => return Ok(()),
            Incoming::Pong(_) => {}
            other => bail!("a connection with pings got {other:?}"),
        }
    }
}

/// C-040: 21.1.
async fn allow_all(context: Context) -> Result<()> {
    let broker = context.start(Launch::without_tokens().set("AUTH_ALLOW_ALL", "true")).await?;
    let mut clients = Vec::new();
    for token in ["anyone", "eyJ.no.jwt", "x"] {
        let mut client = broker.open().await?;
        let reply = client.auth(token).await?;
        let identity = frame! {"success" => true, "actorTokenId" => token, "projectId" => "dev-project", "actorType" => "user"};
        holds(&reply, &identity)?;
        clients.push(client);
    }
    let mut second = clients.pop().context("three clients")?;
    let mut first = clients.pop().context("three clients")?;
    second.subscribe("any/topic/at-all").await?;
    first.publish("any/topic/at-all", 1).await?;
    let message = second.one_message(frame! {"topic" => "any/topic/at-all", "data" => 1}).await?;
    ensure!(kind(&message) == "message", "a message");
    Ok(())
}
