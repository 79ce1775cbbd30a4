//! Grants, resolution, scopes and what topics are valid (wire protocol 13), and deeper topics (15.3).
//!
//! What a broker decides inside shows on the wire in two ways: an operation is granted or denied, and two actors meet
//! exactly when their topics resolve to the same base. So each case has a token of its own, and where a base is to be
//! shown, a probe: a token whose rules lead to that base and to no other.

use anyhow::{Context as _, Result, bail, ensure};
use rmpv::Value;
use serde_json::{Map, Value as Json, json};

use crate::broker::{Broker, Launch, actor};
use crate::client::{Client, Values, typed};
use crate::suite::{Case, Context, Needs, case};
use crate::vectors;
use crate::wire::{brief, frame, get, holds, kind, lacks, list, with};

pub(super) fn cases() -> Vec<Case> {
    use Needs::{Broker, Nothing};
    vec![
        case!("C-042", Both, Broker, "decides every grant, cover and resolve case of topics.json", grants),
        case!(
            "C-043",
            Extended,
            Broker,
            "decides every valid and scope case of topics.json",
            valid_and_scope
        ),
        case!(
            "C-044",
            Both,
            Nothing,
            "answers a denied topic with 42940 (version 2) or not_authorized (version 1)",
            denied
        ),
        case!(
            "C-045",
            Both,
            Broker,
            "subscribe, publish and pubSub permit exactly what they say",
            permissions
        ),
        case!("C-046", Both, Broker, "prefers an exact rule to any wildcard rule in any order", exact_first),
        case!(
            "C-047",
            Both,
            Broker,
            "no wildcard subscription receives a topic that its rule does not match",
            wildcard_bounds
        ),
        case!("C-059", Both, Broker, "decides every deliver case of topics.json", deliver),
        case!(
            "FC-27",
            Both,
            Broker,
            "topics that begin with `$` are like any other (wire protocol 13.1)",
            dollar
        ),
        case!("C-129", Both, Broker, "delivers deeper topics as 15.3 says, every descend case", descend),
    ]
}

/// The member of a vector that is text.
fn member<'a>(case: &'a Json, key: &str) -> Result<&'a str> {
    case[key].as_str().with_context(|| format!("no `{key}` in {case}"))
}

/// Collects the entries of a token file.
#[derive(Default)]
struct Tokens(Map<String, Json>);

impl Tokens {
    /// Adds an actor named like its token.
    fn add(&mut self, token: impl Into<String>, rules: Json) {
        let token = token.into();
        self.0.insert(token.clone(), actor(&token, rules));
    }

    async fn start(self, context: &Context) -> Result<Broker> {
        context.start(Launch::tokens(Json::Object(self.0)).set("PUBLISH_RATE_LIMIT", 0)).await
    }
}

/// Sends a `subscribe` or `publish` and tells whether it was granted. Anything but a grant or 42940 is an error.
async fn granted(client: &mut Client, operation: &str, topic: &str) -> Result<bool> {
    let reply = match operation {
        "publish" => client.try_publish(frame! {"topic" => topic, "data" => 1}).await?,
        _ => client.ask(typed("subscribe", frame! {"topic" => topic})).await?,
    };
    let code = get(&reply, "code").and_then(Value::as_u64);
    match kind(&reply) {
        "published" | "subscribed" => holds(&reply, &frame! {"topic" => topic}).map(|()| true),
        "error" if code == Some(42_940) => holds(&reply, &frame! {"topic" => topic}).map(|()| false),
        _ => bail!("{operation} of `{topic}` was answered with {}", brief(&reply)),
    }
}

