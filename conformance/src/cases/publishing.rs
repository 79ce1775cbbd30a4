//! What a publisher is told, and the fields of a publish (wire protocol 10.4, 12, 15.1).

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;

use crate::broker::Launch;
use crate::client::typed;
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{brief, frame, get, holds, kind, lacks, list, with};

pub(super) fn cases() -> Vec<Case> {
    use Needs::Nothing;
    vec![
        case!(
            "C-061",
            Both,
            Nothing,
            "sends published exactly for a successful publish with a msgRef, on version 1 too",
            published
        ),
        case!(
            "C-062",
            Both,
            Nothing,
            "echoes msgRef on every error of a publish that carried one",
            error_references
        ),
        case!("C-063", Both, Nothing, "sends published before the publisher's own copy", published_first),
        case!(
            "C-066",
            Both,
            Nothing,
            "any echo but false is true, any retain but true is false",
            loose_flags
        ),
        case!(
            "C-078",
            Both,
            Nothing,
            "accepts qos 0, 1, 2 with the same delivery, any other value as 1",
            qos
        ),
    ]
}

/// C-061: an empty or ill-typed reference is none.
async fn published(context: Context) -> Result<()> {
    for version in [1, 2] {
        let topic = context.topic("published");
        let mut subscriber = context.bob().await?;
        subscriber.subscribe(&topic).await?;
        let mut client = context.open().await?;
        let auth = frame! {"type" => "auth", "token" => context.token.as_str(), "protocolVersion" => version};
        client.ask_for(auth, frame! {"success" => true}).await?;
        let publish = frame! {"type" => "publish", "topic" => topic.as_str(), "data" => 1};
        for reference in ["1", "p-1", "p-1", "é\u{1F680}", " "] {
            let expected = frame! {"type" => "published", "topic" => topic.as_str(), "msgRef" => reference};
            let reply = client.ask_for(with(publish.clone(), "msgRef", reference), expected).await?;
            lacks(&reply, &["error", "code"])?;
            subscriber.one_message(frame! {"data" => 1}).await?;
        }
        client.send(publish.clone()).await?;
        client.quiet().await.context("without msgRef")?;
        for reference in
            [Value::from(""), Value::Nil, Value::from(7), Value::from(true), list!["p"], frame! {"p" => 1}]
        {
            client.send(with(publish.clone(), "msgRef", reference.clone())).await?;
            client.quiet().await.with_context(|| format!("with the msgRef {reference}"))?;
        }
        let heard = subscriber.messages().await?.len();
        ensure!(heard == 7, "7 publishes without a usable msgRef arrived {heard} times");
    }
    Ok(())
}

/// C-062: each kind of refusal that can be had, and none of them delivered.
async fn error_references(context: Context) -> Result<()> {
    let topic = context.topic("errors");
    let topic = topic.as_str();
    let mut subscriber = context.bob().await?;
    subscriber.subscribe(topic).await?;
    let mut client = context.alice().await?;
    let mut cases = vec![
        (42940, frame! {"topic" => "no/such/topic", "data" => 1}),
        (42930, frame! {"topic" => topic, "data" => "x".repeat(1_000_001)}),
        (42960, frame! {"topic" => topic, "data" => 1, "filter" => "a/b"}),
        (42960, frame! {"topic" => topic, "data" => 1, "filters" => list!["a", "b|c"]}),
    ];
    if context.extended() {
        cases.push((40000, frame! {"topic" => "", "data" => 1}));
        cases.push((40000, frame! {"topic" => format!("{topic}/+"), "data" => 1}));
        cases.push((40000, frame! {"topic" => topic}));
        cases.push((42960, frame! {"topic" => topic, "data" => 1, "filters" => "vip"}));
    }
    for (at, (code, fields)) in cases.into_iter().enumerate() {
        let reference = format!("ref-{at}");
        let name = get(&fields, "topic").cloned().unwrap_or(Value::Nil);
        let shown = brief(&fields);
        let request = typed("publish", with(fields, "msgRef", reference.as_str()));
        let expected = frame! {"type" => "error", "code" => code, "topic" => name, "msgRef" => reference};
        client.ask_for(request, expected).await.with_context(|| shown)?;
    }
    client.quiet().await?;
    subscriber.quiet().await.context("a refused publish was delivered")?;

    if context.can_start() {
        let broker = context.start(Launch::demo().set("PUBLISH_RATE_LIMIT", 1)).await?;
        let mut client = broker.connect("dev-token-alice").await?;
        let publishes = (0..10).map(|at| {
            frame! {"type" => "publish", "topic" => "demo/general/x", "data" => 1, "msgRef" => format!("r-{at}")}
        });
        client.send_all(publishes).await?;
        for (at, reply) in client.settle().await?.iter().enumerate() {
            holds(reply, &frame! {"topic" => "demo/general/x", "msgRef" => format!("r-{at}")})
                .context("over the rate")?;
            if kind(reply) == "error" {
                holds(reply, &frame! {"code" => 42910, "error" => "rate_limit_exceeded"})?;
            }
        }
    }
    Ok(())
}

