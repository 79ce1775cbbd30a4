//! Worker groups whose members acknowledge (features 6).

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;

use crate::client::{Client, typed};
use crate::suite::{Case, Context, Needs, Target, case};
use crate::wire::{frame, get, holds, lacks, list, text, with};

/// How many messages are out with one member at most.
const MAX_UNACKED: usize = 256;

pub(super) fn cases() -> Vec<Case> {
    use Needs::Nothing;
    vec![
        case!(
            "F-13",
            Extended,
            Nothing,
            "what a worker holds that dies or takes too long goes to another, once each, `redelivered`",
            goes_on
        ),
        case!(
            "F-14",
            Extended,
            Nothing,
            "a member that never acknowledges gets no more than `maxUnacked`",
            bounded
        ),
        case!(
            "features 6",
            Extended,
            Nothing,
            "refuses a time out of bounds, and asks for no other acks",
            asked
        ),
    ]
}

/// A subscribe of a worker.
fn work(topic: &str) -> Value {
    frame! {"topic" => topic, "loadBalance" => true, "loadBalanceGroup" => "workers", "redeliver" => true}
}

async fn client(target: &Target) -> Result<Client> {
    target.open().await?.negotiated(&target.token, &["redeliver"]).await
}

async fn worker(target: &Target, topic: &str) -> Result<Client> {
    let mut client = client(target).await?;
    client.subscribe_as(work(topic)).await?;
    Ok(client)
}

async fn publish(publisher: &mut Client, topic: &str, payloads: std::ops::Range<u64>) -> Result<()> {
    for data in payloads {
        publisher.publish_as(frame! {"topic" => topic, "data" => data, "qos" => 1}).await?;
    }
    Ok(())
}

/// The ids of messages by their payloads, each of which has to be acknowledged, and came before or not.
fn ids(messages: &[Value], again: bool) -> Result<BTreeMap<u64, String>> {
    let mut ids = BTreeMap::new();
    for message in messages {
        holds(message, &frame! {"type" => "message", "requiresAck" => true})?;
        if again {
            holds(message, &frame! {"redelivered" => true})?;
        } else {
            lacks(message, &["redelivered"])?;
        }
        let data = get(message, "data").and_then(Value::as_u64).context("a message of another case")?;
        let before = ids.insert(data, text(message, "msgId").to_owned());
        ensure!(before.is_none(), "{data} came twice to one member");
    }
    Ok(ids)
}

async fn acknowledge(client: &mut Client, ids: impl Iterator<Item = &String>) -> Result<()> {
    let ids: Vec<Value> = ids.map(|id| Value::from(id.as_str())).collect();
    client.send(frame! {"type" => "batchAck", "msgIds" => ids}).await
}

async fn goes_on(context: Context) -> Result<()> {
    let topic = context.topic("work");
    let topic = topic.as_str();
    let mut publisher = context.bob().await?;
    let (mut dies, mut stays) = (worker(&context, topic).await?, worker(&context, topic).await?);
    publish(&mut publisher, topic, 0..22).await?;
    let mut held = ids(&dies.messages().await?, false)?;
    let own = ids(&stays.messages().await?, false)?;
    ensure!((held.len(), own.len()) == (11, 11), "in turns: {held:?} and {own:?}");
    let done = held.pop_first().context("nothing was handed out")?.1;
    dies.send(frame! {"type" => "ack", "msgId" => done.as_str()}).await?;
    // An acknowledgement of somebody else's message counts for nothing.
    acknowledge(&mut stays, held.values()).await?;
    dies.settle().await?;
    stays.settle().await?;
    dies.vanish();
    let mut again = Vec::new();
    while again.len() < held.len() {
        again.push(stays.frame().await.context("waiting for what the dead worker held")?);
    }
    ensure!(ids(&again, true)? == held, "the ten that were not acknowledged, with their ids: {again:?}");
    acknowledge(&mut stays, own.values().chain(held.values())).await?;
    stays.quiet().await?;

    // A time to acknowledge that passes; a worker that is alone gets it again.
    let reply = frame! {"type" => "subscribed"};
    stays.ask_for(typed("subscribe", with(work(topic), "ackTimeoutMs", 1_000)), reply).await?;
    publish(&mut publisher, topic, 22..23).await?;
    let first = ids(&stays.messages().await?, false)?;
    let second = stays.frame().await.context("waiting for the time to pass")?;
    ensure!(ids(&[second], true)? == first);
    acknowledge(&mut stays, first.values()).await?;

    // While nobody is there messages wait.
    stays.quiet().await?;
    stays.close().await?;
    publish(&mut publisher, topic, 23..25).await?;
    let mut late = worker(&context, topic).await?;
    let mut waited = Vec::new();
    while waited.len() < 2 {
        waited.push(late.frame().await.context("waiting for what came meanwhile")?);
    }
    let payloads: Vec<_> = waited.iter().filter_map(|message| get(message, "data")?.as_u64()).collect();
    ensure!(payloads == [23, 24], "{payloads:?} waited");
    late.quiet().await
}

async fn bounded(context: Context) -> Result<()> {
    let topic = context.topic("bounded");
    let topic = topic.as_str();
    let mut publisher = context.bob().await?;
    let mut lazy = worker(&context, topic).await?;
    let count = MAX_UNACKED as u64 + 20;
    publish(&mut publisher, topic, 0..count).await?;
    let held = ids(&lazy.messages().await?, false)?;
    ensure!(held.keys().copied().eq(0..MAX_UNACKED as u64), "{} are out", held.len());
    acknowledge(&mut lazy, held.values().take(1)).await?;
    let next = lazy.one_message(frame! {"data" => MAX_UNACKED as u64}).await?;
    lacks(&next, &["redelivered"])?;
    let mut other = worker(&context, topic).await?;
    let rest = ids(&other.messages().await?, false)?;
    ensure!(rest.len() == 19, "what waits is for whoever has room: {} came", rest.len());
    lazy.quiet().await
}

async fn asked(context: Context) -> Result<()> {
    let topic = context.topic("asked");
    let topic = topic.as_str();
    let mut member = client(&context).await?;
    for timeout in [0_u64, 999, 3_600_001] {
        let subscribe = typed("subscribe", with(work(topic), "ackTimeoutMs", timeout));
        member
            .ask_for(subscribe, frame! {"type" => "error", "code" => 40000, "error" => "invalid_message"})
            .await?;
    }
    for timeout in [1_000_u64, 3_600_000] {
        let subscribe = typed("subscribe", with(work(topic), "ackTimeoutMs", timeout));
        member.ask_for(subscribe, frame! {"type" => "subscribed", "loadBalance" => true}).await?;
    }
    let mut ordinary = client(&context).await?;
    ordinary.subscribe(topic).await?;
    let mut publisher = context.bob().await?;
    publish(&mut publisher, topic, 0..1).await?;
    lacks(&ordinary.one_message(frame! {"data" => 0_u64}).await?, &["requiresAck", "redelivered"])?;
    let handed = member.one_message(frame! {"data" => 0_u64, "requiresAck" => true}).await?;
    let unknown = list![text(&handed, "msgId"), "unknown", ""];
    member.send(frame! {"type" => "batchAck", "msgIds" => unknown}).await?;
    member.quiet().await
}
