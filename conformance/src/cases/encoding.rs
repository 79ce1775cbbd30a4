//! Frames and payloads as bytes (wire protocol 4).

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;
use serde_json::Value as Json;

use crate::client::Client;
use crate::suite::{Alone, Case, Context, Needs, NotRun, case};
use crate::vectors;
use crate::wire::{MAX_MESSAGE, brief, decode, encode, frame, get, holds, kind, lacks, list, text, with};

pub(super) fn cases() -> Vec<Case> {
    use Needs::Nothing;
    vec![
        case!("C-006", Both, Nothing, "decodes every valid client vector of frames.json", valid_vectors),
        case!("C-007", Both, Nothing, "encodes every server frame in canonical form", canonical_form),
        case!("C-008", Both, Nothing, "never sends a str that is not valid UTF-8", utf8),
        case!(
            "C-013",
            Extended,
            Nothing,
            "relays integers, floats, nil and maps of any keys unchanged",
            relayed_values
        ),
        case!(
            "C-014",
            Both,
            Nothing,
            "relays bin as bin and str as str (kraken: UTF-8 bin as str)",
            bin_and_str
        ),
        case!("C-015", Extended, Nothing, "relays ext values in data, refuses them in envelope fields", ext),
        case!("C-017", Both, Nothing, "never sends a message over 1,048,576 bytes", message_size),
    ]
}

/// The topic of the vectors.
const VECTOR_TOPIC: &str = "demo/general/messages";

/// Fails with a reason to skip where the vectors' fixed topics are not granted.
pub(super) fn needs_demo_grants(context: &Context) -> Result<()> {
    ensure!(
        context.prefix == "demo/general" && context.room == "general" && context.lobby == "lounge",
        NotRun("the vectors need the demo grants of wire protocol 21.1".to_owned())
    );
    Ok(())
}

/// C-006: each vector on a connection of its own, observed by its reply and by what the other actor receives.
async fn valid_vectors(context: Context) -> Result<()> {
    needs_demo_grants(&context)?;
    let alone = context.alone().await?;
    for vector in vectors::client_frames()? {
        if vector.get("expect_error").is_none() {
            valid_vector(&alone, context.extended(), &vector)
                .await
                .with_context(|| format!("vector {}", vector["name"]))?;
        }
    }
    Ok(())
}

