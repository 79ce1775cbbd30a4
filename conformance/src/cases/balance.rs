//! Load-balanced groups (wire protocol 16).

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rmpv::Value;
use serde_json::json;

use crate::broker::{Launch, actor};
use crate::client::{Client, typed};
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{frame, list, with};

pub(super) fn cases() -> Vec<Case> {
    use Needs::{Broker, Nothing};
    vec![
        case!(
            "C-079",
            Both,
            Nothing,
            "one member of a group gets each message, and every ordinary subscriber",
            one_member
        ),
        case!(
            "C-080",
            Both,
            Broker,
            "keeps groups of different apps, projects, topics and filter keys apart",
            apart
        ),
        case!(
            "C-081",
            Extended,
            Nothing,
            "skips a suppressed sender when choosing a member",
            suppressed_sender
        ),
        case!(
            "C-082",
            Both,
            Nothing,
            "moves a connection between broadcast and load-balanced on re-subscribe",
            moved
        ),
    ]
}

/// A load-balanced subscription's fields.
fn group(topic: &str, name: &str) -> Value {
    frame! {"topic" => topic, "loadBalance" => true, "loadBalanceGroup" => name}
}

/// The payloads that each client received, as numbers.
async fn received(clients: &mut [Client]) -> Result<Vec<Vec<u64>>> {
    let mut all = Vec::new();
    for client in clients {
        all.push(client.payloads().await?.iter().filter_map(Value::as_u64).collect());
    }
    Ok(all)
}

/// Every message of `0..count` went to exactly one of them.
fn shared(parts: &[Vec<u64>], count: u64) -> Result<()> {
    let mut all: Vec<u64> = parts.iter().flatten().copied().collect();
    all.sort_unstable();
    ensure!(all == (0..count).collect::<Vec<_>>(), "{count} messages were shared out as {parts:?}");
    Ok(())
}

/// C-079: two groups and two ordinary subscribers; the same after a member left, and after all left.
async fn one_member(context: Context) -> Result<()> {
    let topic = context.topic("group");
    let topic = topic.as_str();
    let mut publisher = context.bob().await?;
    let mut first = vec![context.alice().await?, context.bob().await?, context.alice().await?];
    for member in &mut first {
        member.subscribe_as(group(topic, "first")).await?;
    }
    // Without a name, and with an empty one, the group is the actor's (10.1).
    let mut own = vec![context.alice().await?, context.alice().await?, context.alice().await?];
    own[0].subscribe_as(frame! {"topic" => topic, "loadBalance" => true}).await?;
    own[1].subscribe_as(group(topic, "")).await?;
    own[2].subscribe_as(with(group(topic, ""), "loadBalanceGroup", Value::Nil)).await?;
    let mut ordinary = vec![context.alice().await?, context.bob().await?];
    ordinary[0].subscribe(topic).await?;
    // A group without the flag means nothing.
    ordinary[1].subscribe_as(frame! {"topic" => topic, "loadBalanceGroup" => "first"}).await?;

    let everything: Vec<u64> = (0..12).collect();
    for at in 0..12_u64 {
        publisher.publish(topic, at).await?;
    }
    shared(&received(&mut first).await?, 12).context("a group of three")?;
    shared(&received(&mut own).await?, 12).context("the actor's own group")?;
    for part in received(&mut ordinary).await? {
        ensure!(part == everything, "an ordinary subscriber received {part:?}");
    }

    let gone = first.remove(0);
    gone.close().await?;
    let mut stay = first.remove(0);
    stay.ask_for(frame! {"type" => "unsubscribe", "topic" => topic}, frame! {"type" => "unsubscribed"})
        .await?;
    settled(&mut publisher, &mut first[0], topic).await?;
    for at in 0..6_u64 {
        publisher.publish(topic, at).await?;
    }
    stay.quiet().await.context("a member that unsubscribed")?;
    shared(&received(&mut first).await?, 6).context("the one member that is left")?;
    Ok(())
}