/// C-042: cases whose topic is no valid one (13.1) are decided in the `kraken` profile only, which checks grants alone.
async fn grants(context: Context) -> Result<()> {
    let (grant, cover, resolve) =
        (vectors::topics("grant")?, vectors::topics("cover")?, vectors::topics("resolve")?);
    let mut tokens = Tokens::default();
    for case in grant.iter().chain(&cover) {
        let rule = json!({"pattern": case["pattern"], "permission": "pubSub", "app_id": "app"});
        tokens.add(member(case, "id")?, json!([rule]));
    }
    for case in &resolve {
        let id = member(case, "id")?;
        tokens.add(id, case["rules"].clone());
        add_probes(&mut tokens, id, &case["expect"]);
    }
    let broker = tokens.start(&context).await?;
    for case in &grant {
        let topic = member(case, "topic")?;
        if context.extended() && (topic.is_empty() || topic.contains(['+', '#'])) {
            continue;
        }
        let mut client = broker.connect(member(case, "id")?).await?;
        let decided = granted(&mut client, "publish", topic).await.with_context(|| case.to_string())?;
        ensure!(case["expect"] == decided, "{case}: decided {decided}");
    }
    for case in &cover {
        let mut client = broker.connect(member(case, "id")?).await?;
        let decided = granted(&mut client, "subscribe", member(case, "subscription")?)
            .await
            .with_context(|| case.to_string())?;
        ensure!(case["expect"] == decided, "{case}: decided {decided}");
    }
    for case in &resolve {
        resolved(&broker, case, member(case, "topic")?).await.with_context(|| case.to_string())?;
    }
    Ok(())
}

/// Adds a token that leads to the expected base, and one that leads to a base beside it.
fn add_probes(tokens: &mut Tokens, id: &str, expect: &Json) {
    let everything = |app: &Json| match app.as_str() {
        Some("unscoped") | None => json!([{"pattern": "#", "permission": "pubSub"}]),
        Some(app) => json!([{"pattern": "#", "permission": "pubSub", "app_id": app}]),
    };
    if expect["kind"] == "exact" {
        let pattern = format!("probe/{id}");
        let rule = json!({"pattern": pattern, "topic": expect["base"], "permission": "pubSub", "app_id": expect["appId"]});
        tokens.add(format!("probe-{id}"), json!([rule]));
        // A wildcard rule of the same app leads elsewhere (13.3).
        tokens.add(format!("beside-{id}"), everything(&expect["appId"]));
    } else {
        tokens.add(format!("probe-{id}"), everything(&expect["appId"]));
        tokens.add(format!("beside-{id}"), everything(&json!("another-app")));
    }
}

/// The actor `id` meets its probe, and not the one beside it, on `effective` (the topic without an exact mapping).
async fn resolved(broker: &Broker, case: &Json, effective: &str) -> Result<()> {
    let (id, topic, expect) = (member(case, "id")?, member(case, "topic")?, &case["expect"]);
    let operation = case["op"].as_str().unwrap_or("publish");
    let mut client = broker.connect(id).await?;
    if expect["kind"] == "denied" {
        ensure!(!granted(&mut client, operation, topic).await?, "was granted");
        return Ok(());
    }
    let mut probe = broker.connect(&format!("probe-{id}")).await?;
    let mut beside = broker.connect(&format!("beside-{id}")).await?;
    // A publish goes to one topic below a wildcard subscription.
    let concrete = effective.replace('#', "x");
    let at_probe = if expect["kind"] == "exact" { format!("probe/{id}") } else { concrete.clone() };
    if operation == "publish" {
        probe.subscribe(&at_probe).await?;
        beside.subscribe(&concrete).await?;
        client.publish(topic, id).await?;
        probe
            .one_message(frame! {"topic" => at_probe, "data" => id})
            .await
            .context("the probe at the expected base")?;
        return beside.quiet().await.context("a probe beside the expected base");
    }
    client.subscribe(topic).await?;
    beside.publish(&concrete, "beside").await?;
    client.quiet().await.context("a publish beside the expected base")?;
    probe.publish(&at_probe, id).await?;
    client
        .one_message(frame! {"topic" => topic, "data" => id})
        .await
        .context("a publish to the expected base")?;
    Ok(())
}

