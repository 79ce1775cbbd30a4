//! Input that no client should send (wire protocol 4.3, 4.8).

use anyhow::{Context as _, Result, bail, ensure};
use rmpv::Value;
use serde_json::Value as Json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use super::encoding::needs_demo_grants;
use crate::client::{Client, Incoming, patiently};
use crate::http;
use crate::suite::{Alone, Case, Context, Needs, case};
use crate::vectors;
use crate::wire::{brief, encode, frame, get, holds, kind, lacks};

pub(super) fn cases() -> Vec<Case> {
    use Needs::Nothing;
    vec![
        case!(
            "C-011",
            Extended,
            Nothing,
            "answers malformed frames as 4.8 and the invalid vectors say, stays open",
            answered
        ),
        case!("C-012", Kraken, Nothing, "stays silent on malformed frames, without closing", silent),
        case!(
            "C-016",
            Both,
            Nothing,
            "rejects nesting beyond 128 levels and loses neither connection nor process",
            nesting
        ),
        case!("C-127", Both, Nothing, "survives each invalid vector and random bytes", survival),
    ]
}

/// The vectors that have an expectation.
fn invalid_vectors() -> Result<Vec<Json>> {
    Ok(vectors::client_frames()?.into_iter().filter(|vector| vector.get("expect_error").is_some()).collect())
}

/// A connection in the state that the vector asks for.
async fn in_state(alone: &Alone, vector: &Json) -> Result<Client> {
    if vector["state"] == "authenticated" { alone.alice().await } else { alone.open().await }
}

/// Insists that the connection is open and has nothing more to say, whatever its state. Vectors that do subscribe may be
/// followed by what other vectors retained on their common topic.
async fn open_and_quiet(client: &mut Client, authenticated: bool) -> Result<()> {
    if authenticated {
        let frames = client.settle().await?;
        let more = frames.iter().find(|frame| kind(frame) != "message");
        return more.map_or(Ok(()), |more| bail!("expected no more, got {}", brief(more)));
    }
    client
        .ask_for(frame! {"type" => "getPresence"}, frame! {"type" => "error", "error" => "not_authenticated"})
        .await?;
    Ok(())
}

/// Puts one vector to a connection of its own and compares the outcome with that of the profile.
async fn judge(alone: &Alone, profile: &str, vector: &Json) -> Result<()> {
    let expected = &vector["expect_error"][profile];
    let mut client = in_state(alone, vector).await?;
    client.send_bytes(vectors::bytes(vector)?).await?;
    let authenticated = vector["state"] == "authenticated";
    // kraken's crashes are not mimicked: our broker drops such a frame, but answers `auth` (4.8).
    let crash = expected.get("close").is_some();
    let reply = match vector["name"].as_str() {
        Some("invalid_auth_token_not_string") => &vector["expect_error"]["extended"]["reply"],
        _ => &expected["reply"],
    };
    if expected["unspecified"] == true {
        client.settle().await?;
        return Ok(());
    }
    if reply.is_null() {
        ensure!(crash || expected.get("reply").is_some(), "an expectation of an unknown kind: {expected}");
    } else {
        let frame = client.expect(vectors::value(reply)?).await?;
        if reply["type"] == "error" && reply.get("code").is_none() {
            lacks(&frame, &["code"])?;
        }
    }
    open_and_quiet(&mut client, authenticated).await
}

