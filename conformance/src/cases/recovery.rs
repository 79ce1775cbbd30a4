//! Subscriptions that continue where they stopped, and publishes that are sent again (features 2, 3).

use anyhow::{Context as _, Result, bail, ensure};
use rmpv::Value;
use serde_json::{Value as Json, json};

use crate::broker::{Broker, Launch, actor};
use crate::client::Client;
use crate::suite::{Case, Context, Needs, NotRun, Target, case};
use crate::wire::{frame, get, holds, kind, lacks, with};

pub(super) fn cases() -> Vec<Case> {
    use Needs::{Broker as Own, Nothing};
    vec![
        case!(
            "F-03",
            Extended,
            Nothing,
            "recovered: exactly what was missed, once, in order, before what is live",
            continues
        ),
        case!("F-04", Extended, Own, "a trimmed history answers `expired` and replays nothing", trimmed),
        case!(
            "F-05",
            Extended,
            Nothing,
            "another run of numbers, or one not given out, answers `epoch`; what cannot be read is refused",
            other_runs
        ),
        case!(
            "F-06",
            Extended,
            Nothing,
            "filters and wildcards recover what they would have received",
            matching
        ),
        case!("F-07", Extended, Own, "a subscription that lost its grant recovers nothing", lost_grant),
        case!("F-08", Extended, Nothing, "`history: 20` gives the newest 20 of 30", newest),
        case!("F-09", Extended, Nothing, "a publish sent three times reaches each subscriber once", repeated),
        case!(
            "F-10",
            Extended,
            Own,
            "what is acknowledged as on disk is there after a kill, and memory is another run then",
            killed
        ),
    ]
}

async fn client(target: &Target) -> Result<Client> {
    target.open().await?.negotiated(&target.token, &["recover", "dedupe"]).await
}

/// Publishes these payloads so that they are kept: with a quality of 1, or without one, which means the same (wire protocol 10.4).
async fn publish(client: &mut Client, topic: &str, payloads: impl IntoIterator<Item = u64>) -> Result<()> {
    for data in payloads {
        let frame = frame! {"topic" => topic, "data" => data};
        client.publish_as(if data % 2 == 0 { frame } else { with(frame, "qos", 1) }).await?;
    }
    Ok(())
}

/// Subscribes and gives the position that the broker names.
async fn position(client: &mut Client, fields: Value) -> Result<Value> {
    let reply = client.ask(with(fields, "type", "subscribe")).await?;
    holds(&reply, &frame! {"type" => "subscribed"})?;
    let field = |name| get(&reply, name).cloned().with_context(|| format!("no `{name}` in {reply}"));
    Ok(frame! {"epoch" => field("epoch")?, "seq" => field("seq")?})
}

/// Subscribes from a position on a new connection, and gives the reply and what follows it.
async fn resume(target: &Target, fields: Value, recover: Value) -> Result<(Value, Vec<Value>)> {
    let mut client = client(target).await?;
    client.send(with(with(fields, "type", "subscribe"), "recover", recover)).await?;
    let mut frames = client.settle().await?.0;
    ensure!(!frames.is_empty(), "no reply");
    let reply = frames.remove(0);
    Ok((reply, frames))
}

/// The payloads of a replay, which must have its form.
fn replayed(frames: &[Value], topic: &str) -> Result<Vec<Value>> {
    let [start, messages @ .., end] = frames else {
        ensure!(frames.is_empty(), "a replay has a start and an end: {frames:?}");
        return Ok(Vec::new());
    };
    holds(start, &frame! {"type" => "replayStart", "topic" => topic, "count" => messages.len() as u64})?;
    // C-093: by both names.
    let count = messages.len() as u64;
    holds(end, &frame! {"type" => "replayEnd", "topic" => topic, "count" => count, "replayed" => count})?;
    let mut last = 0;
    let mut payloads = Vec::new();
    for message in messages {
        holds(message, &frame! {"type" => "message", "topic" => topic, "isReplay" => true})?;
        let seq = get(message, "seq").and_then(Value::as_u64).context("a message without its number")?;
        ensure!(seq > last, "{seq} came behind {last}");
        last = seq;
        payloads.push(get(message, "data").cloned().unwrap_or(Value::Nil));
    }
    Ok(payloads)
}

