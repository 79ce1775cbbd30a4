//! Revalidation of live connections (wire protocol 8, 21.5), as far as a token file can show it.
//!
//! All cases set `REVALIDATION_INTERVAL_MS` to a second, send heartbeats, and look at the order of what happens.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rmpv::Value;
use serde_json::{Value as Json, json};

use crate::broker::{Broker, Launch, actor};
use crate::client::{Client, Incoming, PATIENCE, Values};
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{brief, frame, get, holds, kind};

pub(super) fn cases() -> Vec<Case> {
    use Needs::Broker;
    vec![
        case!("C-030", Both, Broker, "revalidates on the first heartbeat after the interval", on_heartbeat),
        case!(
            "C-031",
            Both,
            Broker,
            "closes with 4001 and the reason; keeps the connection if the backend cannot answer",
            invalid
        ),
        case!("C-032", Both, Broker, "applies new grants from revalidation to later requests", new_grants),
        case!(
            "C-033",
            Extended,
            Broker,
            "removes subscriptions that lost their grant and announces each",
            lost_grants
        ),
        case!(
            "C-034",
            Both,
            Broker,
            "closes with 4002 above the limit after revalidation, not when exactly at it",
            over_limit
        ),
        case!(
            "C-038",
            Extended,
            Broker,
            "sends disconnect before 4001, 4002 and shutdown",
            disconnect_frames
        ),
    ]
}

const INTERVAL: Duration = Duration::from_secs(1);

async fn start(context: &Context, tokens: Json) -> Result<Broker> {
    context.start(Launch::tokens(tokens).set("REVALIDATION_INTERVAL_MS", INTERVAL)).await
}

fn rule(pattern: &str) -> Json {
    json!({"pattern": pattern, "permission": "pubSub"})
}

/// Sends heartbeats, ten in an interval, until something other than an echo arrives, and gives that.
async fn beat_until_news(client: &mut Client) -> Result<Incoming> {
    let began = Instant::now();
    loop {
        if let Err(error) = client.heartbeat().await {
            // The close frame is there to be read although the connection takes nothing more.
            return client.next().await.with_context(|| format!("{error:#}"));
        }
        match client.next().await? {
            Incoming::Heartbeat => {}
            news => return Ok(news),
        }
        ensure!(began.elapsed() < PATIENCE, "nothing but heartbeats for {} s", PATIENCE.as_secs());
        tokio::time::sleep(INTERVAL / 10).await;
    }
}

/// Sends heartbeats until the connection is closed, and gives the frames before, the code and the reason.
async fn beat_until_closed(client: &mut Client) -> Result<(Values, u16, String)> {
    let mut frames = Values::default();
    loop {
        match beat_until_news(client).await? {
            Incoming::Frame(frame) => frames.push(frame),
            Incoming::Closed { code, reason } => return Ok((frames, code, reason)),
            other => bail!("expected a close frame, got {other:?}"),
        }
    }
}

/// Sends heartbeats for so long, and insists that the connection stays.
async fn beat_for(client: &mut Client, time: Duration) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < time {
        client.heartbeat().await?;
        let incoming = client.settle_all().await?;
        ensure!(matches!(incoming[..], [Incoming::Heartbeat]), "expected one echo, got {incoming:?}");
        tokio::time::sleep(INTERVAL / 10).await;
    }
    Ok(())
}

/// C-030: a token that is gone is noticed by the first heartbeat after the interval, and by none before.
async fn on_heartbeat(context: Context) -> Result<()> {
    let broker =
        start(&context, json!({"tok-a": actor("a", json!([rule("t/#")])), "tok-b": actor("b", json!([]))}))
            .await?;
    let began = Instant::now();
    let mut client = broker.connect("tok-a").await?;
    broker.rewrite(&json!({"tok-b": actor("b", json!([]))}))?;
    let (_, code, reason) = beat_until_closed(&mut client).await?;
    ensure!((code, reason.as_str()) == (4001, "token_revoked"), "closed with {code} `{reason}`");
    let waited = began.elapsed();
    ensure!(waited >= INTERVAL, "revalidated after {waited:?} already");
    ensure!(waited < INTERVAL * 4, "revalidated after {waited:?} only");
    Ok(())
}