/// C-063: for plain, wildcard and load-balanced subscriptions of the publisher, with many messages on their way.
async fn published_first(context: Context) -> Result<()> {
    let topic = context.topic("first");
    let topic = topic.as_str();
    let mut client = context.alice().await?;
    client.subscribe(topic).await?;
    client.subscribe(&format!("{topic}/#")).await?;
    client.subscribe_as(frame! {"topic" => format!("{topic}/+"), "loadBalance" => true}).await?;
    let reference = |at: u64| format!("own-{at}");
    let publish =
        |at: u64| frame! {"type" => "publish", "topic" => topic, "data" => at, "msgRef" => reference(at)};
    client.send_all((0..30).map(publish)).await?;
    let mut confirmed = 0;
    let mut copies = 0;
    for frame in client.settle().await? {
        if kind(&frame) == "published" {
            holds(&frame, &frame! {"msgRef" => reference(confirmed)})?;
            confirmed += 1;
            continue;
        }
        let data = get(&frame, "data").and_then(Value::as_u64).context("a payload")?;
        ensure!(data < confirmed, "the publisher's own copy of message {data} came before its published");
        copies += 1;
    }
    ensure!((confirmed, copies) == (30, 60), "{confirmed} of 30 confirmed, {copies} of 60 copies");
    Ok(())
}

/// C-066: a value of another type is no error here.
async fn loose_flags(context: Context) -> Result<()> {
    let topic = context.topic("flags");
    let topic = topic.as_str();
    let mut client = context.alice().await?;
    client.subscribe(topic).await?;
    for flag in [
        Value::Nil,
        Value::from(0),
        Value::from("false"),
        Value::from(1),
        Value::from(true),
        list![],
        frame! {},
    ] {
        let fields = frame! {"topic" => topic, "data" => 1, "echo" => flag.clone()};
        client.publish_as(fields).await.with_context(|| format!("echo {flag}"))?;
        client.one_message(frame! {"data" => 1}).await.with_context(|| format!("echo {flag}"))?;
    }
    for flag in [Value::Nil, Value::from(1), Value::from("true"), Value::from(false), list![true], frame! {}]
    {
        let fields = frame! {"topic" => topic, "data" => 1, "retain" => flag.clone()};
        client.publish_as(fields).await.with_context(|| format!("retain {flag}"))?;
        client.one_message(frame! {"data" => 1}).await?;
        let mut late = context.bob().await?;
        late.subscribe(topic).await?;
        late.quiet().await.with_context(|| format!("retain {flag} retained a message"))?;
    }
    Ok(())
}

/// C-078: on publishes and on subscribes; messages differ in nothing but their payload, id and time.
async fn qos(context: Context) -> Result<()> {
    let topic = context.topic("qos");
    let topic = topic.as_str();
    let values = || {
        let odd = [
            Value::from(3),
            Value::from(-1),
            Value::from(1.0),
            Value::from("2"),
            Value::Nil,
            Value::from(u64::MAX),
        ];
        [0, 1, 2].map(Value::from).into_iter().chain(odd)
    };
    let mut publisher = context.alice().await?;
    let mut shapes = Vec::new();
    for qos in values() {
        let mut subscriber = context.bob().await?;
        let request = frame! {"topic" => topic, "qos" => qos.clone()};
        subscriber.subscribe_as(request).await.with_context(|| format!("subscribe with qos {qos}"))?;
        publisher.publish_as(frame! {"topic" => topic, "data" => 1}).await?;
        let shape = |frame: &Value| -> Vec<String> {
            let fields = frame.as_map().map(Vec::as_slice).unwrap_or_default();
            fields.iter().map(|(key, _)| key.to_string()).collect()
        };
        shapes.push(shape(&subscriber.one_message(frame! {"data" => 1}).await?));
        publisher
            .publish_as(frame! {"topic" => topic, "data" => 2, "qos" => qos.clone()})
            .await
            .with_context(|| format!("qos {qos}"))?;
        shapes.push(shape(&subscriber.one_message(frame! {"data" => 2}).await?));
    }
    shapes.dedup();
    ensure!(shapes.len() == 1, "deliveries of different form: {shapes:?}");
    Ok(())
}