/// C-011: the vectors, and what 4.8 says beside them: JSON text, frames before the handshake, what an error echoes.
async fn answered(context: Context) -> Result<()> {
    needs_demo_grants(&context)?;
    let alone = context.alone().await?;
    for vector in invalid_vectors()? {
        judge(&alone, "extended", &vector).await.with_context(|| format!("vector {}", vector["name"]))?;
    }
    let malformed = frame! {"type" => "error", "code" => 40000, "error" => "invalid_message"};
    let stranger = frame! {"type" => "error", "error" => "not_authenticated"};

    let mut client = alone.alice().await?;
    for text in
        ["not JSON", "{", "[1,2]", "7", "\"ping\"", "null", r#"{"topic":"x"}"#, r#"{"type":"subscribe"}"#]
    {
        client.send_text(text).await?;
        let error =
            client.expect(malformed.clone()).await.with_context(|| format!("after the text {text}"))?;
        ensure!(get(&error, "detail").is_some_and(Value::is_str), "no `detail` in {}", brief(&error));
    }
    client.send_text("").await?;
    client.quiet().await.context("after an empty text")?;

    let mut before = alone.open().await?;
    before.send_text("not JSON").await?;
    before.expect(malformed.clone()).await.context("undecodable text before the handshake")?;
    before.send_bytes(vec![0xc1]).await?;
    before.expect(malformed.clone()).await.context("undecodable bytes before the handshake")?;
    for value in [Value::from(7), Value::Nil, frame! {"topic" => "x"}, frame! {"type" => 5}] {
        let sent = brief(&value);
        before
            .ask_for(value, stranger.clone())
            .await
            .with_context(|| format!("{sent} before the handshake"))?;
    }
    before.send_text("[1,2]").await?;
    before.expect(stranger).await.context("a JSON array before the handshake")?;

    let topic = alone.topic("malformed");
    let topic = topic.as_str();
    let echoed = frame! {"type" => "error", "code" => 40000, "error" => "invalid_message", "topic" => topic, "msgRef" => "m-1"};
    for request in [
        frame! {"type" => "publish", "topic" => topic, "msgRef" => "m-1"},
        frame! {"type" => "setFilters", "topic" => topic, "msgRef" => "m-1"},
        frame! {"type" => "subscribe", "topic" => topic, "loadBalance" => true, "loadBalanceGroup" => 5, "msgRef" => "m-1"},
    ] {
        let sent = brief(&request);
        client.ask_for(request, echoed.clone()).await.with_context(|| sent)?;
    }
    for request in [
        frame! {"type" => "publish", "data" => 1, "msgRef" => "m-2"},
        frame! {"type" => "publish", "topic" => Value::Nil, "data" => 1, "msgRef" => "m-2"},
        frame! {"type" => "unsubscribe", "msgRef" => "m-2"},
        frame! {"type" => "unsubscribe", "topic" => 5, "msgRef" => "m-2"},
        frame! {"type" => "lobbySubscribe", "msgRef" => "m-2"},
        frame! {"type" => "lobbyUnsubscribe", "lobbyId" => 5, "msgRef" => "m-2"},
        frame! {"type" => "getLobbyPresence", "lobbyId" => true, "msgRef" => "m-2"},
        frame! {"type" => "getPresence", "roomId" => 5, "msgRef" => "m-2"},
        frame! {"type" => "presence", "roomId" => 5, "data" => 1, "msgRef" => "m-2"},
        frame! {"type" => "ack", "msgRef" => "m-2"},
        frame! {"type" => "batchAck", "msgIds" => vec![Value::from("0"); 1001], "msgRef" => "m-2"},
        frame! {"type" => "batchAck", "msgIds" => vec![Value::from(1)], "msgRef" => "m-2"},
        frame! {"type" => "reauth", "msgRef" => "m-2"},
    ] {
        let sent = brief(&request);
        let error = client.ask_for(request, malformed.clone()).await.with_context(|| sent.clone())?;
        holds(&error, &frame! {"msgRef" => "m-2"}).with_context(|| sent)?;
    }
    client.quiet().await
}

/// C-012: the vectors in the `kraken` profile, and text that is no JSON object.
async fn silent(context: Context) -> Result<()> {
    needs_demo_grants(&context)?;
    let alone = context.alone().await?;
    for vector in invalid_vectors()? {
        judge(&alone, "kraken", &vector).await.with_context(|| format!("vector {}", vector["name"]))?;
    }
    let mut client = alone.alice().await?;
    for text in [
        "not JSON",
        "[1,2]",
        "7",
        r#"{"topic":"x"}"#,
        r#"{"type":"subscribe"}"#,
        r#"{"type":"publish","topic":5,"data":1}"#,
    ] {
        client.send_text(text).await?;
        client.quiet().await.with_context(|| format!("after the text {text}"))?;
    }
    Ok(())
}

/// A value of `levels` arrays, one in the other.
fn nested(levels: usize) -> Value {
    (1..levels).fold(Value::Array(vec![]), |inner, _| Value::Array(vec![inner]))
}

/// C-016, FC-19: 128 levels below `data` pass, one more does not; nor do a million, in any place, as MessagePack or JSON.
async fn nesting(context: Context) -> Result<()> {
    let topic = context.topic("nesting");
    let mut bob = context.bob().await?;
    bob.subscribe(&topic).await?;
    let mut alice = context.alice().await?;
    alice.publish(&topic, nested(128)).await.context("128 levels")?;
    bob.one_message(frame! {"data" => nested(128)}).await.context("128 levels")?;

    let mut deep = Vec::new();
    for levels in [129, 1_000] {
        deep.push(encode(&frame! {"type" => "publish", "topic" => topic.as_str(), "data" => nested(levels)}));
    }
    // A frame whose last field is cut off before its value, and then opened a million times: arrays, then maps.
    let head = |frame: Value| {
        let mut bytes = encode(&frame);
        bytes.pop();
        bytes
    };
    for head in [
        head(frame! {"type" => "publish", "topic" => topic.as_str(), "data" => Value::Nil}),
        head(frame! {"type" => "getPresence", "unknown" => Value::Nil}),
        head(frame! {"type" => "subscribe", "topic" => topic.as_str(), "filters" => Value::Nil}),
        head(frame! {"token" => Value::Nil}),
    ] {
        for opening in [[0x91, 0x91], [0x81, 0xa0]] {
            let mut bytes = head.clone();
            bytes.extend(opening.iter().cycle().take(1_000_000));
            bytes.push(0xc0);
            deep.push(bytes);
        }
    }
    for bytes in deep {
        let size = bytes.len();
        alice.send_bytes(bytes).await?;
        refused(&context, &mut alice).await.with_context(|| format!("a deep frame of {size} bytes"))?;
    }
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let levels = 900_000 / (open.len() + close.len());
        let json = format!(
            r#"{{"type":"publish","topic":"{topic}","data":{}1{}}}"#,
            open.repeat(levels),
            close.repeat(levels)
        );
        alice.send_text(&json).await?;
        refused(&context, &mut alice).await.context("deep JSON")?;
    }
    let mut before = context.open().await?;
    before.send_bytes([0x91].repeat(1_000_000)).await?;
    let replies = before.ask(frame! {"type" => "getPresence"}).await?;
    holds(&replies, &frame! {"type" => "error"})?;
    bob.quiet().await
}