/// C-031: a file that cannot be read is a backend that cannot answer; once repaired, the next heartbeat asks again.
async fn invalid(context: Context) -> Result<()> {
    let broker =
        start(&context, json!({"tok-a": actor("a", json!([rule("t/#")])), "tok-b": actor("b", json!([]))}))
            .await?;
    let mut client = broker.connect("tok-a").await?;
    client.subscribe("t/x").await?;
    broker.break_tokens()?;
    beat_for(&mut client, INTERVAL * 5 / 2).await.context("while the token file cannot be parsed")?;
    // Another token of the same actor is as good as the one it came with (21.5).
    broker.rewrite(&json!({"tok-z": actor("a", json!([rule("t/#")]))}))?;
    beat_for(&mut client, INTERVAL * 3 / 2).await.context("while the actor has another token")?;
    broker.rewrite(&json!({"tok-b": actor("b", json!([]))}))?;
    let (frames, code, reason) = beat_until_closed(&mut client).await?;
    ensure!((code, reason.as_str()) == (4001, "token_revoked"), "closed with {code} `{reason}`");
    if context.extended() {
        ensure!(frames.len() == 1, "expected a disconnect frame, got {frames:?}");
        holds(&frames[0], &frame! {"type" => "disconnect", "reason" => "token_revoked"})?;
    }
    Ok(())
}

/// Sends heartbeats until a subscribe to the topic succeeds.
async fn beat_until_granted(client: &mut Client, topic: &str) -> Result<Values> {
    let began = Instant::now();
    let mut before = Values::default();
    loop {
        client.heartbeat().await?;
        client.send(frame! {"type" => "subscribe", "topic" => topic}).await?;
        for incoming in client.settle_all().await? {
            match incoming {
                Incoming::Frame(frame) if kind(&frame) == "subscribed" => return Ok(before),
                Incoming::Frame(frame) if kind(&frame) == "error" => {}
                Incoming::Frame(frame) => before.push(frame),
                Incoming::Heartbeat => {}
                other => bail!("expected frames and heartbeats, got {other:?}"),
            }
        }
        ensure!(began.elapsed() < PATIENCE, "`{topic}` is still refused after {} s", PATIENCE.as_secs());
        tokio::time::sleep(INTERVAL / 10).await;
    }
}

/// C-032: what was refused is granted, and what was granted is refused.
async fn new_grants(context: Context) -> Result<()> {
    let broker = start(&context, json!({"tok-a": actor("a", json!([rule("old/#")]))})).await?;
    let mut client = broker.connect("tok-a").await?;
    client.publish("old/x", 1).await?;
    holds(&client.try_publish(frame! {"topic" => "new/x", "data" => 1}).await?, &frame! {"code" => 42940})?;
    broker.rewrite(&json!({"tok-a": actor("a", json!([rule("new/#")]))}))?;
    beat_until_granted(&mut client, "new/x").await?;
    client.publish("new/x", 1).await?;
    client.settle().await?;
    holds(&client.try_publish(frame! {"topic" => "old/x", "data" => 1}).await?, &frame! {"code" => 42940})
}

/// C-033: X-11. Only those that no rule covers any more go; a wildcard needs a rule that covers all of it.
async fn lost_grants(context: Context) -> Result<()> {
    let publisher = actor("b", json!([rule("#")]));
    let before = actor("a", json!([rule("t/#"), rule("kept/x")]));
    let after = actor("a", json!([rule("t/+/y"), rule("kept/x"), rule("proof/#")]));
    let broker = start(&context, json!({"tok-a": before, "tok-b": publisher})).await?;
    let mut client = broker.connect("tok-a").await?;
    for topic in ["kept/x", "t/x", "t/a/y", "t/+/y", "t/#"] {
        client.subscribe(topic).await?;
    }
    broker.rewrite(&json!({"tok-a": after, "tok-b": publisher}))?;
    let mut announced = beat_until_granted(&mut client, "proof/x").await?;
    announced.extend(client.settle().await?);
    let mut lost = Vec::new();
    for frame in &announced {
        holds(frame, &frame! {"type" => "unsubscribed", "reason" => "not_authorized"})?;
        lost.push(crate::wire::text(frame, "topic"));
    }
    lost.sort_unstable();
    ensure!(lost == ["t/#", "t/x"], "expected t/# and t/x to be announced, got {lost:?}");

    let mut publisher = broker.connect("tok-b").await?;
    for topic in ["t/x", "t/other", "kept/x", "t/a/y"] {
        publisher.publish(topic, topic).await?;
    }
    let mut heard: Vec<String> =
        client.messages().await?.iter().map(|frame| crate::wire::text(frame, "topic").to_owned()).collect();
    heard.sort_unstable();
    ensure!(heard == ["kept/x", "t/+/y", "t/a/y"], "after the loss the messages came for {heard:?}");
    Ok(())
}