async fn valid_vector(alone: &Alone, extended: bool, vector: &Json) -> Result<()> {
    let bytes = vectors::bytes(vector)?;
    // The tagged JSON, for it tells which of two equal keys counts; but the payload as it is in the bytes, for JSON does
    // not keep the order of keys.
    let mut frame = vectors::value(&vector["frame"])?;
    if let Some(data) = get(&decode(&bytes)?, "data") {
        frame = with(frame, "data", data.clone());
    }
    if kind(&frame) == "auth" {
        let mut client = alone.open().await?;
        client.send_bytes(bytes).await?;
        return auth_reply(&client.frame().await?, &frame);
    }
    let mut client = alone.alice().await?;
    if kind(&frame) == "publish" {
        return published(alone, extended, &mut client, bytes, &frame).await;
    }
    if kind(&frame) == "setFilters" {
        client.subscribe(VECTOR_TOPIC).await?;
        client.settle().await?;
    }
    client.send_bytes(bytes).await?;
    let mut frames = client.settle().await?;
    let granted = text(&frame, "topic").starts_with("demo/general/");
    let room = text(&frame, "roomId");
    let expected = match kind(&frame) {
        "reauth" => vec![frame! {"type" => "reauth", "success" => false}],
        "subscribe" if granted => {
            let balanced = get(&frame, "loadBalance") == Some(&Value::from(true));
            vec![frame! {"type" => "subscribed", "topic" => text(&frame, "topic"), "loadBalance" => balanced}]
        }
        "subscribe" => vec![frame! {"type" => "error", "code" => 42940, "topic" => text(&frame, "topic")}],
        "unsubscribe" => vec![frame! {"type" => "unsubscribed", "topic" => VECTOR_TOPIC}],
        "setFilters" => {
            let filters = get(&frame, "filters").cloned().context("filters")?;
            vec![frame! {"type" => "filtersUpdated", "topic" => VECTOR_TOPIC, "filters" => filters}]
        }
        "presence" if room == "general" && get(&frame, "data") != Some(&Value::Nil) => {
            vec![
                frame! {"type" => "presence", "event" => "join"},
                frame! {"type" => "presence", "event" => "update"},
            ]
        }
        "presence" if room == "general" => {
            // Whether the one who leaves is told is not said; kraken tells of an update (or of a join).
            frames.retain(|frame| kind(frame) != "presence");
            vec![]
        }
        "presence" if !room.is_empty() && extended => {
            vec![frame! {"type" => "error", "error" => "unknown_room", "roomId" => room}]
        }
        "getPresence" => vec![frame! {"type" => "presenceList"}],
        "lobbySubscribe" => vec![frame! {"type" => "lobbySubscribed", "lobbyId" => "lounge"}],
        "lobbyUnsubscribe" => vec![frame! {"type" => "lobbyUnsubscribed", "lobbyId" => "lounge"}],
        "getLobbyPresence" => vec![frame! {"type" => "lobbyPresenceList", "lobbyId" => "lounge"}],
        _ => vec![],
    };
    // Retained messages of other vectors may follow a subscribe.
    frames.retain(|frame| kind(frame) != "message");
    ensure!(frames.len() == expected.len(), "expected {expected:?}, got {frames:?}");
    frames.iter().zip(&expected).try_for_each(|(frame, expected)| holds(frame, expected))?;
    if let (true, Some(reference)) = (extended, get(&frame, "msgRef")) {
        holds(&frames[0], &frame! {"msgRef" => reference.clone()}).context("X-20")?;
    }
    if vector["name"] == "get_presence_legacy" {
        holds(&frames[0], &frame! {"data" => list![]})?;
        lacks(&frames[0], &["roomId"])?;
    }
    Ok(())
}

/// The tokens of some vectors are unknown here; a refusal shows as well that the frame was read.
fn auth_reply(reply: &Value, request: &Value) -> Result<()> {
    ensure!(kind(reply) == "auth", "expected an auth reply, got {}", brief(reply));
    if get(reply, "success") == Some(&Value::from(true)) {
        let asked = get(request, "protocolVersion").and_then(Value::as_u64).unwrap_or(1);
        return holds(reply, &frame! {"protocolVersion" => asked.min(2)});
    }
    ensure!(!text(request, "token").starts_with("dev-token"), "a demo token was refused: {}", brief(reply));
    holds(reply, &frame! {"success" => false, "error" => "access_denied"})
}

async fn published(
    alone: &Alone,
    extended: bool,
    client: &mut Client,
    bytes: Vec<u8>,
    frame: &Value,
) -> Result<()> {
    let topic = text(frame, "topic");
    let mut other = alone.bob().await?;
    other.subscribe(VECTOR_TOPIC).await?;
    other.settle().await?;
    client.send_bytes(bytes).await?;
    let replies = client.settle().await?;
    if topic != VECTOR_TOPIC {
        ensure!(replies.len() == 1, "expected an error, got {replies:?}");
        return holds(&replies[0], &frame! {"type" => "error", "code" => 42940, "topic" => topic});
    }
    let data = get(frame, "data").cloned().unwrap_or(Value::Nil);
    if !extended && holds_ext(&data) {
        ensure!(replies.is_empty(), "ext in the kraken profile was answered with {replies:?}");
        return other.quiet().await;
    }
    match text(frame, "msgRef") {
        "" => ensure!(replies.is_empty(), "expected no reply, got {replies:?}"),
        reference => {
            ensure!(replies.len() == 1, "expected one reply, got {replies:?}");
            holds(&replies[0], &frame! {"type" => "published", "topic" => topic, "msgRef" => reference})?;
        }
    }
    let data = if extended { data } else { as_kraken_relays(data) };
    other.one_message(frame! {"topic" => topic, "data" => data}).await?;
    Ok(())
}