/// A malformed frame was answered as the profile wants.
async fn refused(context: &Context, client: &mut Client) -> Result<()> {
    if context.extended() {
        client.expect(frame! {"type" => "error", "code" => 40000, "error" => "invalid_message"}).await?;
    }
    client.quiet().await
}

/// Numbers that look random and are the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap_or_default() % bound.max(1)
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next().to_le_bytes()[7]).collect()
    }
}

/// C-127: the invalid vectors, 3,000 random or mutated messages, bytes that are no WebSocket, and bytes that are no HTTP.
/// A bystander who was connected before keeps its subscription and hears of a message at the end.
async fn survival(context: Context) -> Result<()> {
    let alone = context.alone().await?;
    let topic = alone.topic("survival");
    let mut bystander = alone.bob().await?;
    bystander.subscribe(&topic).await?;

    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for vector in vectors::client_frames()? {
        seeds.push(vectors::bytes(&vector)?);
    }
    for vector in invalid_vectors()? {
        let mut client = in_state(&alone, &vector).await?;
        client.send_bytes(vectors::bytes(&vector)?).await?;
        client
            .ask(frame! {"type" => "getPresence"})
            .await
            .with_context(|| format!("vector {}", vector["name"]))?;
    }
    let mut noise = Noise(0x006e_6f6c_6167_2d31);
    for round in 0..30 {
        let mut client = if round % 3 == 0 { alone.open().await? } else { alone.alice().await? };
        for _ in 0..100 {
            let message = if noise.below(4) == 0 {
                let length = noise.below(64);
                noise.bytes(length)
            } else {
                mutated(&mut noise, &seeds)
            };
            // Authenticating five times in vain closes the connection (C-026); nothing else may.
            if client.send_bytes(message).await.is_err() {
                break;
            }
        }
        let _ = client.send_message(Message::Ping(b"the end".to_vec().into())).await;
        loop {
            match client.next().await? {
                Incoming::Frame(_) | Incoming::Heartbeat => {}
                Incoming::Pong(_) => break,
                Incoming::Closed { code: 1008, .. } if context.extended() => break,
                ended => bail!("round {round} of random messages ended with {ended:?}"),
            }
        }
    }
    garbage_below_the_protocol(&alone, &mut noise).await?;

    bystander.settle().await.context("the bystander")?;
    let mut alice = alone.alice().await?;
    alice.publish(&topic, "still here").await?;
    bystander.one_message(frame! {"data" => "still here"}).await?;
    Ok(())
}

