//! A client that hides nothing: it sends what a case tells it to, and hands over every message as it came.
//!
//! Two rules keep the cases free of sleeps. A reply comes in request order (wire protocol 3), so "nothing arrived" is
//! shown by a [marker](Client::settle) that did. And a `published` means that the message was handed to fan-out (15.1),
//! so a marker sent after it by a subscriber comes back behind the message.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures_util::{SinkExt, StreamExt};
use rmpv::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Error, Message, protocol::frame::Frame};

use crate::http;
use crate::observed::Observed;
use crate::suite::NotRun;
use crate::wire::{brief, encode, frame, get, holds, kind, with};

/// How long a read waits before the case fails. Only failing cases wait so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Makes markers and message references unique in the run.
static COUNTER: AtomicU64 = AtomicU64::new(1);

/// A number that no other caller in this run gets.
pub(crate) fn unique() -> u64 {
    COUNTER.fetch_add(1, Ordering::Relaxed)
}

/// Frames, or parts of them, that print themselves legibly.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Values(pub(crate) Vec<Value>);

impl Deref for Values {
    type Target = Vec<Value>;

    fn deref(&self) -> &Vec<Value> {
        &self.0
    }
}

impl DerefMut for Values {
    fn deref_mut(&mut self) -> &mut Vec<Value> {
        &mut self.0
    }
}

impl IntoIterator for Values {
    type Item = Value;
    type IntoIter = std::vec::IntoIter<Value>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Values {
    type Item = &'a Value;
    type IntoIter = std::slice::Iter<'a, Value>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<const N: usize> PartialEq<[Value; N]> for Values {
    fn eq(&self, other: &[Value; N]) -> bool {
        self.0 == other
    }
}

impl std::fmt::Debug for Values {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown: Vec<String> = self.0.iter().map(brief).collect();
        write!(out, "[{}]", shown.join(", "))
    }
}

/// What came from the broker.
#[derive(Clone)]
pub(crate) enum Incoming {
    /// A MessagePack frame.
    Frame(Value),
    /// An empty binary message.
    Heartbeat,
    /// A text message, which a broker never sends, and which no case looks at for more than this.
    Text,
    /// The payload of a pong.
    Pong(Vec<u8>),
    /// The connection ended with a close frame.
    Closed { code: u16, reason: String },
    /// The connection ended without one.
    Lost(String),
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Frame(frame) => out.write_str(&brief(frame)),
            Self::Heartbeat => out.write_str("a heartbeat"),
            Self::Text => out.write_str("a text message"),
            Self::Pong(payload) => write!(out, "a pong of {} bytes", payload.len()),
            Self::Closed { code, reason } => write!(out, "a close frame with {code} `{reason}`"),
            Self::Lost(why) => write!(out, "a lost connection ({why})"),
        }
    }
}

/// One WebSocket connection.
pub(crate) struct Client {
    socket: WebSocketStream<TcpStream>,
    /// Read already, while waiting for something else.
    early: VecDeque<Incoming>,
    /// Several frames may come in one message (features 5).
    batched: bool,
    observed: Arc<Observed>,
}

/// Waits for `future` as long as a case may wait for an answer.
pub(crate) async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    timeout(PATIENCE, future).await.map_err(|_| anyhow!("no {what} within {} s", PATIENCE.as_secs()))
}

impl Client {
    /// Opens a WebSocket connection, without authentication.
    pub(crate) async fn open(at: &http::Address, observed: Arc<Observed>) -> Result<Self> {
        let stream = patiently("TCP connection", at.dial()).await??;
        Self::open_on(stream, at, observed).await
    }

    /// The same, on a TCP stream that the case has prepared.
    pub(crate) async fn open_on(
        stream: TcpStream,
        at: &http::Address,
        observed: Arc<Observed>,
    ) -> Result<Self> {
        let upgraded = patiently("answer to the upgrade", http::upgrade(stream, at, &at.path, "")).await??;
        upgraded.accepted()?;
        Ok(Self::from_upgraded(upgraded, observed).await)
    }

    /// Takes over a stream whose upgrade the case has made itself.
    pub(crate) async fn from_upgraded(upgraded: http::Upgraded, observed: Arc<Observed>) -> Self {
        // No limit: whatever the broker sends is to be seen, so that C-017 can complain about it.
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let socket =
            WebSocketStream::from_partially_read(upgraded.stream, upgraded.rest, Role::Client, Some(config))
                .await;
        Self { socket, early: VecDeque::new(), batched: false, observed }
    }