async fn continues(context: Context) -> Result<()> {
    let topic = context.topic("continues");
    let mut publisher = context.bob().await?;
    let mut first = client(&context).await?;
    let at = position(&mut first, frame! {"topic" => topic.as_str()}).await?;
    first.vanish();
    publish(&mut publisher, &topic, 0..5).await?;
    publisher.publish_as(frame! {"topic" => topic.as_str(), "data" => "not kept", "qos" => 0}).await?;

    let mut second = client(&context).await?;
    let subscribe = frame! {"type" => "subscribe", "topic" => topic.as_str(), "recover" => at.clone()};
    second.ask_for(subscribe, frame! {"type" => "subscribed", "recovered" => true}).await?;
    publish(&mut publisher, &topic, 5..7).await?;
    let frames = second.settle().await?.0;
    let (before, live) = frames.split_at(frames.len().saturating_sub(2));
    let expected: Vec<Value> = (0..5_u64).map(Value::from).collect();
    ensure!(replayed(before, &topic)? == expected, "replayed {before:?}");
    for (message, data) in live.iter().zip(5_u64..) {
        holds(message, &frame! {"type" => "message", "data" => data})?;
        lacks(message, &["isReplay"])?;
    }

    let (reply, frames) = resume(&context, frame! {"topic" => context.topic("idle")}, at).await?;
    holds(&reply, &frame! {"type" => "subscribed", "recovered" => true})?;
    ensure!(frames.is_empty(), "nothing was missed, and {frames:?} came");
    Ok(())
}

async fn trimmed(context: Context) -> Result<()> {
    let broker = context.start(Launch::demo().set("HISTORY_SIZE", 3_u64).set("RECOVER_LIMIT", 5_u64)).await?;
    let target = Target { address: broker.address.clone(), ..context.target() };
    let topic = context.topic("trimmed");
    let mut publisher = client(&target).await?;
    let at = position(&mut publisher, frame! {"topic" => context.topic("elsewhere")}).await?;
    publish(&mut publisher, &topic, 0..3).await?;
    let (reply, frames) = resume(&target, frame! {"topic" => topic.as_str()}, at.clone()).await?;
    holds(&reply, &frame! {"recovered" => true})?;
    ensure!(replayed(&frames, &topic)?.len() == 3, "as many as are kept");
    publish(&mut publisher, &topic, 3..4).await?;
    let (reply, frames) = resume(&target, frame! {"topic" => topic.as_str()}, at.clone()).await?;
    holds(&reply, &frame! {"recovered" => false, "gap" => "expired"})?;
    ensure!(frames.is_empty(), "a part came: {frames:?}");

    for n in 0..6 {
        publish(&mut publisher, &format!("{topic}/many/{n}"), [n]).await?;
    }
    let (reply, frames) = resume(&target, frame! {"topic" => format!("{topic}/many/#")}, at).await?;
    holds(&reply, &frame! {"recovered" => false, "gap" => "too_many"})?;
    ensure!(frames.is_empty(), "a part came: {frames:?}");
    Ok(())
}

async fn other_runs(context: Context) -> Result<()> {
    let topic = context.topic("runs");
    let mut publisher = client(&context).await?;
    let at = position(&mut publisher, frame! {"topic" => context.topic("elsewhere")}).await?;
    publish(&mut publisher, &topic, 0..2).await?;
    for recover in [with(at.clone(), "epoch", "another-run"), with(at.clone(), "seq", (1_u64 << 53) - 1)] {
        let (reply, frames) = resume(&context, frame! {"topic" => topic.as_str()}, recover).await?;
        holds(&reply, &frame! {"type" => "subscribed", "recovered" => false, "gap" => "epoch"})?;
        ensure!(frames.is_empty(), "{frames:?} came");
    }
    for recover in [
        Value::from("here"),
        with(at.clone(), "seq", "1"),
        with(at.clone(), "seq", -1),
        with(at.clone(), "epoch", "x".repeat(65)),
        frame! {"epoch" => "x"},
    ] {
        let (reply, _) = resume(&context, frame! {"topic" => topic.as_str()}, recover).await?;
        holds(&reply, &frame! {"type" => "error", "code" => 40_000, "error" => "invalid_message"})?;
    }
    Ok(())
}