/// A vector with a few bytes changed, taken out or put in.
fn mutated(noise: &mut Noise, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[noise.below(seeds.len())].clone();
    for _ in 0..=noise.below(3) {
        let at = noise.below(bytes.len());
        let byte = noise.bytes(1)[0];
        match noise.below(4) {
            0 => bytes.insert(at, byte),
            1 if bytes.len() > 1 => drop(bytes.remove(at)),
            2 => bytes.truncate(at),
            _ if at < bytes.len() => bytes[at] = byte,
            _ => {}
        }
    }
    bytes
}

/// Bytes that break the WebSocket framing, or that are no HTTP at all; and the codes of those that have one (12.4).
async fn garbage_below_the_protocol(alone: &Alone, noise: &mut Noise) -> Result<()> {
    let raw: [(&str, Vec<u8>, &[u16]); 7] = [
        ("an unmasked frame", vec![0x82, 0x01, 0x07], &[1002]),
        ("a reserved opcode", vec![0x83, 0x80, 0, 0, 0, 0], &[1002]),
        ("reserved bits", vec![0xf2, 0x80, 0, 0, 0, 0], &[1002]),
        ("a continuation of nothing", vec![0x80, 0x80, 0, 0, 0, 0], &[1002]),
        ("a ping of 126 bytes", [vec![0x89, 0xfe, 0, 126, 0, 0, 0, 0], vec![7; 126]].concat(), &[1002]),
        ("text that is not UTF-8", vec![0x81, 0x82, 0, 0, 0, 0, 0xc3, 0x28], &[1007]),
        ("a length of 2^63", vec![0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[1002, 1009]),
    ];
    for (what, bytes, codes) in raw {
        let stream = alone.address.dial().await?;
        let upgraded = http::upgrade(stream, &alone.address, &alone.address.path, "").await?;
        upgraded.accepted()?;
        let mut stream = upgraded.stream;
        stream.write_all(&bytes).await?;
        let mut answer = Vec::new();
        // The broker may reset the connection behind its close frame.
        let _ = patiently(what, stream.read_to_end(&mut answer)).await?;
        let [0x88, _, high, low, ..] = answer[..] else {
            bail!("{what} was answered with {answer:02x?}, and no close frame");
        };
        let code = u16::from_be_bytes([high, low]);
        ensure!(codes.contains(&code), "{what} closed with {code}, not {codes:?}");
    }
    for length in [1, 100, 10_000] {
        let mut stream = alone.address.dial().await?;
        let _ = stream.write_all(&noise.bytes(length)).await;
        let _ = stream.write_all(b"\r\n\r\n").await;
    }
    Ok(())
}
