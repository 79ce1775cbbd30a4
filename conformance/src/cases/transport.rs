//! The upgrade, message kinds and sizes (wire protocol 3).

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;
use tokio_tungstenite::tungstenite::Message;

use crate::client::{Client, Incoming, patiently, typed};
use crate::http;
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{MAX_MESSAGE, brief, encode, frame, get, holds, kind, lacks, list, with};

pub(super) fn cases() -> Vec<Case> {
    use Needs::Nothing;
    vec![
        case!(
            "C-001",
            Both,
            Nothing,
            "accepts upgrades at /ws without subprotocol, other paths get 404",
            upgrade
        ),
        case!("C-002", Both, Nothing, "never negotiates compression", compression),
        case!("C-003", Both, Nothing, "answers binary MessagePack also to JSON text", json_requests),
        case!("C-004", Both, Nothing, "accepts JSON text and MessagePack on one connection", mixed),
        case!(
            "C-005",
            Both,
            Nothing,
            "closes with 1009 above 1,048,576 bytes, accepts exactly that",
            message_size
        ),
        case!("C-009", Both, Nothing, "ignores unknown fields in every client frame", unknown_fields),
        case!("C-010", Both, Nothing, "ignores a frame of unknown type and stays open", unknown_type),
    ]
}

/// The status and headers of an upgrade attempt.
async fn try_upgrade(context: &Context, path: &str, more: &str) -> Result<http::Upgraded> {
    let stream = context.address.dial().await?;
    patiently("answer to the upgrade", http::upgrade(stream, &context.address, path, more)).await?
}

/// C-001: the path is `/ws` exactly; subprotocols, origins, query and headers play no part.
async fn upgrade(context: Context) -> Result<()> {
    let path = context.address.path.clone();
    let offers = "Sec-WebSocket-Protocol: mqtt, nolag\r\nOrigin: https://elsewhere.example\r\nAuthorization: Bearer x\r\n";
    for (path, more) in [(path.clone(), ""), (path.clone(), offers), (format!("{path}?token=x&v=2"), "")] {
        let upgraded = try_upgrade(&context, &path, more).await?;
        upgraded.accepted().with_context(|| format!("upgrade at {path} with `{more}`"))?;
        let protocol = upgraded.head.header("sec-websocket-protocol");
        ensure!(protocol.is_none(), "the subprotocol {protocol:?} was negotiated");
    }
    for wrong in
        ["/".to_owned(), "/nowhere".to_owned(), format!("{path}/"), format!("{path}x"), "/WS".to_owned()]
    {
        let status = try_upgrade(&context, &wrong, "").await?.head.status;
        ensure!(status == 404, "an upgrade at {wrong} was answered with {status}, not 404");
    }
    let (head, _) = patiently("answer", http::request(&context.address, "GET", &path)).await??;
    ensure!(
        (400..500).contains(&head.status),
        "GET {path} without an upgrade was answered with {}",
        head.status
    );
    let (head, _) = patiently("answer", http::request(&context.address, "GET", "/nowhere")).await??;
    ensure!(head.status == 404, "GET /nowhere was answered with {}, not 404", head.status);
    Ok(())
}

/// C-002: an offer of `permessage-deflate` is not taken up, and what follows is plain.
async fn compression(context: Context) -> Result<()> {
    let offers =
        "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits, permessage-deflate\r\n";
    let path = context.address.path.clone();
    let upgraded = try_upgrade(&context, &path, offers).await?;
    upgraded.accepted()?;
    let extensions = upgraded.head.header("sec-websocket-extensions");
    ensure!(extensions.is_none(), "the extensions {extensions:?} were negotiated");
    // The client fails on a message with a reserved bit set, as a compressed one has.
    let client = Client::from_upgraded(upgraded, context.observed.clone()).await;
    client.authenticated(&context.token).await?.quiet().await
}