    /// Sends `auth` for protocol version 2 and gives the reply.
    pub(crate) async fn auth(&mut self, token: &str) -> Result<Value> {
        self.ask(frame! {"type" => "auth", "token" => token, "protocolVersion" => 2}).await
    }

    /// Authenticates for protocol version 2 and insists on success.
    pub(crate) async fn authenticated(mut self, token: &str) -> Result<Self> {
        let reply = self.auth(token).await?;
        holds(&reply, &frame! {"type" => "auth", "success" => true})?;
        Ok(self)
    }

    /// Authenticates with these features (features 1), and gives up the case where the broker does not grant them all.
    pub(crate) async fn negotiated(mut self, token: &str, features: &[&str]) -> Result<Self> {
        let request = frame! {"type" => "auth", "token" => token, "protocolVersion" => 2,
        "features" => names(features)};
        let reply = self.ask(request).await?;
        holds(&reply, &frame! {"type" => "auth", "success" => true})?;
        let granted = granted(&reply)?;
        if let Some(missing) = features.iter().find(|name| !granted.contains(*name)) {
            bail!(NotRun(format!("the broker does not grant `{missing}`")));
        }
        self.batched = granted.contains(&"batch");
        Ok(self)
    }

    /// Sends a frame.
    pub(crate) async fn send(&mut self, frame: Value) -> Result<()> {
        self.send_bytes(encode(&frame)).await
    }

    /// Sends a binary message.
    pub(crate) async fn send_bytes(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.send_message(Message::Binary(bytes.into())).await
    }

    /// Sends a text message.
    pub(crate) async fn send_text(&mut self, text: &str) -> Result<()> {
        self.send_message(Message::text(text)).await
    }

    /// Sends many frames in one write.
    pub(crate) async fn send_all(&mut self, frames: impl IntoIterator<Item = Value>) -> Result<()> {
        for frame in frames {
            let message = Message::Binary(encode(&frame).into());
            patiently("room to send", self.socket.feed(message)).await??;
        }
        Ok(patiently("room to send", self.socket.flush()).await??)
    }

    /// Sends one binary message in the given fragments.
    pub(crate) async fn send_fragments(&mut self, parts: &[&[u8]]) -> Result<()> {
        for (at, part) in parts.iter().enumerate() {
            let opcode = if at == 0 { Data::Binary } else { Data::Continue };
            let frame =
                Frame::message(Bytes::copy_from_slice(part), OpCode::Data(opcode), at + 1 == parts.len());
            self.send_message(Message::Frame(frame)).await?;
        }
        Ok(())
    }

    /// Sends a heartbeat: an empty binary message.
    pub(crate) async fn heartbeat(&mut self) -> Result<()> {
        self.send_bytes(Vec::new()).await
    }

    /// Sends any WebSocket message.
    pub(crate) async fn send_message(&mut self, message: Message) -> Result<()> {
        patiently("room to send", self.socket.send(message)).await?.context("sending")
    }

    /// The next thing that comes, at the latest after [`PATIENCE`].
    pub(crate) async fn next(&mut self) -> Result<Incoming> {
        if let Some(incoming) = self.early.pop_front() {
            return Ok(incoming);
        }
        self.read().await
    }

    async fn read(&mut self) -> Result<Incoming> {
        loop {
            let message = match patiently("message from the broker", self.socket.next()).await? {
                Some(Ok(message)) => message,
                Some(Err(Error::ConnectionClosed)) | None => {
                    return Ok(Incoming::Lost("end of stream".to_owned()));
                }
                Some(Err(error)) => return Ok(Incoming::Lost(error.to_string())),
            };
            return Ok(match message {
                Message::Binary(bytes) if bytes.is_empty() => Incoming::Heartbeat,
                Message::Binary(bytes) => {
                    // Under `batch` a message may hold several; whoever did not ask for it complains in `look_at`.
                    let batched = self.batched.then(|| crate::wire::split(&bytes)).transpose()?;
                    for frame in batched.unwrap_or_else(|| vec![&bytes]) {
                        self.observed.look_at(frame);
                        self.early.push_back(Incoming::Frame(crate::wire::decode(frame)?));
                    }
                    match self.early.pop_front() {
                        Some(incoming) => incoming,
                        None => continue,
                    }
                }
                Message::Text(_) => Incoming::Text,
                Message::Pong(payload) => Incoming::Pong(payload.to_vec()),
                Message::Close(Some(close)) => {
                    let (code, reason) = (close.code.into(), close.reason.to_string());
                    // Lets the library answer the close frame.
                    let _ = timeout(Duration::from_millis(200), self.socket.flush()).await;
                    Incoming::Closed { code, reason }
                }
                Message::Close(None) => Incoming::Closed { code: 1005, reason: String::new() },
                Message::Ping(_) | Message::Frame(_) => continue,
            });
        }
    }

