//! A session on a stepped clock, with a transport and a broker that do exactly what a test says.

#![allow(dead_code, unreachable_pub, missing_docs)] // each test file uses its part

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use nolag_core::event::{Event, Message, Receipt, Room, State};
use nolag_core::options::{Credentials, Filter, Options, PublishOptions, Qos, Secret, SubscribeOptions};
use nolag_core::session::{Call, Dispatched, LinkId, Output, Reply, RequestId, Token, Transport};
use nolag_core::{Error, Session};
use nolag_protocol::frame::{AuthReply, ClientFrame, Data, Limits, Message as MessageFrame, ServerFrame};

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The settings that hold for field cases unless one says otherwise.
pub fn options() -> Options {
    let mut options = Options::new(Credentials::Static(Secret::new("t-1")));
    options.heartbeat_interval = ms(200);
    options.heartbeat_timeout = ms(200);
    options.backoff.base = ms(100);
    options.backoff.max = ms(1_000);
    options.ack_timeout = ms(500);
    options
}

/// The settings of a client that is left alone: no heartbeat gets in the way.
pub fn quiet() -> Options {
    Options { heartbeat_interval: Duration::ZERO, ..options() }
}

/// A broker's features.
pub const RECOVER: &[&str] = &["recover"];

pub struct Rig {
    pub session: Session,
    pub now: Duration,
    wake: Option<Duration>,
    next_request: u64,
    /// Frames that the client sent and no test has looked at.
    pub sent: VecDeque<(LinkId, Bytes)>,
    /// Everything that was ever sent, with its time.
    pub history: Vec<(Duration, Bytes)>,
    pub events: VecDeque<Event>,
    pub results: BTreeMap<RequestId, Result<Reply, Error>>,
    /// The transport that is open or being opened.
    pub link: Option<LinkId>,
    /// When each transport was asked for.
    pub opened: Vec<Duration>,
    pub closed: Vec<(u16, &'static str, bool)>,
    /// Calls of the token provider: number, reason, time.
    pub token_calls: Vec<(u64, nolag_core::session::TokenReason, Duration)>,
}

impl Rig {
    pub fn new(options: Options) -> Self {
        Self::seeded(options, 7)
    }

    pub fn seeded(options: Options, seed: u64) -> Self {
        let mut rig = Self {
            session: Session::new(options, seed),
            now: Duration::ZERO,
            wake: None,
            next_request: 0,
            sent: VecDeque::new(),
            history: Vec::new(),
            events: VecDeque::new(),
            results: BTreeMap::new(),
            link: None,
            opened: Vec::new(),
            closed: Vec::new(),
            token_calls: Vec::new(),
        };
        rig.drain();
        rig
    }

    /// A client that is connected, with what it said and was told on the way forgotten.
    pub fn connected(options: Options) -> Self {
        let mut rig = Self::new(options);
        rig.call(Call::Connect);
        rig.accept();
        rig.forget();
        rig
    }

    pub fn forget(&mut self) {
        self.sent.clear();
        self.events.clear();
    }

    /// Does what the session asks for.
    pub fn drain(&mut self) {
        while let Some(output) = self.session.poll() {
            match output {
                Output::OpenTransport { link } => {
                    assert!(self.link.is_none(), "two transports at once");
                    self.link = Some(link);
                    self.opened.push(self.now);
                }
                Output::Send { link, frame } => {
                    assert_eq!(self.link, Some(link), "sent on a transport that is not open");
                    self.history.push((self.now, frame.clone()));
                    self.sent.push_back((link, frame));
                }
                Output::CloseTransport { link, code, reason, abort } => {
                    assert_eq!(self.link.take(), Some(link), "closed a transport that is not open");
                    self.closed.push((code, reason, abort));
                }
                Output::NeedToken { call, request } => {
                    self.token_calls.push((call, request.reason, self.now));
                }
                Output::WakeAt(at) => self.wake = at,
                Output::Event(event) => self.events.push_back(event),
                Output::Complete { request, result } => {
                    let before = self.results.insert(request, result);
                    assert!(before.is_none(), "{request:?} was completed twice");
                }
            }
        }
    }

    pub fn call(&mut self, call: Call) -> RequestId {
        self.next_request += 1;
        let request = RequestId(self.next_request);
        self.session.call(self.now, request, call);
        self.drain();
        request
    }

    pub fn transport(&mut self, event: Transport) {
        let link = self.link.expect("a transport");
        if matches!(event, Transport::Closed { .. } | Transport::Failed { .. }) {
            self.link = None;
        }
        self.session.transport(self.now, link, event);
        self.drain();
    }