/// C-003: every kind of request, as JSON text.
async fn json_requests(context: Context) -> Result<()> {
    let topic = context.topic("json");
    let mut client = context.open().await?;
    client
        .send_text(&format!(r#"{{"type":"auth","token":"{}","protocolVersion":2}}"#, context.token))
        .await?;
    client.expect(frame! {"type" => "auth", "success" => true, "protocolVersion" => 2}).await?;
    client.send_text(&format!(r#"{{"type":"subscribe","topic":"{topic}"}}"#)).await?;
    client.expect(frame! {"type" => "subscribed", "topic" => topic.as_str(), "loadBalance" => false}).await?;
    client
        .send_text(&format!(r#"{{"topic":"{topic}","data":{{"n":7,"f":1.5,"s":"é","z":null}},"msgRef":"j-1","type":"publish"}}"#))
        .await?;
    client.expect(frame! {"type" => "published", "topic" => topic.as_str(), "msgRef" => "j-1"}).await?;
    let message = client.expect(frame! {"type" => "message", "topic" => topic.as_str()}).await?;
    let data = get(&message, "data").cloned().unwrap_or(Value::Nil);
    holds(&data, &frame! {"n" => 7, "f" => 1.5, "s" => "é", "z" => Value::Nil})?;
    client
        .send_text(&format!(r#"{{"type":"setFilters","topic":"{topic}","filters":["a",["b","c"]]}}"#))
        .await?;
    client.expect(frame! {"type" => "filtersUpdated", "filters" => list!["a", list!["b", "c"]]}).await?;
    client.send_text(r#"{"type":"getPresence","roomId":"no-such-room"}"#).await?;
    client.expect(frame! {"type" => "presenceList", "roomId" => "no-such-room", "data" => list![]}).await?;
    client.send_text(&format!(r#"{{"type":"unsubscribe","topic":"{topic}"}}"#)).await?;
    client.expect(frame! {"type" => "unsubscribed", "topic" => topic.as_str()}).await?;
    client.quiet().await
}

/// C-004: text and binary in turn, and an empty text between them.
async fn mixed(context: Context) -> Result<()> {
    let topic = context.topic("mixed");
    let mut client = context.alice().await?;
    client.send_text(&format!(r#"{{"type":"subscribe","topic":"{topic}"}}"#)).await?;
    client.expect(frame! {"type" => "subscribed", "topic" => topic.as_str()}).await?;
    client.publish(&topic, 1).await?;
    client.send_text(&format!(r#"{{"type":"publish","topic":"{topic}","data":2}}"#)).await?;
    client.publish(&topic, 3).await?;
    let payloads = client.payloads().await?;
    ensure!(payloads == [1, 2, 3].map(Value::from), "published 1, 2, 3 and received {payloads:?}");
    if context.extended() {
        // kraken ends the connection at an empty text; 4.7 says that ours ignores it.
        client.send_text("").await?;
    }
    client
        .ask_for(
            frame! {"type" => "unsubscribe", "topic" => topic.as_str()},
            frame! {"type" => "unsubscribed"},
        )
        .await?;
    client.quiet().await
}

/// A `getPresence` with padding, of exactly `size` bytes.
fn padded_to(size: usize) -> Result<Vec<u8>> {
    let request =
        |pad: usize| encode(&frame! {"type" => "getPresence", "roomId" => "pad", "pad" => vec![0_u8; pad]});
    // A bin of this length has a header of five bytes, like any other near it.
    let bytes = request(size - (request(70_000).len() - 70_000));
    ensure!(bytes.len() == size, "the padding is miscounted");
    Ok(bytes)
}

/// C-005: the limit is on the message, whether in one frame or in several, binary or text.
async fn message_size(context: Context) -> Result<()> {
    let mut client = context.alice().await?;
    let exact = padded_to(MAX_MESSAGE)?;
    let answer = frame! {"type" => "presenceList", "roomId" => "pad"};
    client.send_bytes(exact.clone()).await?;
    client.expect(answer.clone()).await.context("after a message of exactly the limit")?;
    client.send_fragments(&[&exact[..10], &exact[10..600_000], &exact[600_000..]]).await?;
    client.expect(answer).await.context("after fragments of exactly the limit")?;

    let over = padded_to(MAX_MESSAGE + 1)?;
    let text = format!(r#"{{"type":"getPresence","roomId":"{}"}}"#, "x".repeat(MAX_MESSAGE));
    for way in ["one frame", "fragments", "text"] {
        let mut client = context.alice().await?;
        // The broker may close while the rest is still being written.
        let _ = match way {
            "one frame" => client.send_bytes(over.clone()).await,
            "fragments" => client.send_fragments(&[&over[..MAX_MESSAGE / 2], &over[MAX_MESSAGE / 2..]]).await,
            _ => client.send_text(&text).await,
        };
        let (frames, code, _) =
            client.closed().await.with_context(|| format!("one byte too many in {way}"))?;
        ensure!(code == 1009, "one byte too many in {way} closed with {code}, not 1009");
        ensure!(frames.is_empty(), "one byte too many in {way} was answered with {frames:?}");
    }
    // A fresh connection before authentication has the same limit.
    let mut client = context.open().await?;
    let _ = client.send_message(Message::Binary(over.into())).await;
    let (_, code, _) = client.closed().await?;
    ensure!(code == 1009, "one byte too many before authentication closed with {code}, not 1009");
    Ok(())
}

/// C-009: the same frames with fields of a later version, among them nested ones and ones set to nil.
async fn unknown_fields(context: Context) -> Result<()> {
    let alone = context.alone().await?;
    let topic = alone.topic("unknown-fields");
    let topic = topic.as_str();
    let more = |fields: Value| {
        let fields = with(fields, "future", frame! {"a" => list![1, Value::Nil, frame! {"b" => -5}]});
        with(with(fields, "x", Value::Nil), "ttl", 60)
    };
    let mut client = alone.open().await?;
    let request = more(frame! {"type" => "auth", "token" => alone.token.as_str(), "protocolVersion" => 2});
    client.ask_for(request, frame! {"type" => "auth", "success" => true, "protocolVersion" => 2}).await?;

    let steps = [
        ("subscribe", frame! {"topic" => topic}, Some("subscribed")),
        ("setFilters", frame! {"topic" => topic, "filters" => list!["a"]}, Some("filtersUpdated")),
        ("publish", frame! {"topic" => topic, "data" => 1, "msgRef" => "u-1"}, Some("published")),
        ("unsubscribe", frame! {"topic" => topic}, Some("unsubscribed")),
        ("getPresence", frame! {"roomId" => alone.room.as_str()}, Some("presenceList")),
        ("lobbySubscribe", frame! {"lobbyId" => alone.lobby.as_str()}, Some("lobbySubscribed")),
        ("getLobbyPresence", frame! {"lobbyId" => alone.lobby.as_str()}, Some("lobbyPresenceList")),
        ("lobbyUnsubscribe", frame! {"lobbyId" => alone.lobby.as_str()}, Some("lobbyUnsubscribed")),
        ("ack", frame! {"msgId" => "0f8fad5b-d9cb-469f-a165-70867728950e"}, None),
        ("batchAck", frame! {"msgIds" => list![]}, None),
    ];
    for (request, fields, reply) in steps {
        client.send(more(typed(request, fields))).await?;
        match reply {
            Some(reply) => drop(client.expect(frame! {"type" => reply}).await.with_context(|| request)?),
            None => client.quiet().await.with_context(|| request)?,
        }
    }
    client
        .send(more(
            frame! {"type" => "presence", "roomId" => alone.room.as_str(), "data" => frame! {"s" => 1}},
        ))
        .await?;
    client.expect(frame! {"type" => "presence", "event" => "join"}).await?;
    client.expect(frame! {"type" => "presence", "event" => "update"}).await?;
    client.send(more(frame! {"type" => "reauth", "token" => "no such token"})).await?;
    client.expect(frame! {"type" => "reauth", "success" => false}).await?;
    client.quiet().await
}

/// C-010: before the handshake such a frame is answered like any other (chapter 5), after it with nothing.
async fn unknown_type(context: Context) -> Result<()> {
    let mut client = context.alice().await?;
    for request in [
        frame! {"type" => "futureFrame", "x" => 1},
        frame! {"type" => "presence_set", "data" => 1},
        frame! {"type" => "subscribed", "topic" => "x", "msgRef" => "u-2"},
        frame! {"type" => "Subscribe", "topic" => "x"},
        frame! {"type" => "message", "topic" => "x", "data" => 1},
    ] {
        let sent = brief(&request);
        client.send(request).await?;
        client.quiet().await.with_context(|| format!("after {sent}"))?;
    }
    client.send_text(r#"{"type":"futureFrame"}"#).await?;
    client.quiet().await?;
    client.send_message(Message::Ping(b"are you there".to_vec().into())).await?;
    match client.next().await? {
        Incoming::Pong(payload) => ensure!(payload == b"are you there", "a pong with another payload"),
        other => anyhow::bail!("expected a pong, got {other:?}"),
    }
    let reply = client.ask(frame! {"type" => "getPresence"}).await?;
    ensure!(kind(&reply) == "presenceList", "expected a presenceList, got {}", brief(&reply));
    lacks(&reply, &["roomId"])
}