/// What 13.3 makes of an effective pattern, for the scope cases, whose vectors give the pattern only.
fn resolve(rules: &Json, effective: &str) -> Json {
    let rules = rules.as_array().map(Vec::as_slice).unwrap_or_default();
    let matches = |rule: &Json| {
        let pattern = rule["pattern"].as_str().unwrap_or_default();
        match pattern.strip_suffix("/#") {
            Some(head) => effective == head || effective.starts_with(&format!("{head}/")),
            None => effective == pattern,
        }
    };
    match rules.iter().find(|rule| rule["pattern"] == effective && rule["topic"].is_string()) {
        Some(rule) => json!({"kind": "exact", "base": rule["topic"], "appId": rule["app_id"]}),
        None => match rules.iter().find(|rule| matches(rule)) {
            Some(rule) => json!({"kind": "wildcard", "appId": rule["app_id"]}),
            None => json!({"kind": "denied"}),
        },
    }
}

/// C-043: `segment` cases are about a client's builders and cannot be put to a broker.
async fn valid_and_scope(context: Context) -> Result<()> {
    let (valid, scope) = (vectors::topics("valid")?, vectors::topics("scope")?);
    let mut tokens = Tokens::default();
    tokens.add("all", json!([{"pattern": "#", "permission": "pubSub"}]));
    let mut scopes = Vec::new();
    for case in &scope {
        let (id, effective) = (member(case, "id")?, member(case, "expect")?);
        let expect = resolve(&case["rules"], effective);
        tokens.add(id, case["rules"].clone());
        if let Some(slug) = case["scopeSlug"].as_str() {
            tokens.0[id]["scopeSlug"] = json!(slug);
        }
        add_probes(&mut tokens, id, &expect);
        scopes
            .push((json!({"id": id, "topic": case["topic"], "op": "publish", "expect": expect}), effective));
    }
    let broker = tokens.start(&context).await?;
    for case in &valid {
        let topic = vectors::value(&case["topic"])?;
        let operation = member(case, "use")?;
        if operation == "segment" {
            continue;
        }
        let mut client = broker.connect("all").await?;
        let reply = match operation {
            "publish" => client.try_publish(frame! {"topic" => topic.clone(), "data" => 1}).await?,
            _ => client.ask(frame! {"type" => "subscribe", "topic" => topic.clone()}).await?,
        };
        let accepted = matches!(kind(&reply), "published" | "subscribed");
        ensure!(case["expect"] == accepted, "{case}: answered with {}", brief(&reply));
        if !accepted {
            let error =
                frame! {"type" => "error", "code" => 40000, "error" => "invalid_topic", "topic" => topic};
            holds(&reply, &error).with_context(|| case.to_string())?;
        }
    }
    for (case, effective) in &scopes {
        resolved(&broker, case, effective).await.with_context(|| case.to_string())?;
    }
    Ok(())
}

/// C-044: for both operations, and in both versions.
async fn denied(context: Context) -> Result<()> {
    let topic = "no/such/topic";
    for version in [1, 2] {
        let mut client = context.open().await?;
        let auth = frame! {"type" => "auth", "token" => context.token.as_str(), "protocolVersion" => version};
        client.ask_for(auth, frame! {"success" => true, "protocolVersion" => version}).await?;
        let subscribe = client.ask(frame! {"type" => "subscribe", "topic" => topic}).await?;
        let publish = client.try_publish(frame! {"topic" => topic, "data" => 1, "msgRef" => "d-1"}).await?;
        client.send(frame! {"type" => "publish", "topic" => topic, "data" => 1}).await?;
        let unreferenced = client.frame().await?;
        for reply in [&subscribe, &publish, &unreferenced] {
            if version == 2 {
                holds(
                    reply,
                    &frame! {"type" => "error", "code" => 42940, "error" => "unknown_topic", "topic" => topic},
                )?;
                ensure!(
                    get(reply, "hint").is_none_or(Value::is_str),
                    "a hint that is no text: {}",
                    brief(reply)
                );
            } else {
                holds(reply, &frame! {"type" => "error", "error" => "not_authorized", "topic" => topic})?;
                lacks(reply, &["code"])?;
            }
        }
        holds(&publish, &frame! {"msgRef" => "d-1"})?;
        lacks(&unreferenced, &["msgRef"])?;
    }
    Ok(())
}