    /// The transport opens.
    pub fn open(&mut self) {
        self.transport(Transport::Opened);
    }

    /// The broker sends a frame.
    pub fn server<'a>(&mut self, frame: impl Into<ServerFrame<'a>>) {
        self.transport(Transport::Frame(Bytes::from(frame.into().to_vec())));
    }

    /// The broker sends several frames in one message.
    pub fn server_batch(&mut self, frames: &[Vec<u8>]) {
        self.transport(Transport::Frame(Bytes::from(frames.concat())));
    }

    /// The transport opens and the broker accepts, without a limit on publishes.
    pub fn accept(&mut self) {
        self.open();
        self.server(accepted());
    }

    /// The transport opens and the broker accepts, and grants these features.
    pub fn accept_with(&mut self, features: &[&'static str]) {
        self.open();
        self.server(AuthReply { features: features.to_vec(), ..accepted() });
    }

    /// A client that is connected to a broker with these features.
    pub fn granted(options: Options, features: &[&'static str]) -> Self {
        let mut rig = Self::new(options);
        rig.call(Call::Connect);
        rig.accept_with(features);
        rig.forget();
        rig
    }

    /// The connection is lost, and another is there, granted these features; what was said and told meanwhile is kept.
    pub fn reconnect(&mut self, features: &[&'static str]) {
        self.cut();
        self.wait_for_attempt();
        self.forget();
        self.accept_with(features);
    }

    /// The application has dispatched all up to this delivery.
    pub fn dispatched(&mut self, delivery: u64) {
        self.session.dispatched(self.now, Dispatched::UpTo(delivery));
        self.drain();
    }

    /// Handlers have finished.
    pub fn finished(&mut self, deliveries: &[(u64, bool)]) {
        self.session.dispatched(self.now, Dispatched::Finished(deliveries.to_vec()));
        self.drain();
    }

    pub fn refuse_auth(&mut self, error: &str) {
        self.open();
        self.server(AuthReply { success: false, error: Some(error), ..accepted() });
    }

    /// The connection ends without a close.
    pub fn cut(&mut self) {
        self.transport(Transport::Closed { code: None, reason: String::new() });
    }

    pub fn close(&mut self, code: u16, reason: &str) {
        self.transport(Transport::Closed { code: Some(code), reason: reason.to_owned() });
    }

    pub fn token(&mut self, token: &str) {
        let (call, ..) = *self.token_calls.last().expect("a call of the provider");
        let token = Token { secret: Secret::new(token), expires_in: None };
        self.session.token(self.now, call, Ok(token));
        self.drain();
    }

    /// Time passes, and the session is woken when it asks to be. Heartbeats are answered if `alive`.
    pub fn pass(&mut self, time: Duration, alive: bool) {
        let end = self.now + time;
        while let Some(wake) = self.wake.filter(|wake| *wake <= end) {
            self.now = wake.max(self.now);
            self.sent.retain(|(_, frame)| !frame.is_empty());
            self.session.wake(self.now);
            self.drain();
            let beat = self.sent.iter().any(|(link, frame)| Some(*link) == self.link && frame.is_empty());
            if alive && beat {
                self.transport(Transport::Frame(Bytes::new()));
            }
        }
        self.now = end;
    }

    /// Time passes on a connection that answers heartbeats.
    pub fn wait(&mut self, time: Duration) {
        self.pass(time, true);
    }

    /// Time passes on a connection that answers nothing.
    pub fn freeze(&mut self, time: Duration) {
        self.pass(time, false);
    }

    /// Waits for the next attempt to connect.
    pub fn wait_for_attempt(&mut self) -> Duration {
        let (start, attempts) = (self.now, self.opened.len());
        while self.opened.len() == attempts {
            self.wait(ms(1));
            assert!(self.now.saturating_sub(start) < Duration::from_secs(100), "no attempt");
        }
        self.now.saturating_sub(start)
    }

    /// The frames sent since the last look, heartbeats left out, each as its `type` and address.
    pub fn frames(&mut self) -> Vec<String> {
        let frames: Vec<_> = self.sent.drain(..).filter(|(_, frame)| !frame.is_empty()).collect();
        frames.iter().map(|(_, bytes)| describe(bytes)).collect()
    }

    /// The `msgRef` of the n-th frame sent since the last look.
    pub fn sent_ref(&self, n: usize) -> String {
        match ClientFrame::decode(&self.sent[n].1).unwrap() {
            ClientFrame::Publish(frame) => frame.msg_ref.0,
            ClientFrame::Subscribe(frame) => frame.msg_ref.0,
            ClientFrame::Unsubscribe(frame) => frame.msg_ref.0,
            ClientFrame::Presence(frame) => frame.msg_ref.0,
            ClientFrame::GetPresence(frame) => frame.msg_ref.0,
            ClientFrame::LobbySubscribe(frame) => frame.msg_ref.0,
            other => panic!("{other:?}"),
        }
        .unwrap()
        .to_owned()
    }

    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    pub fn errors(&self) -> Vec<Error> {
        let errors = self.events.iter().filter_map(|event| match event {
            Event::Error(error) => Some(error.clone()),
            _ => None,
        });
        errors.collect()
    }

    pub fn messages(&mut self) -> Vec<Message> {
        let messages = self.events.drain(..).filter_map(|event| match event {
            Event::Message(message) => Some(message),
            _ => None,
        });
        messages.collect()
    }

    pub fn state(&self) -> State {
        self.session.state()
    }

    pub fn is_done(&self, request: RequestId) -> bool {
        self.results.get(&request).is_some_and(Result::is_ok)
    }

    pub fn is_open(&self, request: RequestId) -> bool {
        !self.results.contains_key(&request)
    }

    pub fn failure(&self, request: RequestId) -> &Error {
        match self.results.get(&request) {
            Some(Err(error)) => error,
            other => panic!("{request:?} has not failed: {other:?}"),
        }
    }

    pub fn receipt(&self, request: RequestId) -> &Receipt {
        match self.results.get(&request) {
            Some(Ok(Reply::Receipt(receipt))) => receipt,
            other => panic!("{request:?} has no receipt: {other:?}"),
        }
    }

    pub fn subscribe(&mut self, topic: &str) -> RequestId {
        self.call(Call::Subscribe { topic: topic.into(), options: SubscribeOptions::default() })
    }

    pub fn unsubscribe(&mut self, topic: &str) -> RequestId {
        self.call(Call::Unsubscribe { topic: topic.into() })
    }

    pub fn publish(&mut self, topic: &str, n: u64) -> RequestId {
        self.publish_with(topic, n, PublishOptions::default())
    }

    pub fn publish_qos0(&mut self, topic: &str, n: u64) -> RequestId {
        self.publish_with(
            topic,
            n,
            PublishOptions { qos: Some(Qos::AtMostOnce), ..PublishOptions::default() },
        )
    }

    pub fn publish_with(&mut self, topic: &str, n: u64, options: PublishOptions) -> RequestId {
        self.call(Call::Publish { topic: topic.into(), payload: number(n), options })
    }

    /// Subscribes, and the broker agrees.
    pub fn subscribed(&mut self, topic: &str) {
        let request = self.subscribe(topic);
        self.server(subscribed(topic));
        assert!(self.is_done(request));
        self.forget();
    }

    /// Answers every publish that was sent since the last look; returns what they carried.
    pub fn publish_all(&mut self) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some((link, bytes)) = self.sent.pop_front() {
            if bytes.is_empty() || Some(link) != self.link {
                continue;
            }
            if let ClientFrame::Publish(frame) = ClientFrame::decode(&bytes).unwrap() {
                numbers.push(value(frame.data.bytes));
                self.server(published(frame.topic, frame.msg_ref.0));
            }
        }
        numbers
    }
}

pub fn accepted<'a>() -> AuthReply<'a> {
    AuthReply {
        success: true,
        error: None,
        actor_token_id: Some("me"),
        project_id: None,
        actor_type: Some("user"),
        protocol_version: Some(2),
        restored_subscriptions: None,
        limits: Some(Limits::default()),
        features: Vec::new(),
        retry_after_ms: None,
    }
}

pub fn subscribed(topic: &str) -> nolag_protocol::frame::Subscribed<'_> {
    nolag_protocol::frame::Subscribed {
        topic,
        load_balance: Some(false),
        epoch: None,
        seq: None,
        recovered: None,
        gap: None,
        msg_ref: None,
    }
}

/// A fresh subscription, at this number of the epoch `e`.
pub fn subscribed_at(topic: &str, seq: u64) -> nolag_protocol::frame::Subscribed<'_> {
    nolag_protocol::frame::Subscribed { epoch: Some("e"), seq: Some(seq), ..subscribed(topic) }
}