async fn matching(context: Context) -> Result<()> {
    let topic = context.topic("matching");
    let mut publisher = client(&context).await?;
    let at = position(&mut publisher, frame! {"topic" => context.topic("elsewhere")}).await?;
    let (left, right) = (format!("{topic}/left"), format!("{topic}/right"));
    let messages = [
        (&left, Some("a"), 0_u64),
        (&left, Some("b"), 1),
        (&right, None, 2),
        (&right, Some("a"), 3),
        (&left, None, 4),
    ];
    for (topic, filter, data) in messages {
        let fields = frame! {"topic" => topic.as_str(), "data" => data, "qos" => 1};
        let fields = filter.map_or(fields.clone(), |filter| with(fields, "filter", filter));
        publisher.publish_as(fields).await?;
    }
    let only = |keys: &[&str]| Value::Array(keys.iter().map(|key| Value::from(*key)).collect());
    for (fields, expected) in [
        (frame! {"topic" => left.as_str()}, &[0_u64, 1, 4][..]),
        (frame! {"topic" => left.as_str(), "filters" => only(&["a"])}, &[0]),
        (frame! {"topic" => format!("{topic}/+")}, &[0, 1, 2, 3, 4]),
        (frame! {"topic" => format!("{topic}/+"), "filters" => only(&["a"])}, &[0, 3]),
        (frame! {"topic" => format!("{topic}/#")}, &[0, 1, 2, 3, 4]),
    ] {
        let (reply, frames) = resume(&context, fields.clone(), at.clone()).await?;
        holds(&reply, &frame! {"recovered" => true})?;
        let subscribed = get(&fields, "topic").and_then(Value::as_str).unwrap_or_default();
        let got = replayed(&frames, subscribed)?;
        let expected: Vec<Value> = expected.iter().copied().map(Value::from).collect();
        ensure!(got == expected, "{fields} recovered {got:?}");
    }
    Ok(())
}

/// F-07: refused as any other, and what it would have recovered comes to nobody.
async fn lost_grant(context: Context) -> Result<()> {
    let rules = |patterns: &[&str]| -> Json {
        patterns
            .iter()
            .map(|pattern| json!({"pattern": pattern, "permission": "pubSub", "app_id": "app"}))
            .collect()
    };
    let launch = Launch::tokens(json!({"before": actor("a", rules(&["t/kept", "t/lost"]))}));
    let broker = context.start(launch).await?;
    let mut before = broker.open().await?.negotiated("before", &["recover"]).await?;
    let kept = position(&mut before, frame! {"topic" => "t/kept"}).await?;
    let lost = position(&mut before, frame! {"topic" => "t/lost"}).await?;
    for topic in ["t/kept", "t/lost"] {
        publish(&mut before, topic, 0..3).await?;
    }
    before.vanish();
    // Another token of the same actor, which no cache knows.
    broker.rewrite(&json!({"after": actor("a", rules(&["t/kept"]))}))?;
    let mut after = broker.open().await?.negotiated("after", &["recover"]).await?;
    let subscribe =
        |topic: &str, at: Value| frame! {"type" => "subscribe", "topic" => topic, "recover" => at};
    after
        .ask_for(subscribe("t/lost", lost), frame! {"type" => "error", "code" => 42_940, "topic" => "t/lost"})
        .await?;
    after.quiet().await?;
    after.ask_for(subscribe("t/kept", kept), frame! {"type" => "subscribed", "recovered" => true}).await?;
    let frames = after.settle().await?.0;
    ensure!(replayed(&frames, "t/kept")?.len() == 3, "recovered {frames:?}");
    Ok(())
}