/// C-045: also spread over two rules, and under names that are none of the three.
async fn permissions(context: Context) -> Result<()> {
    let rule = |permission: &str| json!({"pattern": "t/#", "permission": permission});
    let cases = [
        ("subscribe", json!([rule("subscribe")]), true, false),
        ("publish", json!([rule("publish")]), false, true),
        ("pubSub", json!([rule("pubSub")]), true, true),
        ("both", json!([rule("publish"), rule("subscribe")]), true, true),
        ("admin", json!([rule("admin")]), false, false),
        ("pubsub", json!([rule("pubsub"), rule("PUBLISH"), rule("")]), false, false),
        ("none", json!([{"pattern": "t/#"}]), false, false),
    ];
    let mut tokens = Tokens::default();
    for (name, rules, ..) in &cases {
        tokens.add(*name, rules.clone());
    }
    let broker = tokens.start(&context).await?;
    for (name, _, subscribe, publish) in &cases {
        let mut client = broker.connect(name).await?;
        ensure!(granted(&mut client, "subscribe", "t/x").await? == *subscribe, "{name}: subscribe");
        ensure!(granted(&mut client, "subscribe", "t/+").await? == *subscribe, "{name}: wildcard subscribe");
        client.settle().await?;
        ensure!(granted(&mut client, "publish", "t/y").await? == *publish, "{name}: publish");
    }
    Ok(())
}

/// C-046: whatever the order, and whatever the exact rule permits.
async fn exact_first(context: Context) -> Result<()> {
    let exact = json!({"pattern": "t/x", "topic": "room/x", "permission": "subscribe", "app_id": "app"});
    let wildcards = [
        json!({"pattern": "t/#", "permission": "pubSub", "app_id": "app"}),
        json!({"pattern": "t/+", "permission": "pubSub", "app_id": "app"}),
        json!({"pattern": "#", "permission": "pubSub", "app_id": "app"}),
    ];
    let [a, b, c] = wildcards.clone();
    let orders = [json!([exact, a, b, c]), json!([a, exact, b, c]), json!([a, b, c, exact])];
    let mut tokens = Tokens::default();
    for (at, rules) in orders.iter().enumerate() {
        tokens.add(format!("order-{at}"), rules.clone());
    }
    tokens
        .add("probe", json!([{"pattern": "p", "topic": "room/x", "permission": "pubSub", "app_id": "app"}]));
    tokens.add("beside", json!(wildcards));
    let broker = tokens.start(&context).await?;
    let mut probe = broker.connect("probe").await?;
    let mut beside = broker.connect("beside").await?;
    beside.subscribe("t/x").await?;
    for (at, order) in orders.iter().enumerate() {
        let mut client = broker.connect(&format!("order-{at}")).await?;
        client.subscribe("t/x").await?;
        probe.publish("p", at).await?;
        client
            .one_message(frame! {"topic" => "t/x", "data" => at})
            .await
            .with_context(|| order.to_string())?;
        beside.publish("t/x", "beside").await?;
        client.quiet().await.with_context(|| order.to_string())?;
        beside.settle().await?;
        // The exact rule does not permit publishing, but it maps what another permits.
        client.publish("t/x", "mapped").await?;
        client.one_message(frame! {"data" => "mapped"}).await?;
        beside.quiet().await.with_context(|| format!("publish, {order}"))?;
    }
    Ok(())
}