    /// The next frame; anything else is an error.
    pub(crate) async fn frame(&mut self) -> Result<Value> {
        match self.next().await? {
            Incoming::Frame(frame) => Ok(frame),
            other => bail!("expected a frame, got {other:?}"),
        }
    }

    /// The next frame, which must have these fields.
    pub(crate) async fn expect(&mut self, expected: Value) -> Result<Value> {
        let frame = self.frame().await.with_context(|| format!("waiting for {}", brief(&expected)))?;
        holds(&frame, &expected)?;
        Ok(frame)
    }

    /// Sends a frame and gives the next one.
    pub(crate) async fn ask(&mut self, request: Value) -> Result<Value> {
        let asked = brief(&request);
        self.send(request).await?;
        self.frame().await.with_context(|| format!("after {asked}"))
    }

    /// Sends a frame and gives the next one, which must have these fields.
    pub(crate) async fn ask_for(&mut self, request: Value, expected: Value) -> Result<Value> {
        let asked = brief(&request);
        self.send(request).await?;
        self.expect(expected).await.with_context(|| format!("after {asked}"))
    }

    /// Everything that comes before the answer to a request sent now: a `getPresence` of a room that nobody knows,
    /// which answers an empty list and changes nothing.
    pub(crate) async fn settle_all(&mut self) -> Result<Vec<Incoming>> {
        let room = format!("marker-{}", unique());
        self.send(frame! {"type" => "getPresence", "roomId" => room.as_str()}).await?;
        let mut before = Vec::new();
        loop {
            match self.next().await.context("waiting for the marker")? {
                Incoming::Frame(frame)
                    if kind(&frame) == "presenceList" && crate::wire::text(&frame, "roomId") == room =>
                {
                    return Ok(before);
                }
                ended @ (Incoming::Closed { .. } | Incoming::Lost(_)) => {
                    bail!("the connection ended instead of answering: {ended:?}, after {before:?}")
                }
                other => before.push(other),
            }
        }
    }

    /// The frames that come before the answer to a request sent now; anything but frames is an error.
    pub(crate) async fn settle(&mut self) -> Result<Values> {
        let incoming = self.settle_all().await?;
        incoming
            .into_iter()
            .map(|incoming| match incoming {
                Incoming::Frame(frame) => Ok(frame),
                other => bail!("expected frames only, got {other:?}"),
            })
            .collect::<Result<_>>()
            .map(Values)
    }

    /// Insists that nothing comes before the answer to a request sent now.
    pub(crate) async fn quiet(&mut self) -> Result<()> {
        let frames = self.settle().await?;
        ensure!(frames.is_empty(), "expected nothing, got {frames:?}");
        Ok(())
    }

    /// The `message` frames that came up to now; any other frame is an error.
    pub(crate) async fn messages(&mut self) -> Result<Values> {
        let frames = self.settle().await?;
        if let Some(other) = frames.iter().find(|frame| kind(frame) != "message") {
            bail!("expected messages only, got {}", brief(other));
        }
        Ok(frames)
    }

    /// The payloads of the messages that came up to now.
    pub(crate) async fn payloads(&mut self) -> Result<Values> {
        let messages = self.messages().await?;
        Ok(Values(
            messages.iter().map(|message| get(message, "data").cloned().unwrap_or(Value::Nil)).collect(),
        ))
    }

    /// The one message that came up to now, which must have these fields.
    pub(crate) async fn one_message(&mut self, expected: Value) -> Result<Value> {
        let mut messages = self.messages().await?;
        ensure!(messages.len() == 1, "expected one message ({}), got {messages:?}", brief(&expected));
        holds(&messages[0], &expected)?;
        Ok(messages.remove(0))
    }

    /// Subscribes to a topic and insists on success.
    pub(crate) async fn subscribe(&mut self, topic: &str) -> Result<()> {
        self.subscribe_as(frame! {"topic" => topic}).await
    }

