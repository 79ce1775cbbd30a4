//! Filters: their keys, what is valid, and what they match (wire protocol 14).

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;
use serde_json::Value as Json;

use crate::client::{Client, Values, typed};
use crate::suite::{Case, Context, Needs, case};
use crate::vectors;
use crate::wire::{brief, frame, get, holds, kind, lacks, list, with};

pub(super) fn cases() -> Vec<Case> {
    use Needs::Nothing;
    vec![
        case!("C-052", Both, Nothing, "decides every case of filters.json", vector_cases),
        case!(
            "C-053",
            Both,
            Nothing,
            "delivers filtered messages to unfiltered subscriptions, with filter set",
            unfiltered_subscription
        ),
        case!(
            "C-054",
            Both,
            Nothing,
            "delivers no unfiltered message to a filtered subscription",
            unfiltered_message
        ),
        case!("C-055", Both, Nothing, "composite keys: per-character lowercase, byte order", composite_keys),
        case!("C-056", Both, Nothing, "accepts 100 filters and refuses 101", hundred),
        case!(
            "C-057",
            Both,
            Nothing,
            "answers setFilters without subscription with not_subscribed",
            not_subscribed
        ),
        case!(
            "C-058",
            Both,
            Nothing,
            "keeps the mode through setFilters, echoes the filters as sent",
            set_filters
        ),
    ]
}

const BAD_CHARS: &str = "invalid_filter_chars (/, #, +, | not allowed)";
const TOO_MANY: &str = "too_many_filters (max 100)";

/// C-052: each case on connections of its own, so that no rate limit is met.
async fn vector_cases(context: Context) -> Result<()> {
    for case in vectors::filters("subscribe")? {
        subscribe_case(&context, &case).await.with_context(|| format!("{}", case["id"]))?;
    }
    for case in vectors::filters("publish")? {
        publish_case(&context, &case).await.with_context(|| format!("{}", case["id"]))?;
    }
    for case in vectors::filters("match")? {
        match_case(&context, &case).await.with_context(|| format!("{}", case["id"]))?;
    }
    Ok(())
}

/// What the case expects in the profile of the run.
fn expectation<'a>(context: &Context, case: &'a Json) -> &'a Json {
    match case.get("kraken") {
        Some(kraken) if !context.extended() => kraken,
        _ => &case["expect"],
    }
}

/// A publish that has exactly this key: a composite one by `filters`, any other by `filter`.
fn keyed(topic: &str, key: &str, data: &str) -> Value {
    let publish = frame! {"topic" => topic, "data" => data};
    if key.contains('|') {
        return with(publish, "filters", Value::Array(key.split('|').map(Value::from).collect()));
    }
    with(publish, "filter", key)
}

/// The keys of a subscription are seen by publishing under each, and under others.
async fn subscribe_case(context: &Context, case: &Json) -> Result<()> {
    let topic = context.topic("f");
    let expect = expectation(context, case);
    for request in ["subscribe", "setFilters"] {
        let mut client = context.alice().await?;
        if request == "setFilters" {
            client.subscribe(&topic).await?;
        }
        let fields = frame! {"topic" => topic.as_str(), "filters" => vectors::value(&case["filters"])?};
        if request == "setFilters" && !case["filters"].is_array() {
            // There the field is required (10.3), and a wrong one is another error.
            continue;
        }
        let reply = client.ask(typed(request, fields)).await?;
        if let Some(error) = expect["error"].as_str() {
            subscribe_error(context, &reply, &topic, error)?;
            continue;
        }
        ensure!(matches!(kind(&reply), "subscribed" | "filtersUpdated"), "{request}: {}", brief(&reply));
        let keys: Vec<&str> =
            expect["keys"].as_array().context("keys")?.iter().filter_map(Json::as_str).collect();
        let mut publisher = context.bob().await?;
        let mut expected = Values::default();
        if keys.is_empty() {
            publisher.publish(&topic, "unfiltered").await?;
            expected.push(Value::from("unfiltered"));
        } else {
            publisher.publish(&topic, "no filter").await?;
        }
        for key in keys.iter().take(8).chain(keys.iter().skip(8).rev().take(8)) {
            publisher.publish_as(keyed(&topic, key, key)).await?;
            expected.push(Value::from(*key));
        }
        for other in ["other", "Alice", "a|other"] {
            publisher.publish_as(keyed(&topic, other, other)).await?;
            if keys.is_empty() {
                expected.push(Value::from(other));
            }
        }
        let heard = client.payloads().await?;
        ensure!(heard == expected, "{request}: expected {expected:?}, heard {heard:?}");
    }
    Ok(())
}