/// F-10 and F-05.
async fn killed(context: Context) -> Result<()> {
    for store in [Some("store"), None] {
        let launch = store.iter().fold(Launch::demo(), |launch, store| launch.set("STORE_PATH", *store));
        let mut broker = context.start(launch).await?;
        let target = |broker: &Broker| Target { address: broker.address.clone(), ..context.target() };
        let topic = context.topic("killed");
        let mut publisher = client(&target(&broker)).await?;
        let at = position(&mut publisher, frame! {"topic" => context.topic("elsewhere")}).await?;
        for data in 0..50_u64 {
            let reply =
                publisher.try_publish(frame! {"topic" => topic.as_str(), "data" => data, "qos" => 1}).await?;
            holds(&reply, &frame! {"type" => "published"})?;
            let level = get(&reply, "level").and_then(Value::as_str).unwrap_or_default();
            if store.is_some() && level != "disk" {
                bail!(NotRun(format!("the broker keeps nothing on a disk, but at the level `{level}`")));
            }
            ensure!(store.is_some() || level == "memory", "without a store the level is `{level}`");
        }
        broker.restart().await?;
        let (reply, frames) = resume(&target(&broker), frame! {"topic" => topic.as_str()}, at).await?;
        if store.is_none() {
            holds(&reply, &frame! {"recovered" => false, "gap" => "epoch"})?;
            ensure!(frames.is_empty(), "{frames:?} came");
            continue;
        }
        holds(&reply, &frame! {"recovered" => true})?;
        let expected: Vec<Value> = (0..50_u64).map(Value::from).collect();
        ensure!(replayed(&frames, &topic)? == expected, "recovered {frames:?}");
    }
    Ok(())
}

async fn newest(context: Context) -> Result<()> {
    let topic = context.topic("newest");
    let mut publisher = client(&context).await?;
    publish(&mut publisher, &topic, 0..30).await?;
    let expected: Vec<Value> = (10..30_u64).map(Value::from).collect();
    for recover in [None, Some(frame! {"epoch" => "another-run", "seq" => 1})] {
        let mut client = client(&context).await?;
        let fields = frame! {"type" => "subscribe", "topic" => topic.as_str(), "history" => 20};
        client.send(recover.map_or(fields.clone(), |at| with(fields, "recover", at))).await?;
        let frames = client.settle().await?.0;
        ensure!(kind(&frames[0]) == "subscribed", "{frames:?}");
        ensure!(replayed(&frames[1..], &topic)? == expected, "{frames:?}");
    }
    for count in [0_u64, 1_001] {
        let request = frame! {"type" => "subscribe", "topic" => topic.as_str(), "history" => count};
        publisher.ask_for(request, frame! {"type" => "error", "code" => 40_000}).await?;
    }
    Ok(())
}

async fn repeated(context: Context) -> Result<()> {
    let topic = context.topic("repeated");
    let mut subscriber = context.bob().await?;
    subscriber.subscribe(&topic).await?;
    let publish = frame! {"type" => "publish", "topic" => topic.as_str(), "data" => "once", "qos" => 1,
    "msgRef" => topic.as_str()};
    let mut first = client(&context).await?;
    let reply = first.ask(publish.clone()).await?;
    holds(&reply, &frame! {"type" => "published", "msgRef" => topic.as_str()})?;
    lacks(&reply, &["duplicate"])?;
    let level = get(&reply, "level").cloned().context("a kept message has a level")?;
    first.vanish();
    let mut second = client(&context).await?;
    for _ in 0..2 {
        let expected = frame! {"type" => "published", "topic" => topic.as_str(), "msgRef" => topic.as_str(),
        "duplicate" => true, "level" => level.clone()};
        second.ask_for(publish.clone(), expected).await?;
    }
    ensure!(subscriber.payloads().await? == ["once".into()], "not once");
    // Another actor's references are its own.
    let mut other = context.open().await?.negotiated(&context.other_token, &["dedupe"]).await?;
    let reply = other.ask(publish).await?;
    holds(&reply, &frame! {"type" => "published"})?;
    lacks(&reply, &["duplicate"])
}