/// C-047: patterns that cover more than the rule are refused, and what is granted receives no more than the rule
/// matches, filtered and deeper messages included.
async fn wildcard_bounds(context: Context) -> Result<()> {
    let mut tokens = Tokens::default();
    let rule = |pattern: &str| json!([{"pattern": pattern, "permission": "subscribe", "app_id": "app"}]);
    let cases: [(&str, &[&str], &[&str]); 4] = [
        ("demo/+", &["demo/+"], &["demo/#", "+/+", "demo/+/#", "#", "demo/+/+"]),
        ("demo/+/x", &["demo/+/x"], &["demo/#", "demo/+/+", "demo/+/#", "demo/+"]),
        ("demo/a/#", &["demo/a/#", "demo/a/+", "demo/a/+/b"], &["demo/+/#", "demo/#", "demo/+"]),
        ("demo/a", &[], &["demo/+", "demo/#", "demo/a/#", "demo/a/+"]),
    ];
    for (pattern, ..) in &cases {
        tokens.add(*pattern, rule(pattern));
    }
    tokens.add("publisher", json!([{"pattern": "#", "permission": "publish", "app_id": "app"}]));
    let broker = tokens.start(&context).await?;
    let mut publisher = broker.connect("publisher").await?;
    for (pattern, allowed, refused) in cases {
        let mut client = broker.connect(pattern).await?;
        for subscription in refused {
            let wide = granted(&mut client, "subscribe", subscription).await?;
            ensure!(!wide, "the rule {pattern} let {subscription} through");
        }
        for subscription in allowed {
            client.subscribe(subscription).await?;
        }
        for topic in [
            "demo",
            "demo/a",
            "demo/b",
            "demo/a/x",
            "demo/a/y",
            "demo/b/x",
            "demo/a/b/b",
            "demo/a/b/c",
            "other/a/x",
        ] {
            publisher.publish_as(frame! {"topic" => topic, "data" => topic}).await?;
            if topic != "demo" {
                // A key that no subscription here could take for a level of its own.
                publisher.publish_as(frame! {"topic" => topic, "data" => topic, "filter" => "y"}).await?;
            }
            let heard = client.payloads().await?;
            let matched = match pattern {
                "demo/+" => ["demo/a", "demo/b"].contains(&topic),
                "demo/+/x" => ["demo/a/x", "demo/b/x"].contains(&topic),
                "demo/a/#" => topic == "demo/a" || topic.starts_with("demo/a/"),
                _ => false,
            };
            ensure!(
                matched || heard.is_empty(),
                "subscriptions {allowed:?} under the rule {pattern} received {topic}"
            );
            ensure!(
                !matched || !heard.is_empty(),
                "subscriptions {allowed:?} under the rule {pattern} missed {topic}"
            );
        }
    }
    Ok(())
}

/// FC-27, as wire protocol 13.1 decides it: `$` and `$share` mean nothing, to wildcards either.
async fn dollar(context: Context) -> Result<()> {
    const TOPICS: [&str; 3] = ["$SYS/n1/up", "app/n1/up", "$share/g/app/n1/up"];
    let mut tokens = Tokens::default();
    tokens.add("subscriber", json!([{"pattern": "#", "permission": "subscribe", "app_id": "app"}]));
    tokens.add("publisher", json!([{"pattern": "#", "permission": "publish", "app_id": "app"}]));
    tokens.add("app only", json!([{"pattern": "app/#", "permission": "pubSub", "app_id": "app"}]));
    let broker = tokens.start(&context).await?;
    let mut publisher = broker.connect("publisher").await?;
    let cases: [(&str, &[&str]); 5] = [
        ("#", &TOPICS),
        ("+/#", &TOPICS),
        ("+/n1/up", &TOPICS[..2]),
        ("$SYS/#", &TOPICS[..1]),
        ("$share/g/app/n1/up", &TOPICS[2..]),
    ];
    for (subscription, expected) in cases {
        let mut client = broker.connect("subscriber").await?;
        client.subscribe(subscription).await?;
        for topic in TOPICS {
            publisher.publish(topic, topic).await?;
        }
        let heard = client.payloads().await?;
        let expected: Vec<Value> = expected.iter().map(|topic| Value::from(*topic)).collect();
        ensure!(*heard == expected, "subscribed to {subscription}, and got {heard:?}, not {expected:?}");
    }
    let mut bounded = broker.connect("app only").await?;
    for topic in ["$SYS/n1/up", "$share/g/app/n1/up"] {
        ensure!(
            !granted(&mut bounded, "publish", topic).await?,
            "the rule app/# let a publish to {topic} through"
        );
    }
    bounded.publish("app/n1/up", 1).await
}