/// An error of a subscription's filters: ours carries a code, kraken's none (14.2).
fn subscribe_error(context: &Context, reply: &Value, topic: &str, error: &str) -> Result<()> {
    holds(reply, &frame! {"type" => "error", "error" => error, "topic" => topic})?;
    if context.extended() { holds(reply, &frame! {"code" => 42960}) } else { lacks(reply, &["code"]) }
}

/// The fields of a publish vector, on this topic.
fn publish_of(case: &Json, topic: &str) -> Result<Value> {
    let mut publish = frame! {"topic" => topic, "data" => "payload"};
    for key in ["filter", "filters"] {
        if let Some(value) = case["publish"].get(key) {
            publish = with(publish, key, vectors::value(value)?);
        }
    }
    Ok(publish)
}

/// The key of a publish shows in the `filter` of an unfiltered subscription.
async fn publish_case(context: &Context, case: &Json) -> Result<()> {
    let topic = context.topic("f");
    let mut client = context.alice().await?;
    client.subscribe(&topic).await?;
    let mut publisher = context.bob().await?;
    let reply = publisher.try_publish(publish_of(case, &topic)?).await?;
    let expect = expectation(context, case);
    if expect.get("error").is_some() {
        holds(
            &reply,
            &frame! {"type" => "error", "code" => 42960, "error" => "invalid_filter", "topic" => topic.as_str()},
        )?;
        ensure!(get(&reply, "detail").is_some_and(Value::is_str), "no `detail` in {}", brief(&reply));
        return client.quiet().await;
    }
    holds(&reply, &frame! {"type" => "published"})?;
    let message = client.one_message(frame! {"data" => "payload"}).await?;
    match expect["key"].as_str() {
        Some(key) => holds(&message, &frame! {"filter" => key}),
        None => lacks(&message, &["filter"]),
    }
}

async fn match_case(context: &Context, case: &Json) -> Result<()> {
    let topic = context.topic("f");
    let mut client = context.alice().await?;
    client
        .subscribe_as(frame! {"topic" => topic.as_str(), "filters" => vectors::value(&case["filters"])?})
        .await?;
    let mut publisher = context.bob().await?;
    publisher.publish_as(publish_of(case, &topic)?).await?;
    if case["expect"] != true {
        return client.quiet().await;
    }
    let message = client.one_message(frame! {"data" => "payload"}).await?;
    match case["filterField"].as_str() {
        Some(key) => holds(&message, &frame! {"filter" => key}),
        None => lacks(&message, &["filter"]),
    }
}

/// C-053: never `#` (15.3).
async fn unfiltered_subscription(context: Context) -> Result<()> {
    let topic = context.topic("unfiltered");
    let mut client = context.alice().await?;
    client.subscribe(&topic).await?;
    let mut publisher = context.bob().await?;
    for (fields, key) in [
        (frame! {"filter" => "vip"}, Some("vip")),
        (frame! {"filters" => list!["B", "a"]}, Some("a|b")),
        (frame! {"filter" => ""}, None),
        (frame! {"filters" => list![]}, None),
        (frame! {"filter" => Value::Nil}, None),
    ] {
        publisher.publish_as(with(with(fields, "topic", topic.as_str()), "data", 1)).await?;
        let message = client.one_message(frame! {"topic" => topic.as_str()}).await?;
        match key {
            Some(key) => holds(&message, &frame! {"filter" => key})?,
            None => lacks(&message, &["filter"])?,
        }
    }
    Ok(())
}

