//! Tokens: expiry, renewal, the cache and the token file (wire protocol 6.4, 7, 21).

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rmpv::Value;
use serde_json::{Value as Json, json};

use crate::broker::{Broker, Launch, actor};
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{frame, get, holds, lacks, with};

pub(super) fn cases() -> Vec<Case> {
    use Needs::Broker;
    vec![
        case!(
            "C-023",
            Both,
            Broker,
            "reports token_expired for an expired token even while cached",
            expired_while_cached
        ),
        case!("C-029", Both, Broker, "caches a successful validation for its time, and no failure", cache),
        case!(
            "C-035",
            Both,
            Broker,
            "accepts reauth of the same actor, refuses another with actor_mismatch",
            reauth
        ),
        case!("C-036", Both, Broker, "keeps a connection alive after a failed reauth", failed_reauth),
        case!(
            "C-037",
            Both,
            Broker,
            "closes with 4003 after a disconnect frame when a token expires",
            expiry
        ),
        case!(
            "C-039",
            Both,
            Broker,
            "reads a changed token file; accepts no token while it cannot be parsed",
            changed_file
        ),
        case!("C-041", Both, Broker, "never logs a whole token", logs),
    ]
}

/// Seconds since the epoch.
fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

/// A JWT of the actor that expires at `expiry`, with a signature that is none.
fn jwt(actor: &str, expiry: u64) -> String {
    let part = |json: Json| URL_SAFE_NO_PAD.encode(json.to_string());
    let (header, claims) = (part(json!({"alg": "HS256"})), part(json!({"sub": actor, "exp": expiry})));
    format!("{header}.{claims}.{}", URL_SAFE_NO_PAD.encode("a signature that is none"))
}

fn rules() -> Json {
    json!([{"pattern": "t/#", "permission": "pubSub"}])
}

fn success() -> Value {
    frame! {"type" => "auth", "success" => true}
}

/// C-023: the cache holds validations for 30 s, the token lives for 3 s. The close of the first connection tells when
/// the time has come.
async fn expired_while_cached(context: Context) -> Result<()> {
    let expiry = now() + 3;
    let (short, old) = (jwt("a", expiry), jwt("b", now() - 60));
    let tokens = json!({short.as_str(): actor("a", rules()), old.as_str(): actor("b", rules())});
    let broker = context.start(Launch::tokens(tokens)).await?;
    let expired = frame! {"type" => "auth", "success" => false, "error" => "token_expired"};
    holds(&broker.open().await?.auth(&old).await?, &expired).context("a token that expired a minute ago")?;
    let unknown = broker.open().await?.auth(&jwt("c", now() - 60)).await?;
    holds(&unknown, &frame! {"error" => "access_denied"}).context("an expired token that is unknown")?;

    let mut first = broker.connect(&short).await.context("a token that is still good")?;
    let (_, code, _) = first.closed().await?;
    ensure!(code == 4003, "closed with {code}, not 4003");
    holds(&broker.open().await?.auth(&short).await?, &expired).context("a token that expired while cached")
}

/// C-029: with a cache of two seconds. What is cached outlives its entry in the file, what was refused does not.
async fn cache(context: Context) -> Result<()> {
    const TTL: Duration = Duration::from_secs(2);
    let both = json!({"tok-a": actor("a", rules()), "tok-b": actor("b", rules())});
    let only_a = json!({"tok-a": actor("a", rules())});
    let broker = context.start(Launch::tokens(only_a).set("AUTH_CACHE_TTL_MS", TTL)).await?;
    let validated = Instant::now();
    broker.connect("tok-a").await?;
    let denied = frame! {"type" => "auth", "success" => false, "error" => "access_denied"};
    holds(&broker.open().await?.auth("tok-b").await?, &denied)?;
    broker.rewrite(&both)?;
    broker.connect("tok-b").await.context("a token that was unknown a moment ago")?;

    let only_b = json!({"tok-b": actor("b", rules())});
    broker.rewrite(&only_b)?;
    let cached = broker.open().await?.auth("tok-a").await?;
    if validated.elapsed() < TTL {
        holds(&cached, &success()).context("a removed token whose validation is cached")?;
    }
    while get(&broker.open().await?.auth("tok-a").await?, "success") == Some(&Value::from(true)) {
        ensure!(validated.elapsed() < TTL * 3, "a removed token is accepted {:?} later", validated.elapsed());
        tokio::time::sleep(TTL / 20).await;
    }
    Ok(())
}

