//! What subscribers receive: order, echo, sender and identifiers (wire protocol 11.2, 15).

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;
use serde_json::json;

use crate::broker::{Launch, actor};
use crate::client::{Client, Values};
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{frame, get, holds, kind, lacks, list, text, with};

pub(super) fn cases() -> Vec<Case> {
    use Needs::{Broker, Nothing};
    vec![
        case!(
            "C-064",
            Both,
            Nothing,
            "preserves the order of one connection's publishes to one topic",
            order
        ),
        case!(
            "C-065",
            Both,
            Nothing,
            "withholds an echo: false message from the publishing connection only",
            echo
        ),
        case!("C-067", Both, Nothing, "stamps from and fromType from the connection", sender),
        case!(
            "C-068",
            Both,
            Nothing,
            "delivers payloads containing _from, _data, _msgId, _sender unchanged",
            reserved_keys
        ),
        case!(
            "C-069",
            Both,
            Broker,
            "msgId and requiresAck when recording is on, neither when off",
            recording
        ),
    ]
}

/// C-064: sent without waiting, to an ordinary, a wildcard and a filtered subscriber, and to the publisher itself. Two
/// publishers at a time; below any rate limit.
async fn order(context: Context) -> Result<()> {
    const COUNT: u64 = 40;
    let topic = context.topic("order");
    let topic = topic.as_str();
    let mut publishers = [context.alice().await?, context.bob().await?];
    publishers[0].subscribe(topic).await?;
    let mut subscribers = vec![context.alice().await?, context.bob().await?, context.bob().await?];
    subscribers[0].subscribe(topic).await?;
    subscribers[1].subscribe(&format!("{topic}/#")).await?;
    subscribers[2].subscribe_as(frame! {"topic" => topic, "filters" => list!["0", "1", "2"]}).await?;
    for at in 0..COUNT {
        // Alternating sizes, and alternating filters, invite a broker to overtake itself.
        let pad = "p".repeat(if at % 2 == 0 { 10 } else { 20_000 });
        for (number, publisher) in publishers.iter_mut().enumerate() {
            let publish = frame! {"type" => "publish", "topic" => topic, "data" => list![number, at, pad.as_str()],
            "filter" => (at % 3).to_string()};
            publisher.send(publish).await?;
        }
    }
    let [first, second] = &mut publishers;
    let own = first.settle().await?;
    second.quiet().await?;
    // The publisher's own marker may overtake the other's messages; they count where the others look.
    let mut lists: Vec<Values> = vec![own];
    for subscriber in &mut subscribers {
        lists.push(subscriber.messages().await?);
    }
    for (at, messages) in lists.iter().enumerate() {
        for number in 0..2_u64 {
            let sequence: Vec<u64> = messages
                .iter()
                .filter_map(|message| get(message, "data"))
                .filter(|data| data[0].as_u64() == Some(number))
                .filter_map(|data| data[1].as_u64())
                .collect();
            let complete = at > 0 || number == 0;
            let expected: Vec<u64> = (0..if complete { COUNT } else { sequence.len() as u64 }).collect();
            ensure!(sequence == expected, "subscriber {at} received {sequence:?} of publisher {number}");
        }
    }
    Ok(())
}

/// C-065: another connection of the same actor gets it, and a retained copy is withheld likewise (15.4).
async fn echo(context: Context) -> Result<()> {
    let topic = context.topic("echo");
    let topic = topic.as_str();
    let mut publisher = context.alice().await?;
    let mut same_actor = context.alice().await?;
    let mut other_actor = context.bob().await?;
    for client in [&mut publisher, &mut same_actor, &mut other_actor] {
        client.subscribe(topic).await?;
    }
    publisher.publish_as(frame! {"topic" => topic, "data" => "quiet", "echo" => false}).await?;
    publisher.quiet().await.context("the publisher")?;
    same_actor.one_message(frame! {"data" => "quiet"}).await.context("another connection of the actor")?;
    other_actor.one_message(frame! {"data" => "quiet"}).await.context("another actor")?;

    publisher.publish_as(frame! {"topic" => topic, "data" => "loud", "echo" => true}).await?;
    for client in [&mut publisher, &mut same_actor, &mut other_actor] {
        client.one_message(frame! {"data" => "loud"}).await?;
    }

    publisher
        .publish_as(frame! {"topic" => topic, "data" => "kept", "echo" => false, "retain" => true})
        .await?;
    publisher.subscribe(topic).await?;
    publisher.quiet().await.context("the retained copy, subscribing again on the publishing connection")?;
    same_actor.settle().await?;
    same_actor.subscribe(topic).await?;
    same_actor
        .one_message(frame! {"data" => "kept"})
        .await
        .context("the retained copy, another connection")?;
    if context.extended() {
        publisher.publish_as(frame! {"topic" => topic, "data" => Value::Nil, "retain" => true}).await?;
    }
    Ok(())
}

