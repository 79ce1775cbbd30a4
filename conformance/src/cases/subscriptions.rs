//! Subscribing, again and again, and unsubscribing (wire protocol 10.1, 10.2).

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;
use serde_json::json;

use crate::broker::{Launch, actor};
use crate::client::typed;
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{brief, frame, get, holds, kind, list, text, with};

pub(super) fn cases() -> Vec<Case> {
    use Needs::Nothing;
    vec![
        case!(
            "C-048",
            Both,
            Nothing,
            "answers every subscribe with subscribed or an error with its topic",
            answers
        ),
        case!("C-049", Both, Nothing, "treats a repeated subscribe as a replacement", replacement),
        case!(
            "C-050",
            Both,
            Nothing,
            "leaves the subscription in force when a repeated subscribe fails",
            failed_replacement
        ),
        case!(
            "C-051",
            Both,
            Nothing,
            "answers every unsubscribe, and delivers nothing afterwards",
            unsubscribe
        ),
        case!(
            "C-060",
            Both,
            Nothing,
            "puts the receiver's own subscription string in message.topic",
            own_string
        ),
    ]
}

/// C-048: in the order of the requests, whatever they ask for.
async fn answers(context: Context) -> Result<()> {
    let topic = context.topic("answers");
    let mut client = context.alice().await?;
    let mut requests = Vec::new();
    let mut ask =
        |expected: &'static str, fields: Value| requests.push((expected, typed("subscribe", fields)));
    ask("subscribed", frame! {"topic" => topic.as_str()});
    ask("subscribed", frame! {"topic" => topic.as_str(), "qos" => 2, "loadBalance" => true});
    ask("subscribed", frame! {"topic" => topic.as_str(), "loadBalance" => 1, "loadBalanceGroup" => "g"});
    ask("subscribed", frame! {"topic" => format!("{topic}/#")});
    ask("subscribed", frame! {"topic" => format!("{topic}/+/x"), "filters" => list!["a", list!["b", "c"]]});
    ask("subscribed", frame! {"topic" => format!("{topic}//x")});
    ask("error", frame! {"topic" => "no/such/topic"});
    ask("error", frame! {"topic" => "#"});
    ask("error", frame! {"topic" => ""});
    ask("error", frame! {"topic" => "no/#/such"});
    ask("error", frame! {"topic" => "no/a+b"});
    ask("error", frame! {"topic" => "no/\u{0}"});
    ask("error", frame! {"topic" => format!("no/{}", "x".repeat(2_000))});
    ask("error", frame! {"topic" => topic.as_str(), "filters" => list!["a/b"]});
    ask("error", frame! {"topic" => topic.as_str(), "filters" => list![list!["alone"]]});
    ask("error", frame! {"topic" => "no/such/topic", "filters" => list!["a/b"]});
    // All are sent before the first answer is read.
    let frames: Vec<Value> = requests.iter().map(|(_, request)| request.clone()).collect();
    client.send_all(frames).await?;
    for (expected, request) in requests {
        let reply = client.frame().await.with_context(|| brief(&request))?;
        let topic = get(&request, "topic").cloned().unwrap_or(Value::Nil);
        holds(&reply, &frame! {"type" => expected, "topic" => topic}).with_context(|| brief(&request))?;
        if expected == "subscribed" {
            let mode = get(&request, "loadBalance") == Some(&Value::from(true));
            holds(&reply, &frame! {"loadBalance" => mode}).with_context(|| brief(&request))?;
        }
    }
    client.quiet().await
}

/// C-049: filters and mode are replaced, and one message comes once.
async fn replacement(context: Context) -> Result<()> {
    let topic = context.topic("again");
    let topic = topic.as_str();
    let mut client = context.alice().await?;
    let mut publisher = context.bob().await?;
    let steps = [
        (frame! {"topic" => topic}, [true, true, true]),
        (frame! {"topic" => topic}, [true, true, true]),
        (frame! {"topic" => topic, "filters" => list!["a", "b"]}, [false, true, true]),
        (frame! {"topic" => topic, "filters" => list!["b", "b", list!["x", "y"]]}, [false, false, true]),
        (frame! {"topic" => topic, "loadBalance" => true, "filters" => list!["a"]}, [false, true, false]),
        (frame! {"topic" => topic, "loadBalance" => true, "loadBalanceGroup" => "g"}, [true, true, true]),
        (frame! {"topic" => topic, "loadBalance" => true, "loadBalanceGroup" => "h"}, [true, true, true]),
        (frame! {"topic" => topic, "filters" => Value::Nil}, [true, true, true]),
    ];
    for (subscribe, expected) in steps {
        let shown = brief(&subscribe);
        client.subscribe_as(subscribe).await?;
        for (filter, expected) in [Value::Nil, Value::from("a"), Value::from("b")].into_iter().zip(expected) {
            publisher.publish_as(frame! {"topic" => topic, "data" => 1, "filter" => filter.clone()}).await?;
            let heard = client.messages().await?.len();
            ensure!(
                heard == usize::from(expected),
                "after {shown} a message with filter {filter} came {heard} times"
            );
        }
    }
    Ok(())
}