    /// Subscribes with these fields and insists on success.
    pub(crate) async fn subscribe_as(&mut self, fields: Value) -> Result<()> {
        let topic = get(&fields, "topic").cloned().unwrap_or(Value::Nil);
        self.ask_for(typed("subscribe", fields), frame! {"type" => "subscribed", "topic" => topic}).await?;
        Ok(())
    }

    /// Publishes and waits for `published`.
    pub(crate) async fn publish(&mut self, topic: &str, data: impl Into<Value>) -> Result<()> {
        self.publish_as(frame! {"topic" => topic, "data" => data.into()}).await
    }

    /// Publishes with these fields and waits for `published`. What comes before it is kept for later reads.
    pub(crate) async fn publish_as(&mut self, fields: Value) -> Result<()> {
        let reply = self.try_publish(fields).await?;
        holds(&reply, &frame! {"type" => "published"})
    }

    /// Publishes with these fields and a `msgRef`, and gives the reply: `published` or `error`. What comes before it
    /// is kept for later reads.
    pub(crate) async fn try_publish(&mut self, fields: Value) -> Result<Value> {
        let reference = format!("r-{}", unique());
        let fields =
            if get(&fields, "msgRef").is_none() { with(fields, "msgRef", reference) } else { fields };
        let reference = get(&fields, "msgRef").cloned().unwrap_or(Value::Nil);
        let asked = brief(&fields);
        self.send(typed("publish", fields)).await?;
        let mut held = VecDeque::new();
        let reply = loop {
            match self.next().await.with_context(|| format!("waiting for the reply to publish {asked}"))? {
                Incoming::Frame(frame)
                    if matches!(kind(&frame), "published" | "error")
                        && get(&frame, "msgRef").is_some_and(|found| *found == reference) =>
                {
                    break frame;
                }
                ended @ (Incoming::Closed { .. } | Incoming::Lost(_)) => {
                    bail!(
                        "the connection ended: {ended:?}, after publish {asked}, before which came {held:?}"
                    )
                }
                other => held.push_back(other),
            }
        };
        held.append(&mut self.early);
        self.early = held;
        Ok(reply)
    }

    /// Reads up to the close frame, and gives the frames before it, its code and its reason.
    pub(crate) async fn closed(&mut self) -> Result<(Values, u16, String)> {
        let mut frames = Values::default();
        loop {
            match self.next().await.context("waiting for a close frame")? {
                Incoming::Frame(frame) => frames.push(frame),
                Incoming::Closed { code, reason } => return Ok((frames, code, reason)),
                Incoming::Lost(why) => {
                    bail!("the connection ended without a close frame ({why}), after {frames:?}")
                }
                Incoming::Heartbeat | Incoming::Text | Incoming::Pong(_) => {}
            }
        }
    }

    /// Waits for an event of the kind, which other connections may delay, and keeps nothing of what comes before.
    pub(crate) async fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        loop {
            match self.next().await.with_context(|| format!("waiting for {what}"))? {
                Incoming::Frame(frame) if wanted(&frame) => return Ok(frame),
                ended @ (Incoming::Closed { .. } | Incoming::Lost(_)) => bail!("{ended:?} instead of {what}"),
                _ => {}
            }
        }
    }

    /// Closes as an application does, and waits for the answer.
    pub(crate) async fn close(mut self) -> Result<()> {
        patiently("room to send", self.socket.close(None)).await??;
        while let Ok(Some(Ok(_))) = timeout(PATIENCE, self.socket.next()).await {}
        Ok(())
    }

    /// Drops the TCP connection without a word.
    pub(crate) fn vanish(self) {
        drop(self);
    }
}

/// The features that a reply to `auth` grants; absent means none (features 1).
pub(crate) fn granted(reply: &Value) -> Result<Vec<&str>> {
    let Some(features) = get(reply, "features") else { return Ok(Vec::new()) };
    let names = features.as_array().and_then(|names| names.iter().map(Value::as_str).collect());
    names.with_context(|| format!("`features` is no list of names in {}", brief(reply)))
}

/// The names as a frame holds them.
pub(crate) fn names(names: &[&str]) -> Value {
    Value::Array(names.iter().map(|name| Value::from(*name)).collect())
}

/// The fields, with the type in front.
pub(crate) fn typed(kind: &str, fields: Value) -> Value {
    let mut all = vec![(Value::from("type"), Value::from(kind))];
    if let Value::Map(fields) = fields {
        all.extend(fields);
    }
    Value::Map(all)
}