/// A subscription that continues; the newest number is this.
pub fn recovered(topic: &str, seq: u64) -> nolag_protocol::frame::Subscribed<'_> {
    nolag_protocol::frame::Subscribed { recovered: Some(true), ..subscribed_at(topic, seq) }
}

/// A subscription that does not continue, and why.
pub fn unrecovered<'a>(topic: &'a str, seq: u64, gap: &'a str) -> nolag_protocol::frame::Subscribed<'a> {
    nolag_protocol::frame::Subscribed { recovered: Some(false), gap: Some(gap), ..subscribed_at(topic, seq) }
}

pub fn unsubscribed(topic: &str) -> nolag_protocol::frame::Unsubscribed<'_> {
    nolag_protocol::frame::Unsubscribed { topic, reason: None, msg_ref: None }
}

pub fn published<'a>(topic: &'a str, msg_ref: Option<&'a str>) -> nolag_protocol::frame::Published<'a> {
    nolag_protocol::frame::Published { topic, msg_ref, duplicate: None, level: None }
}

pub fn error(name: &str) -> nolag_protocol::frame::ErrorReply<'_> {
    nolag_protocol::frame::ErrorReply {
        code: nolag_protocol::codes::ERRORS
            .iter()
            .find(|error| error.name == name)
            .and_then(|error| error.code),
        error: name,
        hint: None,
        detail: None,
        topic: None,
        app: None,
        room_id: None,
        lobby_id: None,
        max_size_bytes: None,
        msg_ref: None,
    }
}