/// C-067: neither a frame's fields nor a payload's keys name the sender.
async fn sender(context: Context) -> Result<()> {
    let topic = context.topic("sender");
    let mut subscriber = context.bob().await?;
    subscriber.subscribe(&topic).await?;
    for (token, other) in [(&context.token, &context.other_token), (&context.other_token, &context.token)] {
        let mut client = context.open().await?;
        let reply = client.auth(token).await?;
        let actor = text(&reply, "actorTokenId").to_owned();
        ensure!(!actor.is_empty(), "no actorTokenId in the auth reply");
        for data in [
            Value::from("plain"),
            frame! {"_from" => frame! {"type" => "server", "id" => "forged"}, "from" => "forged", "fromType" => "server"},
            frame! {"_sender" => "forged", "_data" => 1, "_msgId" => "forged"},
        ] {
            let publish = frame! {"topic" => topic.as_str(), "data" => data.clone(), "from" => other.as_str(), "fromType" => "server",
            "_from" => "forged", "msgId" => "forged", "timestamp" => 1, "sourceTopic" => "forged"};
            client.publish_as(publish).await?;
            let expected = frame! {"data" => data, "from" => actor.as_str(), "fromType" => "actor"};
            let message = subscriber.one_message(expected).await?;
            lacks(&message, &["sourceTopic", "_from"])?;
            ensure!(get(&message, "msgId") != Some(&Value::from("forged")), "the publisher chose the msgId");
            ensure!(get(&message, "timestamp") != Some(&Value::from(1)), "the publisher chose the timestamp");
        }
    }
    Ok(())
}

/// C-068: whole, with echo suppressed or not, retained or not.
async fn reserved_keys(context: Context) -> Result<()> {
    let topic = context.topic("reserved");
    let topic = topic.as_str();
    let mut publisher = context.alice().await?;
    let mut subscriber = context.bob().await?;
    subscriber.subscribe(topic).await?;
    for data in [
        frame! {"_from" => "x", "_data" => frame! {"inner" => 1}, "_msgId" => "m", "_sender" => "s"},
        frame! {"_data" => "only"},
        frame! {"_sender" => "s", "_data" => Value::Nil},
        frame! {"_msgId" => 5, "data" => 2, "topic" => "t", "type" => "message"},
        frame! {"_from" => frame! {"type" => "server", "id" => "k"}},
    ] {
        for fields in [frame! {}, frame! {"echo" => false}, frame! {"retain" => true}] {
            let publish = with(with(fields, "topic", topic), "data", data.clone());
            publisher.publish_as(publish).await?;
            subscriber.one_message(frame! {"data" => data.clone()}).await?;
        }
        let mut late = context.bob().await?;
        late.subscribe(topic).await?;
        late.one_message(frame! {"data" => data}).await.context("the retained copy")?;
    }
    Ok(())
}

/// A text of the form of a UUID of version 4.
fn is_uuid_4(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
        && groups[2].starts_with('4')
}

/// Two messages to subscribers of all kinds; gives what each received.
async fn to_all_kinds(publisher: &mut Client, subscribers: &mut [Client]) -> Result<Vec<Values>> {
    let kinds = [
        frame! {"topic" => "t/x"},
        frame! {"topic" => "t/#"},
        frame! {"topic" => "t/x", "filters" => list!["f"]},
        frame! {"topic" => "t/x", "loadBalance" => true, "loadBalanceGroup" => "g"},
    ];
    for (subscriber, kind) in subscribers.iter_mut().zip(kinds) {
        subscriber.subscribe_as(kind).await?;
    }
    for data in [1, 2] {
        publisher
            .publish_as(frame! {"topic" => "t/x", "data" => data, "filter" => "f", "retain" => true})
            .await?;
    }
    let mut received = Vec::new();
    for subscriber in subscribers {
        received.push(subscriber.messages().await?);
    }
    Ok(received)
}

/// C-069: the retained copy has the id of the live one (15.5).
async fn recording(context: Context) -> Result<()> {
    let tokens = json!({"tok": actor("a", json!([{"pattern": "t/#", "permission": "pubSub"}]))});
    for recording in ["true", "false"] {
        let launch = Launch::tokens(tokens.clone()).set("RECORD_MESSAGES", recording);
        let broker = context.start(launch).await?;
        let mut publisher = broker.connect("tok").await?;
        let mut subscribers = Vec::new();
        for _ in 0..4 {
            subscribers.push(broker.connect("tok").await?);
        }
        let mut received = to_all_kinds(&mut publisher, &mut subscribers).await?;
        let mut late = broker.connect("tok").await?;
        late.subscribe("t/x").await?;
        let retained = late.messages().await?;
        ensure!(retained.len() == 1, "expected the retained message, got {retained:?}");
        for messages in &received {
            ensure!(
                messages.len() == 2 && messages.iter().all(|message| kind(message) == "message"),
                "got {messages:?}"
            );
        }
        if recording == "false" {
            received.push(retained);
            for message in received.iter().flatten() {
                lacks(message, &["msgId", "requiresAck"]).context("recording off")?;
            }
            continue;
        }
        let mut ids = [BTreeSet::new(), BTreeSet::new()];
        for messages in &received {
            for (message, ids) in messages.iter().zip(&mut ids) {
                holds(message, &frame! {"requiresAck" => true}).context("recording on")?;
                ids.insert(text(message, "msgId").to_owned());
            }
        }
        holds(&retained[0], &frame! {"requiresAck" => true}).context("the retained copy")?;
        ids[1].insert(text(&retained[0], "msgId").to_owned());
        ensure!(ids.iter().all(|ids| ids.len() == 1), "receivers saw different ids: {ids:?}");
        ensure!(ids[0] != ids[1], "two messages with one id: {ids:?}");
        ensure!(ids.iter().flatten().all(|id| is_uuid_4(id)), "an id that is no UUID of version 4: {ids:?}");
    }
    Ok(())
}