/// The token file of the `reauth` cases: three tokens of one actor, one of another.
fn renewals(expiry: u64) -> Json {
    let wide =
        json!([{"pattern": "t/#", "permission": "pubSub"}, {"pattern": "u/#", "permission": "pubSub"}]);
    let mut expiring = actor("a", wide.clone());
    expiring["authExpiresAt"] = json!(expiry);
    json!({
        "tok-old": actor("a", rules()),
        "tok-new": actor("a", wide),
        "tok-expiring": expiring,
        "tok-other": actor("b", rules()),
        "tok-expired": json!({"actorTokenId": "a", "projectId": "p", "authExpiresAt": 1, "allowedTopics": rules()}),
    })
}

/// Publishes to `topic` from a second connection and insists that the first hears of it.
async fn still_hears(broker: &Broker, client: &mut crate::client::Client, topic: &str) -> Result<()> {
    let mut publisher = broker.connect("tok-other").await?;
    publisher.publish(topic, "heard").await?;
    client.one_message(frame! {"topic" => topic, "data" => "heard"}).await?;
    Ok(())
}

/// C-035: new grants count at once, subscriptions stay, `authExpiresAt` comes for a token that expires.
async fn reauth(context: Context) -> Result<()> {
    let expiry = now() + 3_600;
    let broker = context.start(Launch::tokens(renewals(expiry))).await?;
    let mut early = broker.open().await?;
    let request = |token: &str| frame! {"type" => "reauth", "token" => token};
    early.ask_for(request("tok-old"), frame! {"type" => "error", "error" => "not_authenticated"}).await?;

    let mut client = broker.connect("tok-old").await?;
    client.subscribe("t/x").await?;
    let denied = frame! {"type" => "error", "code" => 42940, "topic" => "u/x"};
    client.ask_for(frame! {"type" => "subscribe", "topic" => "u/x"}, denied).await?;
    let granted = frame! {"type" => "reauth", "success" => true};
    let reply = client.ask_for(request("tok-new"), granted.clone()).await?;
    lacks(&reply, &["error", "authExpiresAt"])?;
    client.subscribe("u/x").await.context("a topic that only the new token grants")?;
    still_hears(&broker, &mut client, "t/x").await?;

    let mismatch = frame! {"type" => "reauth", "success" => false, "error" => "actor_mismatch"};
    client.ask_for(request("tok-other"), mismatch).await?;
    still_hears(&broker, &mut client, "t/x").await?;
    client.ask_for(request("tok-expiring"), with(granted, "authExpiresAt", expiry)).await?;
    still_hears(&broker, &mut client, "t/x").await
}

/// C-036: every failure leaves identity, grants and subscriptions alone.
async fn failed_reauth(context: Context) -> Result<()> {
    let broker = context.start(Launch::tokens(renewals(now() + 3_600))).await?;
    let mut client = broker.connect("tok-new").await?;
    client.subscribe("t/x").await?;
    for (token, error) in [
        ("no such token", "access_denied"),
        ("tok-other", "actor_mismatch"),
        ("tok-expired", "token_expired"),
    ] {
        let request = frame! {"type" => "reauth", "token" => token};
        client.ask_for(request, frame! {"type" => "reauth", "success" => false, "error" => error}).await?;
        still_hears(&broker, &mut client, "t/x").await.with_context(|| format!("after {error}"))?;
        client.publish("u/y", 1).await.context("a topic that the first token grants")?;
    }
    Ok(())
}

/// C-037: by timer, within a second, for a JWT, for an entry with `authExpiresAt`, and after a `reauth`.
async fn expiry(context: Context) -> Result<()> {
    let expiry = now() + 3;
    let short = jwt("a", expiry);
    let mut tokens = renewals(expiry);
    tokens[short.as_str()] = actor("a", rules());
    let broker = context.start(Launch::tokens(tokens)).await?;
    let by_claim = broker.connect(&short).await.context("by JWT")?;
    let by_file = broker.connect("tok-expiring").await.context("by authExpiresAt")?;
    let mut by_reauth = broker.connect("tok-old").await?;
    by_reauth
        .ask_for(frame! {"type" => "reauth", "token" => short.as_str()}, frame! {"success" => true})
        .await?;
    let mut renewed = broker.connect("tok-expiring").await?;
    renewed.ask_for(frame! {"type" => "reauth", "token" => "tok-new"}, frame! {"success" => true}).await?;
    for (way, mut client) in [("by claim", by_claim), ("by file", by_file), ("by reauth", by_reauth)] {
        let (frames, code, reason) = client.closed().await.with_context(|| way)?;
        ensure!((code, reason.as_str()) == (4003, "token_expired"), "{way}: closed with {code} `{reason}`");
        ensure!(now() >= expiry, "{way}: closed before the token expired");
        ensure!(now() <= expiry + 2, "{way}: closed {} s after the token expired", now() - expiry);
        ensure!(frames.len() == 1, "{way}: expected one frame before the close, got {frames:?}");
        holds(&frames[0], &frame! {"type" => "disconnect", "reason" => "token_expired"})?;
    }
    renewed.quiet().await.context("a connection renewed in time by a token that does not expire")
}