/// C-059: `sourceTopic` is X-03, so absent in the `kraken` profile.
async fn deliver(context: Context) -> Result<()> {
    let mut tokens = Tokens::default();
    tokens.add("subscriber", json!([{"pattern": "#", "permission": "subscribe", "app_id": "app"}]));
    tokens.add("publisher", json!([{"pattern": "#", "permission": "publish", "app_id": "app"}]));
    let broker = tokens.start(&context).await?;
    let mut publisher = broker.connect("publisher").await?;
    for case in vectors::topics("deliver")? {
        let mut client = broker.connect("subscriber").await?;
        let subscription = frame! {"topic" => member(&case, "subscription")?, "filters" => vectors::value(&case["filters"])?};
        client.subscribe_as(subscription).await?;
        let mut publish = frame! {"topic" => member(&case, "topic")?, "data" => member(&case, "id")?};
        if let Some(key) = case["filterKey"].as_str() {
            publish = with(publish, "filter", key);
        }
        publisher.publish_as(publish).await?;
        if case["expect"].is_null() {
            client.quiet().await.with_context(|| case.to_string())?;
            continue;
        }
        let mut expected =
            with(frame! {"data" => member(&case, "id")?}, "topic", member(&case["expect"], "topic")?);
        let mut absent = Vec::new();
        for key in ["filter", "sourceTopic"] {
            match case["expect"][key].as_str() {
                Some(text) if context.extended() || key == "filter" => expected = with(expected, key, text),
                _ => absent.push(key),
            }
        }
        let message = client.one_message(expected).await.with_context(|| case.to_string())?;
        lacks(&message, &absent).with_context(|| case.to_string())?;
    }
    Ok(())
}

/// C-129: 15.3. Whether or not it sees deeper topics, the subscription gets its own topic's messages, filtered or not.
/// And a filter that spells a deeper topic does not reach subscriptions there without a grant to publish there.
async fn descend(context: Context) -> Result<()> {
    let cases = vectors::topics("descend")?;
    let mut tokens = Tokens::default();
    for case in &cases {
        tokens.add(member(case, "id")?, case["rules"].clone());
    }
    tokens.add("publisher", json!([{"pattern": "#", "permission": "publish", "app_id": "demo-app"}]));
    tokens.add("reader", json!([{"pattern": "demo/#", "permission": "subscribe", "app_id": "demo-app"}]));
    tokens.add("narrow", json!([{"pattern": "demo/general", "permission": "publish", "app_id": "demo-app"}]));
    let broker = tokens.start(&context).await?;
    let mut publisher = broker.connect("publisher").await?;
    for case in &cases {
        let topic = member(case, "subscription")?;
        let mut client = broker.connect(member(case, "id")?).await?;
        client.subscribe(topic).await?;
        publisher.publish(topic, "own").await?;
        publisher.publish_as(frame! {"topic" => topic, "data" => "filtered", "filter" => "deeper"}).await?;
        publisher.publish(&format!("{topic}/deeper"), "deeper").await?;
        publisher
            .publish_as(frame! {"topic" => format!("{topic}/a/b"), "data" => "deepest", "filter" => "f"})
            .await?;
        publisher.publish(&format!("{topic}x"), "beside").await?;
        let heard = client.payloads().await?;
        let expected = match case["expect"].as_bool() {
            Some(true) => Values(["own", "filtered", "deeper", "deepest"].map(Value::from).to_vec()),
            _ => Values(["own", "filtered"].map(Value::from).to_vec()),
        };
        ensure!(heard == expected, "{case}: heard {heard:?}");
    }
    // The filters of a subscription do not open what its topic does not.
    let narrow = cases.iter().find(|case| case["expect"] == false).context("a case that may not descend")?;
    let mut client = broker.connect(member(narrow, "id")?).await?;
    client.subscribe_as(frame! {"topic" => "demo/general", "filters" => list!["deeper"]}).await?;
    publisher.publish("demo/general/deeper", "deeper").await?;
    client.quiet().await.context("a filter that spells a deeper topic, in a subscription")?;

    let mut reader = broker.connect("reader").await?;
    reader.subscribe("demo/general/deeper").await?;
    let mut narrow = broker.connect("narrow").await?;
    narrow.publish_as(frame! {"topic" => "demo/general", "data" => 1, "filter" => "deeper"}).await?;
    reader.quiet().await.context("a filter that spells a deeper topic, in a publish")
}
