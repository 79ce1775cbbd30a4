//! What is negotiated (features).

use anyhow::{Result, ensure};

use crate::broker::Launch;
use crate::client::{Incoming, granted, names};
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{encode, frame, holds, lacks};

/// All features, in the order of the specification.
const ALL: [&str; 7] = ["recover", "dedupe", "rooms", "batch", "redeliver", "reauth", "trace"];

pub(super) fn cases() -> Vec<Case> {
    use Needs::{Broker, Nothing};
    vec![
        case!(
            "F-02",
            Both,
            Nothing,
            "grants what it knows of what was asked; other names change nothing",
            unknown
        ),
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
            Broker,
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