/// C-050: refused for its filters, and, in the extended profile, for its group.
async fn failed_replacement(context: Context) -> Result<()> {
    let topic = context.topic("kept");
    let topic = topic.as_str();
    let mut client = context.alice().await?;
    let mut publisher = context.bob().await?;
    client.subscribe_as(frame! {"topic" => topic, "filters" => list!["a"]}).await?;
    let too_many: Vec<Value> = (0..101).map(|at| Value::from(format!("f{at}"))).collect();
    let mut failing = vec![
        frame! {"filters" => list!["b|c"]},
        frame! {"filters" => list![list!["alone"]]},
        frame! {"filters" => Value::Array(too_many)},
        frame! {"filters" => list!["b", ""], "loadBalance" => true},
    ];
    if context.extended() {
        failing.push(frame! {"loadBalance" => true, "loadBalanceGroup" => "a/b"});
        failing.push(frame! {"filters" => "b"});
    }
    for fields in failing {
        let request = with(typed("subscribe", fields), "topic", topic);
        let shown = brief(&request);
        client.ask_for(request, frame! {"type" => "error", "topic" => topic}).await?;
        publisher.publish_as(frame! {"topic" => topic, "data" => "a", "filter" => "a"}).await?;
        publisher.publish_as(frame! {"topic" => topic, "data" => "b", "filter" => "b"}).await?;
        publisher.publish(topic, "none").await?;
        let heard = client.payloads().await?;
        ensure!(heard == ["a".into()], "after the refused {shown} came {heard:?}");
    }
    Ok(())
}

/// C-051: with a stream of messages running, none comes after the reply; nor is a subscription needed for one.
async fn unsubscribe(context: Context) -> Result<()> {
    let topic = context.topic("off");
    let topic = topic.as_str();
    let mut client = context.alice().await?;
    for name in [topic, "never/granted", "", "a/#/b"] {
        if context.extended() && (name.is_empty() || name.contains('#')) {
            // An invalid topic may as well be answered as such.
            continue;
        }
        let request = frame! {"type" => "unsubscribe", "topic" => name};
        client.ask_for(request, frame! {"type" => "unsubscribed", "topic" => name}).await?;
    }
    client.subscribe(topic).await?;
    client.subscribe(&format!("{topic}/#")).await?;
    let mut publisher = context.bob().await?;
    publisher
        .send_all((0..15).map(|at| frame! {"type" => "publish", "topic" => topic, "data" => at}))
        .await?;
    client.send(frame! {"type" => "unsubscribe", "topic" => topic}).await?;
    publisher
        .send_all((15..30).map(|at| frame! {"type" => "publish", "topic" => topic, "data" => at}))
        .await?;
    publisher.publish(topic, "last").await?;
    let frames = client.settle().await?;
    let replies = frames.iter().filter(|frame| kind(frame) == "unsubscribed").count();
    ensure!(replies == 1, "expected one unsubscribed among {frames:?}");
    let after = frames.iter().skip_while(|frame| kind(frame) != "unsubscribed");
    let stray = after.filter(|frame| text(frame, "topic") == topic).count();
    ensure!(stray == 1, "messages for the topic came after unsubscribed: {frames:?}");
    let others = frames.iter().filter(|frame| text(frame, "topic") != topic).count();
    ensure!(others == 31, "the other subscription got {others} of 31 messages");
    // Again, and the wildcard too.
    for name in [topic, &format!("{topic}/#")] {
        let request = frame! {"type" => "unsubscribe", "topic" => name};
        client.ask_for(request, frame! {"type" => "unsubscribed", "topic" => name}).await?;
    }
    publisher.publish(topic, "nobody").await?;
    client.quiet().await
}

/// C-060: for plain, wildcard and shorter subscriptions on one connection; with a scope where a broker can be started.
async fn own_string(context: Context) -> Result<()> {
    let topic = context.topic("own");
    let deep = format!("{topic}/b/c");
    let mut client = context.alice().await?;
    let subscriptions =
        [deep.clone(), topic.clone(), format!("{topic}/+/c"), format!("{topic}/#"), format!("{topic}/b/#")];
    for subscription in &subscriptions {
        client.subscribe(subscription).await?;
    }
    let mut publisher = context.bob().await?;
    publisher.publish(&deep, 1).await?;
    let mut topics: Vec<String> =
        client.messages().await?.iter().map(|frame| text(frame, "topic").to_owned()).collect();
    topics.sort();
    let mut expected = subscriptions.to_vec();
    expected.sort();
    ensure!(topics == expected, "one message for {expected:?} came as {topics:?}");

    if context.can_start() {
        let rules = json!([{"pattern": "chat/acme/#", "permission": "pubSub", "app_id": "app"}]);
        let mut scoped = actor("scoped", rules.clone());
        scoped["scopeSlug"] = json!("acme");
        let tokens = json!({"scoped": scoped, "plain": actor("plain", rules)});
        let broker = context.start(Launch::tokens(tokens)).await?;
        let mut scoped = broker.connect("scoped").await?;
        scoped.subscribe("chat/general/x").await?;
        let mut plain = broker.connect("plain").await?;
        plain.publish("chat/acme/general/x", 1).await?;
        scoped.one_message(frame! {"topic" => "chat/general/x"}).await.context("a scoped subscription")?;
        let request = frame! {"topic" => "chat/general/x", "data" => 2, "msgRef" => "s"};
        holds(
            &scoped.try_publish(request).await?,
            &frame! {"type" => "published", "topic" => "chat/general/x"},
        )?;
        scoped.one_message(frame! {"topic" => "chat/general/x"}).await?;
    }
    Ok(())
}