/// C-039: every token here is new to the broker, so that no cache has it. Live connections stay throughout.
async fn changed_file(context: Context) -> Result<()> {
    let entries = |names: &[&str]| -> Json {
        names
            .iter()
            .map(|name| (format!("tok-{name}"), actor(name, rules())))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let mut broker = context.start(Launch::tokens(entries(&["a", "d"]))).await?;
    let mut live = broker.connect("tok-a").await?;
    holds(&broker.open().await?.auth("tok-b").await?, &frame! {"error" => "access_denied"})?;
    broker.rewrite(&entries(&["a", "b", "d", "e"]))?;
    broker.connect("tok-b").await.context("a token that was added")?;

    broker.break_tokens()?;
    for token in ["tok-d", "tok-e", "tok-unknown"] {
        let reply = broker.open().await?.auth(token).await?;
        holds(&reply, &frame! {"type" => "auth", "success" => false})
            .with_context(|| format!("{token}, file broken"))?;
    }
    live.quiet().await.context("a live connection while the file is broken")?;
    broker.alive()?;
    broker.rewrite(&entries(&["a", "e", "f"]))?;
    for token in ["tok-e", "tok-f"] {
        broker.connect(token).await.with_context(|| format!("{token}, file repaired"))?;
    }
    holds(&broker.open().await?.auth("tok-d").await?, &frame! {"success" => false})
        .context("a token that was removed")?;
    live.quiet().await
}

/// C-041: at the most talkative level, with tokens that succeed, fail, are renewed, expire, and are in a broken file.
async fn logs(context: Context) -> Result<()> {
    let opaque = "tok_opaque_8c1f77aa90e1b2c3d4e5f60718293a4b";
    let unknown = "tok_unknown_0011223344556677889900aabbccddee";
    let signed = jwt("a", now() + 3_600);
    let expired = jwt("a", now() - 3_600);
    let tokens = json!({opaque: actor("a", rules()), signed.as_str(): actor("a", rules()), expired.as_str(): actor("a", rules()),
        "tok_without_actor_5566778899aabbccddeeff00": {"projectId": "p"}});
    let mut broker = context.start(Launch::tokens(tokens).set("LOG_LEVEL", "trace")).await?;
    let secrets = [opaque, unknown, &signed, &expired, "tok_without_actor_5566778899aabbccddeeff00"];
    for token in secrets {
        broker.open().await?.auth(token).await?;
    }
    let mut client = broker.connect(opaque).await?;
    for token in secrets {
        client.ask(frame! {"type" => "reauth", "token" => token}).await?;
    }
    client.send_text(&format!(r#"{{"type":"reauth","token":"{unknown}"}}"#)).await?;
    client.frame().await?;
    if context.extended() {
        client.ask(frame! {"type" => "auth", "token" => unknown}).await?;
    }
    client.send_text(&format!(r#"{{"type":"reauth","token":"{unknown}""#)).await?;
    client.settle().await?;
    broker.break_tokens()?;
    broker.open().await?.auth(unknown).await?;
    client.close().await?;
    // Ends the process, so that all of its output is there.
    broker.terminate().await?;
    broker.ended().await?;
    let (secret_of_jwt, output) = (signed.rsplit('.').next().unwrap_or_default(), broker.output());
    for secret in secrets {
        ensure!(!output.contains(secret), "the log holds the whole token {secret}");
    }
    ensure!(!output.contains(secret_of_jwt), "the log holds the signature of a JWT");

    let anyone = context
        .start(Launch::without_tokens().set("AUTH_ALLOW_ALL", "true").set("LOG_LEVEL", "trace"))
        .await?;
    anyone.connect(unknown).await?.close().await?;
    let mut anyone = anyone;
    anyone.terminate().await?;
    anyone.ended().await?;
    ensure!(
        !anyone.output().contains(unknown),
        "the log holds the whole token {unknown} under AUTH_ALLOW_ALL"
    );
    Ok(())
}
