//! Restoring subscriptions for the published clients (wire protocol 17).

mod kit;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use kit::{Client, broker, broker_with, settle, sorted};
use nolag_broker::Broker;
use nolag_broker::auth::{Auth, Identity, Refusal, Revalidation, StaticAuth};
use nolag_broker::config::{Profile, Settings};
use nolag_protocol::grant::{Permission, Rule};
use parking_lot::Mutex;
use rmpv::Value;
use tokio::time::sleep;

const TOPIC: &str = "demo/general/news";

/// An actor whose grants a test changes. Its name is the token.
struct Granting(Mutex<Vec<&'static str>>);

impl Auth for Granting {
    fn validate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, Refusal>> {
        let rule = |pattern: &&str| Rule {
            pattern: (*pattern).to_owned(),
            permission: Some(Permission::PubSub),
            ..Rule::default()
        };
        let rules = self.0.lock().iter().map(rule).collect();
        ready(Ok(Identity { actor_token_id: token.to_owned(), rules, ..Identity::default() })).boxed()
    }

    fn revalidate<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Revalidation> {
        ready(Revalidation::Unavailable).boxed()
    }
}

fn list(values: &[&str]) -> Value {
    Value::Array(values.iter().map(|value| Value::from(*value)).collect())
}

/// Connects, and gives what was restored.
async fn connect(broker: &Arc<Broker>, token: &str, extra: Value) -> (Client, Vec<Value>) {
    let mut client = Client::connect(broker).await;
    let Value::Map(mut auth) = map!("type": "auth", "token": token, "protocolVersion": 2) else {
        unreachable!()
    };
    auth.extend(extra.as_map().unwrap().iter().cloned());
    let reply = client.ask(Value::Map(auth)).await;
    assert_eq!(reply["success"], true.into(), "{reply}");
    let restored = reply["restoredSubscriptions"].as_array().unwrap().clone();
    (client, restored)
}

async fn leave(client: Client) {
    drop(client);
    settle().await;
}

fn topics(restored: &[Value]) -> Vec<&str> {
    restored.iter().map(|entry| entry["topic"].as_str().unwrap()).collect()
}

fn back(client_id: &str) -> Value {
    map! {"reconnect": true, "clientId": client_id}
}

/// C-083, C-084: exactly `true` restores what the same actor and `clientId` had, with filters, mode and group, in both profiles; the
/// list holds what was sent and no more, what is retained follows the reply, and the subscriptions are in force.
#[tokio::test(start_paused = true)]
async fn subscriptions_are_restored_as_they_were() {
    for profile in [Profile::Extended, Profile::Kraken] {
        let text = nolag_broker::auth::DEMO_TOKENS;
        let auth = StaticAuth::from_text(text, profile).unwrap();
        let broker = broker_with(Settings { profile, ..Settings::default() }, Arc::new(auth));
        let (mut client, restored) = connect(&broker, "dev-token-alice", map! {"clientId": "c"}).await;
        assert!(restored.is_empty());
        client.subscribe(TOPIC).await;
        let worker = map! {"type": "subscribe", "topic": "demo/general/jobs", "qos": 2, "loadBalance": true,
        "loadBalanceGroup": "workers", "filters": list(&["old"]), "msgRef": "r"};
        client.ask(worker).await;
        let filters = list(&["urgent", "night"]);
        client
            .ask(map! {"type": "setFilters", "topic": "demo/general/jobs", "filters": filters.clone()})
            .await;
        client.subscribe("demo/general/gone").await;
        client.ask(map! {"type": "unsubscribe", "topic": "demo/general/gone"}).await;
        client
            .send(map! {"type": "publish", "topic": TOPIC, "data": "kept", "retain": true, "echo": false})
            .await;
        leave(client).await;

        let (mut client, restored) = connect(&broker, "dev-token-alice", back("c")).await;
        let jobs = map! {"topic": "demo/general/jobs", "filters": filters, "loadBalance": true,
        "loadBalanceGroup": "workers", "qos": 2};
        assert_eq!(restored.len(), 2, "{restored:?}");
        assert_eq!(sorted(&restored[0]), sorted(&map! {"topic": TOPIC}));
        assert_eq!(sorted(&restored[1]), sorted(&jobs));
        assert_eq!(client.next().await["data"], "kept".into(), "what is retained");
        let mut talker = Client::login(&broker, "dev-token-bob").await;
        let publish = |topic: &str, data: &str, key: &str| map! {"type": "publish", "topic": topic, "data": data, "filter": key};
        talker.send(publish("demo/general/jobs", "not asked for", "day")).await;
        talker.send(publish("demo/general/jobs", "asked for", "night")).await;
        talker.send(map! {"type": "publish", "topic": TOPIC, "data": "news"}).await;
        settle().await;
        let frames = client.settled(&["message", "message"]).await;
        assert_eq!((&frames[0]["data"], &frames[1]["data"]), (&"asked for".into(), &"news".into()));
        // With the client there, nothing is forgotten: it is not asked for.
        for other in [1.into(), "true".into(), Value::Nil, false.into()] {
            let other = map! {"reconnect": Value::clone(&other), "clientId": "c"};
            assert!(connect(&broker, "dev-token-alice", other).await.1.is_empty());
        }
        assert_eq!(connect(&broker, "dev-token-alice", back("c")).await.1.len(), 2);
    }
}

/// C-084: another actor, another client and the nameless one have their own; without a `clientId` all connections of an actor
/// share one memory.
#[tokio::test(start_paused = true)]
async fn each_client_has_its_own_memory() {
    let broker = broker(Settings::default());
    let (mut named, _) = connect(&broker, "dev-token-alice", map! {"clientId": "named"}).await;
    named.subscribe("demo/general/named").await;
    let (mut first, _) = connect(&broker, "dev-token-alice", map! {}).await;
    first.subscribe("demo/general/first").await;
    let (mut second, _) = connect(&broker, "dev-token-alice", map! {"clientId": "!?"}).await;
    second.subscribe("demo/general/second").await;
    for client in [named, first, second] {
        leave(client).await;
    }
    let nobody = connect(&broker, "dev-token-bob", back("named")).await.1;
    assert!(nobody.is_empty());
    let (_client, restored) = connect(&broker, "dev-token-alice", map! {"reconnect": true}).await;
    assert_eq!(topics(&restored), ["demo/general/first", "demo/general/second"]);
    let (_client, restored) = connect(&broker, "dev-token-alice", back("named")).await;
    assert_eq!(topics(&restored), ["demo/general/named"]);
}

/// C-085: by a fresh connect unless another connection of the client lives, and an hour after the last one.
#[tokio::test(start_paused = true)]
async fn memory_ends() {
    let broker = broker(Settings::default());
    let fresh = || map! {"clientId": "c"};
    let (mut client, _) = connect(&broker, "dev-token-alice", fresh()).await;
    client.subscribe(TOPIC).await;
    // Beside one that lives a fresh connection forgets nothing.
    let (beside, _) = connect(&broker, "dev-token-alice", fresh()).await;
    leave(client).await;
    assert_eq!(topics(&connect(&broker, "dev-token-alice", back("c")).await.1), [TOPIC]);
    leave(beside).await;
    sleep(Duration::from_secs(3_599)).await;
    let (client, restored) = connect(&broker, "dev-token-alice", back("c")).await;
    assert_eq!(topics(&restored), [TOPIC], "not yet an hour");
    leave(client).await;
    sleep(Duration::from_secs(3_601)).await;
    let (mut client, restored) = connect(&broker, "dev-token-alice", back("c")).await;
    assert!(restored.is_empty(), "an hour after the last connection");

    client.subscribe(TOPIC).await;
    leave(client).await;
    leave(connect(&broker, "dev-token-alice", fresh()).await.0).await;
    assert!(connect(&broker, "dev-token-alice", back("c")).await.1.is_empty(), "it began anew");
}

/// C-086: a subscription is restored by today's grants; what they refuse is dropped without an error, and for good.
#[tokio::test(start_paused = true)]
async fn what_is_no_longer_granted_is_dropped() {
    let auth = Arc::new(Granting(Mutex::new(vec!["a/#", "b/#"])));
    let broker = broker_with(Settings::default(), auth.clone());
    let (mut client, _) = connect(&broker, "ann", map! {}).await;
    client.subscribe("a/x").await;
    client.subscribe("b/x").await;
    leave(client).await;
    *auth.0.lock() = vec!["b/#"];
    sleep(Duration::from_secs(60)).await;
    for grants in [["b/#"].to_vec(), ["a/#", "b/#"].to_vec()] {
        *auth.0.lock() = grants;
        sleep(Duration::from_secs(60)).await;
        let (mut client, restored) = connect(&broker, "ann", map! {"reconnect": true}).await;
        assert_eq!(topics(&restored), ["b/x"]);
        client.settled(&[]).await;
        leave(client).await;
    }
}

/// C-087: the backend's list comes first where there is one, in all the forms that it may have.
#[tokio::test(start_paused = true)]
async fn the_backends_list_comes_first() {
    let rules = r#""allowedTopics": [{"pattern": "a/#", "permission": "pubSub"}]"#;
    let text = format!(
        r#"{{"tokens": {{
            "listed": {{"actorTokenId": "listed", {rules}, "activeSubscriptions": ["a/one",
                {{"pattern": "a/two", "topic": "internal/two", "filters": [["fire", "north"], "smoke"], "load_balance": true, "load_balance_group": "g"}},
                {{"name": "a/three", "filters": null}}, {{"topic": "b/not-granted"}}, 7, {{}}]}},
            "empty": {{"actorTokenId": "empty", {rules}, "activeSubscriptions": []}}}}}}"#
    );
    let auth = StaticAuth::from_text(&text, Profile::Extended).unwrap();
    let broker = broker_with(Settings::default(), Arc::new(auth));
    for token in ["listed", "empty"] {
        let (mut client, restored) = connect(&broker, token, map! {}).await;
        assert!(restored.is_empty(), "only who reconnects");
        client.subscribe("a/own").await;
        leave(client).await;
    }
    assert_eq!(topics(&connect(&broker, "empty", map! {"reconnect": true}).await.1), ["a/own"]);
    let (mut client, restored) = connect(&broker, "listed", map! {"reconnect": true}).await;
    assert_eq!(topics(&restored), ["a/one", "a/two", "a/three"]);
    let filters = Value::Array(vec![list(&["fire", "north"]), "smoke".into()]);
    let two = map! {"topic": "a/two", "filters": filters, "loadBalance": true, "loadBalanceGroup": "g"};
    assert_eq!(sorted(&restored[1]), sorted(&two));
    let mut talker = Client::login(&broker, "empty").await;
    talker.send(map! {"type": "publish", "topic": "a/two", "data": "smoke", "filter": "smoke"}).await;
    talker.send(map! {"type": "publish", "topic": "a/own", "data": 1}).await;
    talker.send(map! {"type": "publish", "topic": "a/three", "data": "three"}).await;
    settle().await;
    let frames = client.settled(&["message", "message"]).await;
    assert_eq!((&frames[0]["data"], &frames[1]["data"]), (&"smoke".into(), &"three".into()));
}

