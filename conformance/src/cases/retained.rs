//! Retained messages (wire protocol 15.5).

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;

use crate::broker::Launch;
use crate::client::{Client, PATIENCE, typed};
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{frame, get, holds, kind, lacks, list, text, with};

pub(super) fn cases() -> Vec<Case> {
    use Needs::Nothing;
    vec![
        case!(
            "C-070",
            Both,
            Nothing,
            "delivers a retained message after subscribed, once per key, until it is too old",
            after_subscribed
        ),
        case!(
            "C-071",
            Both,
            Nothing,
            "keeps one retained message per filter key, the latest per key",
            per_key
        ),
        case!("C-072", Extended, Nothing, "clears a retained message by a retained nil", cleared),
    ]
}

async fn retain(client: &mut Client, topic: &str, data: &str, filter: Option<&str>) -> Result<()> {
    let publish = frame! {"topic" => topic, "data" => data, "retain" => true};
    client
        .publish_as(match filter {
            Some(filter) => with(publish, "filter", filter),
            None => publish,
        })
        .await
}

/// Sends the request, and gives the payloads that follow its reply, sorted, after a look at their form.
async fn follows(context: &Context, client: &mut Client, request: Value) -> Result<Vec<String>> {
    let topic = get(&request, "topic").cloned().unwrap_or(Value::Nil);
    client.send(request).await?;
    let frames = client.settle().await?;
    let reply = frames.first().context("no reply")?;
    ensure!(matches!(kind(reply), "subscribed" | "filtersUpdated"), "before the reply came {reply}");
    let mut data = Vec::new();
    for message in &frames[1..] {
        holds(message, &frame! {"type" => "message", "topic" => topic.clone()})?;
        if context.extended() {
            holds(message, &frame! {"retained" => true}).context("X-26")?;
        } else {
            lacks(message, &["retained"]).context("the kraken profile")?;
        }
        data.push(text(message, "data").to_owned());
    }
    data.sort();
    Ok(data)
}

/// C-070: for a new, repeated and wildcard subscription, for filters newly set, and for every member of a group.
async fn after_subscribed(context: Context) -> Result<()> {
    let base = context.topic("retained");
    let (topic, deep) = (base.as_str(), format!("{base}/deep"));
    let mut publisher = context.alice().await?;
    let mut live = context.bob().await?;
    live.subscribe(topic).await?;
    retain(&mut publisher, topic, "plain", None).await?;
    retain(&mut publisher, topic, "vip", Some("vip")).await?;
    retain(&mut publisher, &deep, "deep", None).await?;
    // Live delivery is not marked.
    let first = live.messages().await?;
    ensure!(first.len() == 3, "expected three live messages, got {first:?}");
    first.iter().try_for_each(|message| lacks(message, &["retained"]))?;

    let subscribe = |fields: Value| typed("subscribe", fields);
    let cases = [
        (frame! {"topic" => topic}, vec!["deep", "plain", "vip"]),
        (frame! {"topic" => topic, "filters" => list!["vip", "other"]}, vec!["vip"]),
        (frame! {"topic" => topic, "filters" => list!["other"]}, vec![]),
        (frame! {"topic" => deep.as_str()}, vec!["deep"]),
        (frame! {"topic" => format!("{topic}/#")}, vec!["deep", "plain", "vip"]),
        (frame! {"topic" => format!("{topic}/deep/#")}, vec!["deep"]),
        (
            frame! {"topic" => topic, "loadBalance" => true, "loadBalanceGroup" => "g"},
            vec!["deep", "plain", "vip"],
        ),
        (
            frame! {"topic" => topic, "loadBalance" => true, "loadBalanceGroup" => "g"},
            vec!["deep", "plain", "vip"],
        ),
    ];
    for (fields, expected) in cases {
        let mut client = context.bob().await?;
        let request = subscribe(fields);
        let got =
            follows(&context, &mut client, request.clone()).await.with_context(|| request.to_string())?;
        ensure!(got == expected, "after {request} came {got:?}, not {expected:?}");
        let again = follows(&context, &mut client, request.clone()).await?;
        ensure!(again == expected, "after a repeated {request} came {again:?}, not {expected:?}");
    }
    let mut client = context.bob().await?;
    follows(&context, &mut client, subscribe(frame! {"topic" => topic, "filters" => list!["other"]})).await?;
    let filters = |filters: Value| frame! {"type" => "setFilters", "topic" => topic, "filters" => filters};
    let got = follows(&context, &mut client, filters(list!["other", "vip"])).await?;
    ensure!(got == ["vip"], "after a new filter came {got:?}");
    let got = follows(&context, &mut client, filters(list!["vip"])).await?;
    ensure!(got.is_empty(), "after dropping a filter came {got:?}");

    if context.can_start() { lifetime(&context).await } else { Ok(()) }
}