fn holds_ext(value: &Value) -> bool {
    match value {
        Value::Ext(..) => true,
        Value::Array(items) => items.iter().any(holds_ext),
        Value::Map(fields) => fields.iter().any(|(key, item)| holds_ext(key) || holds_ext(item)),
        _ => false,
    }
}

/// Byte strings that are UTF-8 become text (4.4).
fn as_kraken_relays(value: Value) -> Value {
    match value {
        Value::Binary(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Value::from(text),
            Err(error) => Value::Binary(error.into_bytes()),
        },
        Value::Array(items) => Value::Array(items.into_iter().map(as_kraken_relays).collect()),
        Value::Map(fields) => Value::Map(
            fields.into_iter().map(|(key, item)| (as_kraken_relays(key), as_kraken_relays(item))).collect(),
        ),
        other => other,
    }
}

/// C-007: a tour past every kind of server frame, with texts and lists around the lengths where headers change. The
/// client checks each; what the rest of the run showed is added at its end.
async fn canonical_form(context: Context) -> Result<()> {
    let alone = context.alone().await?;
    let topic = alone.topic("canonical");
    let topic = topic.as_str();
    let mut alice = alone.alice().await?;
    let mut bob = alone.bob().await?;
    bob.subscribe(topic).await?;
    let mut stranger = alone.open().await?;
    stranger
        .ask_for(frame! {"type" => "subscribe", "topic" => topic}, frame! {"error" => "not_authenticated"})
        .await?;
    let refusal = stranger.auth("no such token").await?;
    holds(&refusal, &frame! {"type" => "auth", "success" => false})?;

    for length in [1, 31, 32, 255, 256, 65_535, 65_536] {
        let long = "x".repeat(length);
        alice.publish_as(frame! {"topic" => topic, "data" => length, "msgRef" => long.as_str()}).await?;
        alice
            .ask_for(frame! {"type" => "getPresence", "roomId" => long.as_str()}, frame! {"roomId" => long})
            .await?;
    }
    for count in [15, 16, 100] {
        let filters = Value::Array((0..count).map(|at| Value::from(format!("f{at}"))).collect());
        let request = frame! {"type" => "setFilters", "topic" => topic, "filters" => filters.clone()};
        bob.settle().await?;
        bob.ask_for(request, frame! {"type" => "filtersUpdated", "filters" => filters}).await?;
    }
    alice.publish_as(frame! {"topic" => topic, "data" => 1, "filters" => list!["f3"]}).await?;
    bob.one_message(frame! {"filter" => "f3"}).await?;
    alice.try_publish(frame! {"topic" => topic, "data" => 1, "filter" => "a/b"}).await?;
    alice
        .ask_for(
            frame! {"type" => "setFilters", "topic" => topic, "filters" => list![]},
            frame! {"type" => "error"},
        )
        .await?;

    let (room, lobby) = (alone.room.as_str(), alone.lobby.as_str());
    alice
        .ask_for(
            frame! {"type" => "lobbySubscribe", "lobbyId" => lobby},
            frame! {"type" => "lobbySubscribed"},
        )
        .await?;
    bob.send(frame! {"type" => "presence", "roomId" => room, "data" => frame! {"presence" => 1, "data" => list![]}}).await?;
    bob.settle().await?;
    alice.until("a lobby event", |frame| kind(frame) == "lobbyPresence").await?;
    alice.settle().await?;
    for request in [
        frame! {"type" => "getPresence", "roomId" => room},
        frame! {"type" => "getLobbyPresence", "lobbyId" => lobby},
        frame! {"type" => "lobbyUnsubscribe", "lobbyId" => lobby},
        frame! {"type" => "lobbySubscribe", "lobbyId" => "no-such-lobby"},
        frame! {"type" => "subscribe", "topic" => "no/such/topic"},
        frame! {"type" => "unsubscribe", "topic" => topic},
        frame! {"type" => "reauth", "token" => alone.token.as_str()},
        frame! {"type" => "reauth", "token" => alone.other_token.as_str()},
    ] {
        alice.ask(request).await?;
    }
    let mut members = Vec::new();
    for at in 0..17 {
        let mut member = alone.bob().await?;
        member.send(frame! {"type" => "presence", "roomId" => room, "data" => frame! {"n" => at}}).await?;
        member.settle().await?;
        members.push(member);
    }
    let list = alice.ask(frame! {"type" => "getPresence", "roomId" => room}).await?;
    let listed = get(&list, "data").and_then(Value::as_array).map_or(0, Vec::len);
    ensure!(listed >= 18, "18 members, but a list of {listed}");
    alone.observed.canonical()
}

