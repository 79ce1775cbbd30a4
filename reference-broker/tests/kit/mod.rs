//! A broker in this process, and clients on in-memory sockets: on a paused clock everything takes no time.

// Each test file uses its own part of the kit, and is a crate of its own.
#![allow(dead_code, unreachable_pub)]

#[macro_use]
mod macros {
    /// A map with these entries.
    #[macro_export]
    macro_rules! map {
        ($($key:literal : $value:expr),* $(,)?) => {
            rmpv::Value::Map(vec![$((rmpv::Value::from($key), rmpv::Value::from($value))),*])
        };
    }
}
pub mod process;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use nolag_broker::auth::{Auth, StaticAuth};
use nolag_broker::clock::Clock;
use nolag_broker::config::Settings;
use nolag_broker::{Broker, http};
use rmpv::Value;
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

/// How many bytes are under way between a client and the broker before the writer has to wait.
const WIRE_BYTES: usize = 64 * 1024;

/// Longer than anything takes that happens at all; on a paused clock it costs nothing.
const NEVER: Duration = Duration::from_secs(100_000);

/// A broker with the demo tokens and a clock that follows tokio's.
pub fn broker(settings: Settings) -> Arc<Broker> {
    let auth = StaticAuth::from_text(nolag_broker::auth::DEMO_TOKENS, settings.profile).unwrap();
    broker_with(settings, Arc::new(auth))
}

/// A broker with this backend and a clock that follows tokio's.
pub fn broker_with(settings: Settings, auth: Arc<dyn Auth>) -> Arc<Broker> {
    Broker::new(settings, auth, Clock::follow_tokio())
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Close(u16, String),
    Lost,
}

/// A client that shows what it gets and does nothing by itself.
pub struct Client {
    socket: WebSocketStream<DuplexStream>,
    /// What is left of a message of several frames.
    rest: Bytes,
}

impl Client {
    /// Connects, without `auth`.
    pub async fn connect(broker: &Arc<Broker>) -> Self {
        Self::connect_with_task(broker).await.0
    }

    /// Connects, and gives the broker's task of the connection too.
    pub async fn connect_with_task(broker: &Arc<Broker>) -> (Self, JoinHandle<()>) {
        let (ours, theirs) = tokio::io::duplex(WIRE_BYTES);
        let broker = broker.clone();
        let task = tokio::spawn(async move {
            let config = Some(http::websocket_config());
            let mut socket = WebSocketStream::from_raw_socket(theirs, Role::Server, config).await;
            nolag_broker::serve(&broker, &mut socket).await;
        });
        let socket = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
        (Self { socket, rest: Bytes::new() }, task)
    }

    /// Connects and authenticates.
    pub async fn login(broker: &Arc<Broker>, token: &str) -> Self {
        let mut client = Self::connect(broker).await;
        client.send(map! {"type": "auth", "token": token, "protocolVersion": 2}).await;
        let reply = client.next().await;
        assert_eq!(reply["success"], Value::from(true), "{reply}");
        client
    }

    /// Connects, authenticates and is granted these features.
    pub async fn login_with(broker: &Arc<Broker>, token: &str, features: &[&str]) -> Self {
        let mut client = Self::connect(broker).await;
        let names = Value::Array(features.iter().map(|name| Value::from(*name)).collect());
        client
            .send(map! {"type": "auth", "token": token, "protocolVersion": 2, "features": names.clone()})
            .await;
        let reply = client.next().await;
        assert_eq!(reply["features"], names, "{reply}");
        assert!(client.rest.is_empty(), "the grant shares no message");
        client
    }

    /// Sends several frames in one message.
    pub async fn send_together(&mut self, frames: &[Value]) {
        let mut bytes = Vec::new();
        for frame in frames {
            rmpv::encode::write_value(&mut bytes, frame).unwrap();
        }
        self.send_bytes(bytes).await;
    }

    pub async fn send(&mut self, frame: Value) {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &frame).unwrap();
        self.send_bytes(bytes).await;
    }

    pub async fn send_bytes(&mut self, bytes: Vec<u8>) {
        self.socket.send(Message::Binary(bytes.into())).await.unwrap();
    }

    pub async fn heartbeat(&mut self) {
        self.send_bytes(Vec::new()).await;
    }

    /// The next message that is not a close; its bytes are empty for a heartbeat.
    pub async fn next_bytes(&mut self) -> Result<Bytes, End> {
        loop {
            let message =
                tokio::time::timeout(NEVER, self.socket.next()).await.expect("the broker says something");
            match message {
                Some(Ok(Message::Binary(bytes))) => return Ok(bytes),
                Some(Ok(Message::Close(Some(frame)))) => {
                    return Err(End::Close(frame.code.into(), frame.reason.as_str().to_owned()));
                }
                Some(Ok(Message::Close(None)) | Err(_)) | None => return Err(End::Lost),
                Some(Ok(_)) => {}
            }
        }
    }

    /// The next frame.
    pub async fn next(&mut self) -> Value {
        if self.rest.is_empty() {
            self.rest = self.next_bytes().await.unwrap_or_else(|end| panic!("the connection ended: {end:?}"));
        }
        let mut rest = &*self.rest;
        let frame = rmpv::decode::read_value(&mut rest).expect("a frame");
        self.rest = self.rest.slice_ref(rest);
        frame
    }

    /// The frames up to the answer to a request sent now; they must be of these types.
    pub async fn settled(&mut self, kinds: &[&str]) -> Vec<Value> {
        self.send(map! {"type": "getPresence", "roomId": "settled"}).await;
        let mut frames = Vec::new();
        loop {
            let frame = self.next().await;
            if frame["roomId"] == Value::from("settled") {
                break;
            }
            frames.push(frame);
        }
        let found: Vec<&str> = frames.iter().map(|frame| frame["type"].as_str().unwrap()).collect();
        assert_eq!(found, kinds, "{frames:?}");
        frames
    }

    /// Sends a request and gives back its answer, which must come next.
    pub async fn ask(&mut self, frame: Value) -> Value {
        self.send(frame).await;
        self.next().await
    }

    pub async fn subscribe(&mut self, topic: &str) {
        let reply = self.ask(map! {"type": "subscribe", "topic": topic}).await;
        assert_eq!(reply["type"], Value::from("subscribed"), "{reply}");
    }

    /// All frames up to the end, and how it ended.
    pub async fn rest(&mut self) -> (Vec<Value>, End) {
        let mut frames = Vec::new();
        loop {
            match self.next_bytes().await {
                Ok(bytes) => frames.push(rmpv::decode::read_value(&mut &*bytes).unwrap_or(Value::Nil)),
                Err(end) => return (frames, end),
            }
        }
    }
}

/// Lets everything that is ready run; needs the clock to be paused.
pub async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// The entries of a map, in the order of their keys.
pub fn sorted(map: &Value) -> Vec<(String, Value)> {
    let mut entries: Vec<_> =
        map.as_map().unwrap().iter().map(|(key, value)| (key.to_string(), value.clone())).collect();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    entries
}