/// Waits until the member that is left receives whatever is published: a broker may notice the end of a connection a
/// little after it has answered the close, and until then shares with the member that is gone.
async fn settled(publisher: &mut Client, left: &mut Client, topic: &str) -> Result<()> {
    let mut in_a_row = 0;
    for _ in 0..20 {
        publisher.publish(topic, "probe").await?;
        in_a_row = if left.messages().await?.is_empty() { 0 } else { in_a_row + 1 };
        if in_a_row == 3 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("a member that is gone still gets its share")
}

/// C-080: the same group name everywhere.
async fn apart(context: Context) -> Result<()> {
    let rule = |app: &str| {
        json!([
            {"pattern": "t/x", "topic": "room/x", "permission": "pubSub", "app_id": app},
            {"pattern": "t/y", "topic": "room/y", "permission": "pubSub", "app_id": app},
        ])
    };
    let mut other_project = actor("c", rule("app-a"));
    other_project["projectId"] = json!("another");
    let tokens = json!({
        "app-a": actor("a", rule("app-a")), "app-a2": actor("a2", rule("app-a")), "app-b": actor("b", rule("app-b")),
        "project": other_project,
    });
    let broker = context.start(Launch::tokens(tokens)).await?;
    let mut publisher = broker.connect("app-a").await?;
    let join = async |token: &str, topic: &str, filters: Value| {
        let mut client = broker.connect(token).await?;
        client.subscribe_as(with(group(topic, "g"), "filters", filters)).await?;
        anyhow::Ok(client)
    };
    // Apps and projects that lead to the same base: each group gets each message.
    let mut same = vec![join("app-a", "t/x", list![]).await?, join("app-a2", "t/x", list![]).await?];
    let mut app = vec![join("app-b", "t/x", list![]).await?];
    let mut project = vec![join("project", "t/x", list![]).await?];
    for at in 0..6_u64 {
        publisher.publish("t/x", at).await?;
    }
    shared(&received(&mut same).await?, 6).context("two actors of one app and project")?;
    shared(&received(&mut app).await?, 6).context("another app")?;
    shared(&received(&mut project).await?, 6).context("another project")?;

    // Topics: the only member on y gets all of y, whatever happens on x.
    let mut y = vec![join("app-a", "t/y", list![]).await?];
    for at in 0..6_u64 {
        publisher.publish("t/x", at).await?;
        publisher.publish("t/y", at).await?;
    }
    shared(&received(&mut y).await?, 6).context("another topic")?;
    shared(&received(&mut same).await?, 6).context("the first topic")?;
    drop((same, app, project, y));

    // Filter keys: members for k, for l, for both, and for everything.
    let mut for_k = vec![join("app-a", "t/y", list!["k"]).await?];
    let mut for_l = vec![join("app-a2", "t/y", list!["l"]).await?];
    let mut for_all = vec![join("app-a", "t/y", list![]).await?];
    for at in 0..3_u64 {
        publisher.publish_as(frame! {"topic" => "t/y", "data" => at, "filter" => "k"}).await?;
    }
    shared(&received(&mut for_k).await?, 3).context("members for the key")?;
    shared(&received(&mut for_all).await?, 3).context("members for everything")?;
    ensure!(received(&mut for_l).await? == [Vec::<u64>::new()], "a member for another key");
    let mut for_both = join("app-a", "t/y", list!["l", "k"]).await?;
    for_k.push(for_both);
    for at in 0..4_u64 {
        publisher.publish_as(frame! {"topic" => "t/y", "data" => at, "filter" => "k"}).await?;
    }
    shared(&received(&mut for_k).await?, 4).context("members for the key, one of them for two keys")?;
    for_both = for_k.pop().context("a member for both keys")?;
    for at in 0..4_u64 {
        publisher.publish_as(frame! {"topic" => "t/y", "data" => at, "filter" => "l"}).await?;
    }
    for_l.push(for_both);
    shared(&received(&mut for_l).await?, 4).context("members for the other key, one of them for two keys")
}

/// C-081: X-13. As the only member the sender leaves nobody, and the message is dropped for the group.
async fn suppressed_sender(context: Context) -> Result<()> {
    let topic = context.topic("suppressed");
    let topic = topic.as_str();
    let mut sender = context.alice().await?;
    sender.subscribe_as(group(topic, "g")).await?;
    let quiet = |at: u64| frame! {"topic" => topic, "data" => at, "echo" => false};
    let mut ordinary = context.bob().await?;
    ordinary.subscribe(topic).await?;
    sender.publish_as(quiet(100)).await?;
    sender.quiet().await.context("the only member, suppressed")?;
    ordinary.one_message(frame! {"data" => 100}).await?;

    let mut members = vec![context.alice().await?, context.bob().await?];
    for member in &mut members {
        member.subscribe_as(group(topic, "g")).await?;
    }
    for at in 0..8 {
        sender.publish_as(quiet(at)).await?;
    }
    sender.quiet().await.context("a suppressed sender among three")?;
    shared(&received(&mut members).await?, 8)?;
    // Where it is not suppressed, the sender is a member like the others.
    for at in 0..9_u64 {
        sender.publish(topic, at).await?;
    }
    members.push(sender);
    shared(&received(&mut members).await?, 9)
}

/// C-082: there and back, and from group to group.
async fn moved(context: Context) -> Result<()> {
    let topic = context.topic("moved");
    let topic = topic.as_str();
    let mut publisher = context.bob().await?;
    let mut members = vec![context.alice().await?, context.bob().await?];
    for member in &mut members {
        member.subscribe_as(group(topic, "g")).await?;
    }
    let expect = |parts: &[Vec<u64>], sizes: [Option<usize>; 2]| {
        let right = parts.iter().zip(sizes).all(|(part, size)| size.is_none_or(|size| part.len() == size));
        ensure!(right, "received {parts:?}, expected {sizes:?}");
        Ok(())
    };
    let publish = async |publisher: &mut Client| {
        for at in 0..6_u64 {
            publisher.publish(topic, at).await?;
        }
        anyhow::Ok(())
    };
    publish(&mut publisher).await?;
    shared(&received(&mut members).await?, 6).context("in one group")?;

    members[0]
        .ask_for(typed("subscribe", frame! {"topic" => topic}), frame! {"loadBalance" => false})
        .await?;
    publish(&mut publisher).await?;
    expect(&received(&mut members).await?, [Some(6), Some(6)])
        .context("one broadcast, one alone in the group")?;

    let request = typed("subscribe", group(topic, "g"));
    members[0].ask_for(request, frame! {"type" => "subscribed", "loadBalance" => true}).await?;
    publish(&mut publisher).await?;
    shared(&received(&mut members).await?, 6).context("back in the group")?;

    members[1].subscribe_as(group(topic, "h")).await?;
    publish(&mut publisher).await?;
    expect(&received(&mut members).await?, [Some(6), Some(6)]).context("in two groups")?;
    Ok(())
}