/// C-008: texts that are not UTF-8 are sent wherever a frame may hold one; none of them may come back as a text.
async fn utf8(context: Context) -> Result<()> {
    let alone = context.alone().await?;
    let topic = alone.topic("utf8");
    let mut bob = alone.bob().await?;
    bob.subscribe(&topic).await?;
    let mut member = alone.bob().await?;
    member.send(frame! {"type" => "presence", "roomId" => alone.room.as_str(), "data" => 1}).await?;
    member.settle().await?;
    // A text that is put in by hand: FF FE is no UTF-8, and stands where this placeholder of the same length does.
    let spoiled = |frame: Value| {
        let mut bytes = encode(&frame);
        while let Some(at) = bytes.windows(2).position(|two| two == b"@@") {
            bytes[at..at + 2].copy_from_slice(b"\xff\xfe");
        }
        bytes
    };
    let topic = topic.as_str();
    for frame in [
        frame! {"type" => "publish", "topic" => topic, "data" => "@@"},
        frame! {"type" => "publish", "topic" => topic, "data" => frame! {"deep" => list![frame! {"@@" => "a@@"}]}},
        frame! {"type" => "publish", "topic" => topic, "data" => 1, "msgRef" => "@@"},
        frame! {"type" => "publish", "topic" => topic, "data" => 1, "filter" => "@@"},
        frame! {"type" => "publish", "topic" => format!("{topic}@@"), "data" => 1, "msgRef" => "m"},
        frame! {"type" => "subscribe", "topic" => format!("{topic}@@")},
        frame! {"type" => "unsubscribe", "topic" => "@@"},
        frame! {"type" => "setFilters", "topic" => topic, "filters" => list!["@@"]},
        frame! {"type" => "presence", "roomId" => alone.room.as_str(), "data" => frame! {"name" => "@@"}},
        frame! {"type" => "getPresence", "roomId" => "@@"},
        frame! {"type" => "lobbySubscribe", "lobbyId" => "@@"},
        frame! {"type" => "unknown@@", "msgRef" => "@@"},
    ] {
        let mut alice = alone.alice().await?;
        alice.send_bytes(spoiled(frame.clone())).await?;
        alice.settle().await.with_context(|| format!("after {}", brief(&frame)))?;
        bob.settle().await?;
        member.settle().await?;
        alone.observed.utf8().with_context(|| format!("after {} with FF FE for @@", brief(&frame)))?;
    }
    Ok(())
}