/// C-054: by subscribe and by setFilters.
async fn unfiltered_message(context: Context) -> Result<()> {
    let topic = context.topic("filtered");
    let topic = topic.as_str();
    let mut publisher = context.bob().await?;
    let mut subscribed = context.alice().await?;
    subscribed.subscribe_as(frame! {"topic" => topic, "filters" => list!["vip", list!["a", "b"]]}).await?;
    let mut updated = context.alice().await?;
    updated.subscribe(topic).await?;
    let request = frame! {"type" => "setFilters", "topic" => topic, "filters" => list!["vip"]};
    updated.ask_for(request, frame! {"type" => "filtersUpdated"}).await?;
    publisher.publish(topic, "unfiltered").await?;
    subscribed.quiet().await?;
    updated.quiet().await?;
    publisher.publish_as(keyed(topic, "vip", "vip")).await?;
    subscribed.one_message(frame! {"filter" => "vip"}).await?;
    updated.one_message(frame! {"filter" => "vip"}).await?;
    Ok(())
}

/// C-055: 14.1, with letters whose lowercase depends on where they stand, grows, or has no partner; and an order that
/// differs between bytes and UTF-16 units.
async fn composite_keys(context: Context) -> Result<()> {
    let topic = context.topic("keys");
    let mut client = context.alice().await?;
    client.subscribe(&topic).await?;
    let mut publisher = context.bob().await?;
    for (values, key) in [
        (vec!["Zeta", "alpha"], "alpha|zeta"),
        (vec!["ΟΔΟΣ", "A"], "a|οδοσ"),
        (vec!["Σ"], "σ"),
        (vec!["ς", "Σ"], "ς|σ"),
        (vec!["İ", "I"], "i|i\u{307}"),
        (vec!["ẞ", "ß", "SS"], "ss|ß|ß"),
        (vec!["É", "E\u{301}"], "e\u{301}|é"),
        (vec!["\u{1F680}", "\u{FFFD}"], "\u{FFFD}|\u{1F680}"),
        (vec!["x", "X", "x"], "x|x|x"),
        (vec!["Ab", "a", "ab c"], "a|ab|ab c"),
        (vec!["10", "9", "1"], "1|10|9"),
    ] {
        let filters = Value::Array(values.iter().map(|value| Value::from(*value)).collect());
        publisher
            .publish_as(frame! {"topic" => topic.as_str(), "data" => 1, "filters" => filters.clone()})
            .await?;
        client
            .one_message(frame! {"filter" => key})
            .await
            .with_context(|| format!("the group {values:?}"))?;
        if values.len() < 2 {
            continue;
        }
        // The same key on the subscriber's side, whatever the order there.
        let mut grouped = context.alice().await?;
        let reversed = Value::Array(values.iter().rev().map(|value| Value::from(*value)).collect());
        grouped.subscribe_as(frame! {"topic" => topic.as_str(), "filters" => list![reversed]}).await?;
        publisher.publish_as(frame! {"topic" => topic.as_str(), "data" => 2, "filters" => filters}).await?;
        grouped
            .one_message(frame! {"filter" => key})
            .await
            .with_context(|| format!("subscribed to {values:?}"))?;
        client.settle().await?;
    }
    Ok(())
}