pub fn message<'a>(topic: &'a str, msg_id: Option<&'a str>, data: &'a [u8]) -> MessageFrame<'a> {
    MessageFrame {
        topic,
        data: Data::new(data),
        msg_id,
        requires_ack: msg_id.map(|_| true),
        is_replay: None,
        from: None,
        from_type: None,
        filter: None,
        timestamp: None,
        source_topic: None,
        retained: None,
        seq: None,
        redelivered: None,
        trace: None,
    }
}

pub fn number(n: u64) -> Bytes {
    let mut out = Vec::new();
    nolag_protocol::msgpack::write::uint(&mut out, n);
    out.into()
}

pub fn value(bytes: &[u8]) -> u64 {
    rmpv::decode::read_value(&mut &bytes[..]).unwrap().as_u64().unwrap()
}

/// One MessagePack value out of JSON-like pairs.
pub fn map(pairs: &[(&str, rmpv::Value)]) -> Bytes {
    pack(&rmpv::Value::Map(pairs.iter().map(|(key, value)| ((*key).into(), value.clone())).collect()))
}

pub fn pack(value: &rmpv::Value) -> Bytes {
    let mut out = Vec::new();
    rmpv::encode::write_value(&mut out, value).unwrap();
    out.into()
}

/// A room of an app.
pub fn room_of(app: &str, room: &str) -> Room {
    Room { app: Some(app.into()), room: room.into() }
}

pub fn room(room: &str) -> Room {
    Room { app: None, room: room.into() }
}

fn address(app: Option<&str>, room: Option<&str>) -> String {
    let app = app.map(|app| format!("{app}/")).unwrap_or_default();
    app + room.unwrap_or("-")
}

pub fn describe(bytes: &[u8]) -> String {
    match ClientFrame::decode(bytes).unwrap() {
        ClientFrame::Auth(frame) => format!("auth {}", frame.token),
        ClientFrame::Reauth(frame) => format!("reauth {}", frame.token),
        ClientFrame::Subscribe(frame) => format!("subscribe {}", frame.topic),
        ClientFrame::Unsubscribe(frame) => format!("unsubscribe {}", frame.topic),
        ClientFrame::SetFilters(frame) => format!("setFilters {}", frame.topic),
        ClientFrame::Publish(frame) => format!("publish {} {}", frame.topic, value(frame.data.bytes)),
        ClientFrame::Presence(frame) => format!("presence {}", address(frame.app, frame.room_id)),
        ClientFrame::GetPresence(frame) => format!("getPresence {}", address(frame.app, frame.room_id)),
        ClientFrame::LobbySubscribe(frame) => format!("lobbySubscribe {}", frame.lobby_id),
        ClientFrame::LobbyUnsubscribe(frame) => format!("lobbyUnsubscribe {}", frame.lobby_id),
        ClientFrame::GetLobbyPresence(frame) => format!("getLobbyPresence {}", frame.lobby_id),
        ClientFrame::Ack(frame) => format!("ack {}", frame.msg_id),
        ClientFrame::BatchAck(frame) => format!("batchAck {}", frame.msg_ids.0.join(",")),
        ClientFrame::Unknown(kind) => format!("unknown {kind}"),
    }
}

/// A subscription with filters.
pub fn filtered(topic: &str, filters: &[&str]) -> Call {
    let filters = filters.iter().map(|value| Filter::Value((*value).into())).collect();
    Call::Subscribe {
        topic: topic.into(),
        options: SubscribeOptions { filters, ..SubscribeOptions::default() },
    }
}