/// C-013: what 4.3 says of values in `data`.
async fn relayed_values(context: Context) -> Result<()> {
    let topic = context.topic("values");
    let mut bob = context.bob().await?;
    bob.subscribe(&topic).await?;
    let mut alice = context.alice().await?;
    let keys = Value::Map(vec![
        (Value::from(1), Value::from("one")),
        (Value::from(-2), Value::Nil),
        (Value::from(1.5), Value::from("a float")),
        (Value::Nil, Value::from(true)),
        (Value::from(b"\xff\x00".as_slice()), list![frame! {"deeper" => frame! {}}]),
        (list![1, 2], Value::from("an array as a key")),
    ]);
    for value in [
        Value::from(u64::MAX),
        Value::from(i64::MIN),
        Value::from(9_007_199_254_740_993_u64),
        Value::from(1.0),
        Value::from(-0.0),
        Value::from(5e-324),
        Value::F32(1.5),
        Value::from(f64::NAN),
        Value::from(f64::INFINITY),
        Value::Nil,
        Value::from(false),
        list![list![], frame! {}, list![Value::Nil, list!["x"]]],
        keys,
    ] {
        alice.publish(&topic, value.clone()).await?;
        bob.one_message(frame! {"data" => value}).await?;
    }
    Ok(())
}

/// C-014: 4.4, X-01.
async fn bin_and_str(context: Context) -> Result<()> {
    let topic = context.topic("bin");
    let mut bob = context.bob().await?;
    bob.subscribe(&topic).await?;
    let mut alice = context.alice().await?;
    let bin = |bytes: &[u8]| Value::from(bytes);
    for value in [
        bin(b""),
        bin(b"hello"),
        bin("déjà vu".as_bytes()),
        bin(&[0, 1, 2, 3, 255]),
        bin(&[0xc3, 0x28]),
        Value::from("hello"),
        Value::from(""),
        list![bin(b"in a list"), "text", bin(&[0xff])],
        frame! {"img" => bin(&[0x89, b'P', b'N', b'G']), "name" => bin(b"in a map")},
        Value::from(vec![0xab_u8; 70_000]),
    ] {
        let expected = if context.extended() { value.clone() } else { as_kraken_relays(value.clone()) };
        alice.publish(&topic, value).await?;
        bob.one_message(frame! {"data" => expected}).await?;
    }
    Ok(())
}

/// C-015: 4.6.
async fn ext(context: Context) -> Result<()> {
    let topic = context.topic("ext");
    let mut bob = context.bob().await?;
    bob.subscribe(&topic).await?;
    let mut alice = context.alice().await?;
    for value in [
        Value::Ext(-1, vec![0x5a, 0x4a, 0xf6, 0xa5]),
        Value::Ext(7, vec![1, 2, 3, 4, 5]),
        Value::Ext(0, vec![]),
        Value::Ext(127, vec![9; 300]),
        list![frame! {"at" => Value::Ext(-1, vec![0; 12])}],
    ] {
        alice.publish(&topic, value.clone()).await?;
        bob.one_message(frame! {"data" => value}).await?;
    }
    let ext = || Value::Ext(7, vec![1]);
    for request in [
        frame! {"type" => "subscribe", "topic" => ext()},
        frame! {"type" => "publish", "topic" => ext(), "data" => 1},
        frame! {"type" => "getPresence", "roomId" => ext()},
        frame! {"type" => "lobbySubscribe", "lobbyId" => ext()},
        frame! {"type" => ext(), "topic" => topic.as_str()},
    ] {
        alice
            .ask_for(request, frame! {"type" => "error", "code" => 40000, "error" => "invalid_message"})
            .await?;
    }
    alice.quiet().await
}