/// C-034: two connections and a limit of two, then of one. A new grant proves that the revalidation took place.
async fn over_limit(context: Context) -> Result<()> {
    let entry = |name: &str, most: u32, more: &str| {
        let mut entry = actor(name, json!([rule("t/#"), rule(more)]));
        entry["organizationId"] = json!("org");
        entry["maxConnections"] = json!(most);
        entry
    };
    let file =
        |most: u32, more: &str| json!({"tok-a": entry("a", most, more), "tok-b": entry("b", most, more)});
    let broker = start(&context, file(9, "none/#")).await?;
    let mut first = broker.connect("tok-a").await?;
    let mut second = broker.connect("tok-b").await?;
    broker.rewrite(&file(2, "two/#"))?;
    beat_until_granted(&mut first, "two/x").await.context("exactly at the limit")?;
    beat_until_granted(&mut second, "two/x").await.context("exactly at the limit")?;
    broker.rewrite(&file(1, "one/#"))?;
    let (frames, code, reason) = beat_until_closed(&mut first).await.context("one above the limit")?;
    ensure!((code, reason.as_str()) == (4002, "connection_limit_reached"), "closed with {code} `{reason}`");
    if context.extended() {
        ensure!(frames.len() == 1, "expected a disconnect frame, got {frames:?}");
        holds(&frames[0], &frame! {"type" => "disconnect", "reason" => "connection_limit_reached"})?;
    }
    Ok(())
}

/// C-038; the frame carries the reason of the close, and comes last.
async fn disconnect_frames(context: Context) -> Result<()> {
    let entry = |name: &str, most: u32| {
        json!({"actorTokenId": name, "projectId": "p", "organizationId": name, "maxConnections": most,
            "allowedTopics": [rule("t/#")]})
    };
    let broker =
        start(&context, json!({"tok-a": entry("a", 9), "tok-b": entry("b", 9), "tok-c": entry("c", 9)}))
            .await?;
    let mut revoked = broker.connect("tok-a").await?;
    let mut crowded = broker.connect("tok-b").await?;
    let mut staying = broker.connect("tok-c").await?;
    // The second of the two comes later, so that its own revalidation is not due before that of the first.
    beat_for(&mut crowded, INTERVAL / 2).await?;
    let _second = broker.connect("tok-b").await?;
    broker.rewrite(&json!({"tok-b": entry("b", 1), "tok-c": entry("c", 9)}))?;
    let (a, b) = tokio::join!(beat_until_closed(&mut revoked), beat_until_closed(&mut crowded));
    let expect = |what: &str, (frames, code, reason): (Values, u16, String), want: (u16, &str)| {
        ensure!((code, reason.as_str()) == want, "{what}: closed with {code} `{reason}`");
        let last = frames.last().with_context(|| format!("{what}: no frame before the close"))?;
        ensure!(kind(last) == "disconnect", "{what}: {} before the close", brief(last));
        holds(last, &frame! {"reason" => want.1}).with_context(|| what.to_owned())
    };
    expect("revoked", a?, (4001, "token_revoked"))?;
    expect("over the limit", b?, (4002, "connection_limit_reached"))?;
    staying.quiet().await?;
    broker.terminate().await?;
    let (frames, code, reason) = staying.closed().await?;
    let wait = frames.last().and_then(|frame| get(frame, "retryAfterMs"));
    ensure!(wait.is_none_or(Value::is_u64), "retryAfterMs is no number of milliseconds: {wait:?}");
    expect("shutdown", (frames, code, reason), (1012, "draining"))
}