/// The same until `RETAIN_TTL_SECONDS` have passed.
async fn lifetime(context: &Context) -> Result<()> {
    const TTL: Duration = Duration::from_secs(2);
    let broker = context.start(Launch::demo().set("RETAIN_TTL_SECONDS", TTL.as_secs())).await?;
    let mut publisher = broker.connect("dev-token-alice").await?;
    let began = Instant::now();
    retain(&mut publisher, "demo/general/ttl", "mortal", None).await?;
    let published = Instant::now();
    let mut found = 0;
    loop {
        let asked = Instant::now();
        let mut client = broker.connect("dev-token-bob").await?;
        client.subscribe("demo/general/ttl").await?;
        let messages = client.messages().await?.len();
        if messages == 0 {
            ensure!(began.elapsed() >= TTL, "gone after {:?} already", began.elapsed());
            ensure!(found > 0, "never delivered");
            return Ok(());
        }
        ensure!(
            asked < published + TTL + Duration::from_secs(1),
            "still there {:?} later",
            published.elapsed()
        );
        ensure!(began.elapsed() < PATIENCE, "still there after {:?}", began.elapsed());
        found += 1;
        tokio::time::sleep(TTL / 20).await;
    }
}

/// C-071: composite keys too, and a key that only differs in case.
async fn per_key(context: Context) -> Result<()> {
    let topic = context.topic("keys");
    let topic = topic.as_str();
    let mut publisher = context.alice().await?;
    for round in ["old", "new"] {
        retain(&mut publisher, topic, &format!("{round} none"), None).await?;
        retain(&mut publisher, topic, &format!("{round} a"), Some("a")).await?;
        retain(&mut publisher, topic, &format!("{round} A"), Some("A")).await?;
        let composite = frame! {"topic" => topic, "data" => format!("{round} a|b"), "retain" => true, "filters" => list!["b", "A"]};
        publisher.publish_as(composite).await?;
    }
    // Neither a message that is not retained nor one on another topic takes a place.
    publisher.publish(topic, "passing").await?;
    retain(&mut publisher, &format!("{topic}x"), "beside", None).await?;
    for (filters, expected) in [
        (list![], vec!["new A", "new a", "new a|b", "new none"]),
        (list!["a"], vec!["new a"]),
        (list!["A", list!["a", "b"]], vec!["new A", "new a|b"]),
    ] {
        let mut client = context.bob().await?;
        let request = frame! {"type" => "subscribe", "topic" => topic, "filters" => filters.clone()};
        let got = follows(&context, &mut client, request).await?;
        ensure!(got == expected, "with the filters {filters} came {got:?}, not {expected:?}");
    }
    Ok(())
}

/// C-072: X-15. The nil itself is delivered live; other keys and topics keep theirs.
async fn cleared(context: Context) -> Result<()> {
    let topic = context.topic("cleared");
    let topic = topic.as_str();
    let mut publisher = context.alice().await?;
    retain(&mut publisher, topic, "plain", None).await?;
    retain(&mut publisher, topic, "vip", Some("vip")).await?;
    let mut live = context.bob().await?;
    live.subscribe(topic).await?;
    live.settle().await?;
    publisher.publish_as(frame! {"topic" => topic, "data" => Value::Nil}).await?;
    live.one_message(frame! {"data" => Value::Nil}).await.context("nil that is not retained")?;
    let request = frame! {"type" => "subscribe", "topic" => topic};
    let kept = follows(&context, &mut context.bob().await?, request.clone()).await?;
    ensure!(kept == ["plain", "vip"], "nil without retain left {kept:?}");
    publisher.publish_as(frame! {"topic" => topic, "data" => Value::Nil, "retain" => true}).await?;
    live.one_message(frame! {"data" => Value::Nil}).await.context("the retained nil")?;
    let kept = follows(&context, &mut context.bob().await?, request.clone()).await?;
    ensure!(kept == ["vip"], "a retained nil left {kept:?}");
    publisher
        .publish_as(frame! {"topic" => topic, "data" => Value::Nil, "retain" => true, "filter" => "vip"})
        .await?;
    let kept = follows(&context, &mut context.bob().await?, request).await?;
    ensure!(kept.is_empty(), "a retained nil with a filter left {kept:?}");
    Ok(())
}