/// C-017: answers that would be longer than the limit are cut, refused or left out, and never sent. Among them lists
/// events that repeat a request with more around it, and errors that echo what was asked.
async fn message_size(context: Context) -> Result<()> {
    let alone = context.alone().await?;
    let (room, lobby) = (alone.room.as_str(), alone.lobby.as_str());
    let big = "x".repeat(400_000);
    let mut members = Vec::new();
    for _ in 0..3 {
        let mut member = alone.bob().await?;
        member
            .send(frame! {"type" => "presence", "roomId" => room, "data" => frame! {"pad" => big.as_str()}})
            .await?;
        member.settle().await?;
        members.push(member);
    }
    let mut alice = alone.alice().await?;
    let list = alice
        .ask_for(frame! {"type" => "getPresence", "roomId" => room}, frame! {"type" => "presenceList"})
        .await?;
    let lobby = alice
        .ask_for(
            frame! {"type" => "getLobbyPresence", "lobbyId" => lobby},
            frame! {"type" => "lobbyPresenceList"},
        )
        .await?;
    let entries = get(&list, "data").and_then(Value::as_array).map_or(0, Vec::len);
    ensure!((1..=2).contains(&entries), "of three members of 400,000 bytes a list named {entries}");
    // The lobby keys its entries by actor, of whom there is one here: nothing needs to be cut.
    ensure!(encode(&lobby).len() <= MAX_MESSAGE, "a lobby list over the limit");
    if context.extended() {
        holds(&list, &frame! {"truncated" => true}).context("X-25")?;
    }
    drop(members);

    let topic = alone.topic("size");
    let filler = |frame: Value, key: &str| fill(&frame, key);
    let mut requests = vec![
        filler(frame! {"type" => "presence", "roomId" => room, "data" => ""}, "data"),
        filler(
            frame! {"type" => "publish", "topic" => "no/such/topic", "data" => 1, "msgRef" => ""},
            "msgRef",
        ),
        filler(
            frame! {"type" => "publish", "topic" => topic.as_str(), "data" => 1, "msgRef" => ""},
            "msgRef",
        ),
        filler(frame! {"type" => "getPresence", "roomId" => ""}, "roomId"),
        filler(frame! {"type" => "lobbySubscribe", "lobbyId" => ""}, "lobbyId"),
        filler(frame! {"type" => "getLobbyPresence", "lobbyId" => ""}, "lobbyId"),
        filler(frame! {"type" => "lobbyUnsubscribe", "lobbyId" => ""}, "lobbyId"),
        filler(frame! {"type" => "presence", "roomId" => "", "data" => 1}, "roomId"),
        filler(frame! {"type" => "subscribe", "topic" => ""}, "topic"),
        filler(frame! {"type" => "unsubscribe", "topic" => ""}, "topic"),
    ];
    requests.push(set_filters(&topic)?);
    for request in requests {
        let mut client = alone.alice().await?;
        client.subscribe(&topic).await?;
        let sent = brief(&request);
        client.send(request).await?;
        // An error, silence or a close are all the same to this statement.
        if let Err(error) = client.settle_all().await {
            ensure!(error.to_string().contains("ended"), "after {sent}: {error:#}");
        }
        alone.observed.size().with_context(|| format!("after {sent}"))?;
    }
    alice.settle().await?;
    let mut bystander = alone.bob().await?;
    bystander.quiet().await
}

/// The frame with the field `key` as long as the limit allows.
fn fill(frame: &Value, key: &str) -> Value {
    let long = |length: usize| with(frame.clone(), key, "y".repeat(length));
    let overhead = encode(&long(100_000)).len() - 100_000;
    long(MAX_MESSAGE - overhead)
}

/// A `setFilters` of exactly the limit, whose answer has a longer `type`.
fn set_filters(topic: &str) -> Result<Value> {
    let request = |last: usize| {
        let long = |at: usize, length: usize| Value::from(format!("{at:02}{}", "f".repeat(length - 2)));
        let filters = (0..100).map(|at| long(at, if at == 99 { last } else { 10_000 })).collect();
        frame! {"type" => "setFilters", "topic" => topic, "filters" => Value::Array(filters)}
    };
    let spare = MAX_MESSAGE - encode(&request(10_000)).len();
    let full = request(10_000 + spare);
    ensure!(encode(&full).len() == MAX_MESSAGE, "the filters are miscounted");
    Ok(full)
}