/// C-056: items of the outer array count; a group counts once.
async fn hundred(context: Context) -> Result<()> {
    let topic = context.topic("hundred");
    let topic = topic.as_str();
    let mut client = context.alice().await?;
    let plain = |count: usize| Value::Array((0..count).map(|at| Value::from(format!("f{at}"))).collect());
    let groups =
        |count: usize| Value::Array((0..count).map(|at| list![format!("f{at}"), "x", "y"]).collect());
    for (filters, accepted) in
        [(plain(100), true), (plain(101), false), (groups(100), true), (groups(101), false)]
    {
        for request in ["subscribe", "setFilters"] {
            let reply =
                client.ask(typed(request, frame! {"topic" => topic, "filters" => filters.clone()})).await?;
            if accepted {
                let reply = kind(&reply).to_owned();
                ensure!(
                    matches!(reply.as_str(), "subscribed" | "filtersUpdated"),
                    "100 filters by {request}: {reply}"
                );
            } else {
                subscribe_error(&context, &reply, topic, TOO_MANY)
                    .with_context(|| format!("101 filters by {request}"))?;
            }
        }
    }
    client.publish_as(frame! {"topic" => topic, "data" => 1, "filters" => plain(100)}).await?;
    let reply = client.try_publish(frame! {"topic" => topic, "data" => 1, "filters" => plain(101)}).await?;
    holds(&reply, &frame! {"type" => "error", "code" => 42960, "error" => "invalid_filter"})
}

/// C-057: never subscribed, subscribed no more, and a topic that is not granted at all.
async fn not_subscribed(context: Context) -> Result<()> {
    let topic = context.topic("not-subscribed");
    let mut client = context.alice().await?;
    for name in [topic.as_str(), "no/such/topic", topic.as_str()] {
        let request = frame! {"type" => "setFilters", "topic" => name, "filters" => list!["a"]};
        let expected = frame! {"type" => "error", "error" => "not_subscribed", "topic" => name};
        let reply = client.ask_for(request, expected).await?;
        lacks(&reply, &["code"])?;
        if name != topic {
            client.subscribe(&topic).await?;
            client
                .ask_for(
                    frame! {"type" => "unsubscribe", "topic" => topic.as_str()},
                    frame! {"type" => "unsubscribed"},
                )
                .await?;
        }
    }
    Ok(())
}

/// Which of the members received how many of the messages.
async fn counts(members: &mut [Client]) -> Result<Vec<usize>> {
    let mut counts = Vec::new();
    for member in members {
        counts.push(member.messages().await?.len());
    }
    Ok(counts)
}

/// C-058: two members of a group whose filters are set and set again still share, and in the same group as one who
/// subscribes with these filters from the start.
async fn set_filters(context: Context) -> Result<()> {
    let topic = context.topic("set-filters");
    let topic = topic.as_str();
    let group = frame! {"topic" => topic, "loadBalance" => true, "loadBalanceGroup" => "g"};
    let mut members = vec![context.alice().await?, context.bob().await?];
    for member in &mut members {
        member.subscribe_as(group.clone()).await?;
    }
    let mut publisher = context.bob().await?;
    for filters in [list!["VIP", list!["B", "a"]], list![list!["b", "A"], "VIP"], list![]] {
        for member in &mut members {
            let request = frame! {"type" => "setFilters", "topic" => topic, "filters" => filters.clone()};
            member
                .ask_for(
                    request,
                    frame! {"type" => "filtersUpdated", "topic" => topic, "filters" => filters.clone()},
                )
                .await?;
        }
        for _ in 0..3 {
            publisher.publish_as(keyed(topic, "a|b", "composite")).await?;
            publisher.publish_as(keyed(topic, "VIP", "vip")).await?;
        }
        let shares = counts(&mut members).await?;
        ensure!(
            shares.iter().sum::<usize>() == 6,
            "six messages were received {shares:?} times, with filters {filters}"
        );
    }
    for bad in [list!["a|b"], list![list!["alone"]]] {
        let reply =
            members[0].ask(frame! {"type" => "setFilters", "topic" => topic, "filters" => bad}).await?;
        subscribe_error(&context, &reply, topic, BAD_CHARS)?;
    }
    publisher.publish(topic, "still").await?;
    let shares = counts(&mut members).await?;
    ensure!(
        shares.iter().sum::<usize>() == 1,
        "after a refused setFilters one message was received {shares:?} times"
    );
    Ok(())
}