/// C-088.
#[tokio::test(start_paused = true)]
async fn a_client_id_counts_by_its_plain_characters() {
    let broker = broker(Settings::default());
    let (mut client, _) = connect(&broker, "dev-token-alice", map! {"clientId": "a b/c_d-1"}).await;
    client.subscribe(TOPIC).await;
    leave(client).await;
    assert_eq!(topics(&connect(&broker, "dev-token-alice", back("äabc_d-1!")).await.1), [TOPIC]);
    assert!(connect(&broker, "dev-token-alice", back("ABC_d-1")).await.1.is_empty());
    let long = "x".repeat(64);
    let (mut client, _) = connect(&broker, "dev-token-alice", map! {"clientId": long.as_str()}).await;
    client.subscribe(TOPIC).await;
    leave(client).await;
    assert_eq!(topics(&connect(&broker, "dev-token-alice", back(&format!("{long}more"))).await.1), [TOPIC]);
    assert!(connect(&broker, "dev-token-alice", back(&long[1..])).await.1.is_empty());
}

/// C-089: for ids that were handed out and for others.
#[tokio::test(start_paused = true)]
async fn acks_are_never_answered() {
    let broker = broker(Settings::default());
    let mut client = Client::login(&broker, "dev-token-alice").await;
    client.subscribe(TOPIC).await;
    client.send(map! {"type": "publish", "topic": TOPIC, "data": 1}).await;
    let id = client.next().await["msgId"].as_str().unwrap().to_owned();
    for id in [&id, &id, "unknown", ""] {
        client.send(map! {"type": "ack", "msgId": id}).await;
        client.send(map! {"type": "batchAck", "msgIds": list(&[id, "unknown"])}).await;
    }
    client.settled(&[]).await;
}
