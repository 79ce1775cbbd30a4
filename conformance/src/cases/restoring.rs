//! Restoring subscriptions (wire protocol 17).

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;

use crate::client::{Client, unique};
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{brief, frame, get, holds, list, same, text};

pub(super) fn cases() -> Vec<Case> {
    use Needs::Nothing;
    vec![
        case!("C-083", Both, Nothing, "restores only when `reconnect` is exactly true", exactly_true),
        case!("C-084", Both, Nothing, "restores with filters, mode and group, and lists them", restored),
        case!("C-085", Both, Nothing, "forgets on a fresh connect and on unsubscribe", forgotten),
        case!("C-088", Both, Nothing, "reduces `clientId` to its plain characters", reduced),
        case!("C-089", Both, Nothing, "answers ack and batchAck with nothing", acks),
    ]
}

/// Authenticates by this name of the client, and gives what was restored.
async fn come(context: &Context, client_id: &str, reconnect: Value) -> Result<(Client, Vec<Value>)> {
    let mut client = context.open().await?;
    let request = frame! {"type" => "auth", "token" => context.token.as_str(), "protocolVersion" => 2,
    "clientId" => client_id, "reconnect" => reconnect};
    let reply = client.ask(request).await?;
    holds(&reply, &frame! {"type" => "auth", "success" => true})?;
    let restored = get(&reply, "restoredSubscriptions").and_then(Value::as_array).cloned();
    Ok((client, restored.with_context(|| format!("no restoredSubscriptions in {}", brief(&reply)))?))
}

fn name() -> String {
    format!("conformance-{}-{}", std::process::id(), unique())
}

/// C-083: while another connection of the client keeps the memory alive.
async fn exactly_true(context: Context) -> Result<()> {
    let (name, topic) = (name(), context.topic("restored"));
    let (mut client, _) = come(&context, &name, false.into()).await?;
    client.subscribe(&topic).await?;
    for not_quite in [1.into(), "true".into(), Value::Nil, false.into()] {
        let shown = brief(&not_quite);
        let (_client, restored) = come(&context, &name, not_quite).await?;
        ensure!(restored.is_empty(), "restored {restored:?} for {shown}");
    }
    let (_client, restored) = come(&context, &name, true.into()).await?;
    ensure!(restored.len() == 1 && text(&restored[0], "topic") == topic, "restored {restored:?}");
    Ok(())
}

/// C-084: what was sent, no more and no less; and it is in force, what is retained included.
async fn restored(context: Context) -> Result<()> {
    let (name, jobs, news) = (name(), context.topic("jobs"), context.topic("news"));
    let (mut client, _) = come(&context, &name, false.into()).await?;
    let worker = frame! {"topic" => jobs.as_str(), "filters" => list!["night"], "loadBalance" => true,
    "loadBalanceGroup" => "workers", "qos" => 1};
    client.subscribe_as(worker.clone()).await?;
    client.subscribe(&news).await?;
    client.publish_as(frame! {"topic" => news.as_str(), "data" => "kept", "retain" => true}).await?;
    client.close().await?;
    let (mut client, restored) = come(&context, &name, true.into()).await?;
    let expected = [worker, frame! {"topic" => news.as_str()}];
    ensure!(
        restored.len() == 2 && restored.iter().zip(&expected).all(|(entry, expected)| same(entry, expected)),
        "restored {restored:?}"
    );
    client.one_message(frame! {"topic" => news.as_str(), "data" => "kept"}).await?;
    let mut bob = context.bob().await?;
    bob.publish_as(frame! {"topic" => jobs.as_str(), "data" => "by day", "filter" => "day"}).await?;
    bob.publish_as(frame! {"topic" => jobs.as_str(), "data" => "by night", "filter" => "night"}).await?;
    client.one_message(frame! {"topic" => jobs.as_str(), "data" => "by night"}).await?;
    client.publish_as(frame! {"topic" => news.as_str(), "data" => Value::Nil, "retain" => true}).await
}

/// C-085, but for the hour.
async fn forgotten(context: Context) -> Result<()> {
    let (name, topic, gone) = (name(), context.topic("kept"), context.topic("gone"));
    let (mut client, _) = come(&context, &name, false.into()).await?;
    client.subscribe(&topic).await?;
    client.subscribe(&gone).await?;
    let request = frame! {"type" => "unsubscribe", "topic" => gone.as_str()};
    client.ask_for(request, frame! {"type" => "unsubscribed"}).await?;
    client.close().await?;
    let (client, restored) = come(&context, &name, true.into()).await?;
    ensure!(restored.len() == 1 && text(&restored[0], "topic") == topic, "restored {restored:?}");
    client.close().await?;
    come(&context, &name, false.into()).await?.0.close().await?;
    let (_client, restored) = come(&context, &name, true.into()).await?;
    ensure!(restored.is_empty(), "a fresh connect left {restored:?}");
    Ok(())
}

/// C-088: by its characters and its length.
async fn reduced(context: Context) -> Result<()> {
    let topic = context.topic("reduced");
    let name = format!("{}-{}", name(), "x".repeat(64));
    let (mut client, _) = come(&context, &name, false.into()).await?;
    client.subscribe(&topic).await?;
    for (other, count) in [
        (format!("/ {}?", name.replace('-', " - ")), 1),
        (name[..64].to_owned(), 1),
        (name[..63].to_owned(), 0),
        (name.to_uppercase(), 0),
    ] {
        let (_client, restored) = come(&context, &other, true.into()).await?;
        ensure!(restored.len() == count, "`{other}` restored {restored:?} of `{name}`");
    }
    Ok(())
}

/// C-089: ids of messages, unknown ones, none.
async fn acks(context: Context) -> Result<()> {
    let topic = context.topic("acked");
    let mut client = context.alice().await?;
    client.subscribe(&topic).await?;
    client.publish(&topic, 1).await?;
    let message = client.one_message(frame! {"data" => 1}).await?;
    for id in [text(&message, "msgId"), "unknown", ""] {
        client.send(frame! {"type" => "ack", "msgId" => id}).await?;
        client.send(frame! {"type" => "batchAck", "msgIds" => list![id, "unknown"]}).await?;
    }
    client.send(frame! {"type" => "batchAck", "msgIds" => list![]}).await?;
    client.quiet().await
}
