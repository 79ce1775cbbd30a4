//! Counters and gauges, and their Prometheus text (wire protocol 22.3).

use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use nolag_protocol::frame::ServerFrame;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

macro_rules! labels {
    ($($name:ident { $($field:ident),* })*) => { $(
        #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub(crate) struct $name { $(pub(crate) $field: &'static str),* }
    )* };
}

labels! {
    Ingress { ingress }
    Code { code }
    Protocol { protocol }
    Reason { reason }
    Outcome { result }
    Frames { direction, r#type }
    Direction { direction }
}

/// Whether a connection has proven who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types)] // the label's values
pub(crate) enum State {
    unauthenticated,
    authenticated,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Connections {
    pub(crate) protocol: &'static str,
    pub(crate) state: State,
}

type Count = Counter<u64, AtomicU64>;

/// Everything that is counted. Handles of what is counted per message are resolved once.
pub(crate) struct Metrics {
    registry: Registry,
    connections: Family<Connections, Gauge>,
    pub(crate) subscriptions: Gauge,
    pub(crate) presence_members: Gauge,
    pub(crate) retained_messages: Gauge,
    pub(crate) history_messages: Gauge,
    pub(crate) history_bytes: Gauge,
    recoveries: Family<Outcome, Counter>,
    pub(crate) published: Count,
    rejected: Family<Code, Counter>,
    delivered: Count,
    dropped: Family<Reason, Counter>,
    auth: Family<Outcome, Counter>,
    frames: Family<Frames, Counter>,
    messages_out: Count,
    pub(crate) bytes_in: Count,
    pub(crate) bytes_out: Count,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("nolag");
        let connections = Family::default();
        let (subscriptions, presence_members, retained_messages) = <(Gauge, Gauge, Gauge)>::default();
        let (history_messages, history_bytes, recoveries) = <(Gauge, Gauge, Family<_, Counter>)>::default();
        let published = Family::<Ingress, Counter>::default();
        let delivered = Family::<Protocol, Counter>::default();
        let (rejected, dropped, auth, frames) =
            (Family::default(), Family::default(), Family::default(), Family::default());
        let bytes = Family::<Direction, Counter>::default();

        registry.register("connections", "Open connections", connections.clone());
        registry.register("subscriptions", "Subscriptions of all connections", subscriptions.clone());
        registry.register("presence_members", "Connections present in some room", presence_members.clone());
        registry.register("retained_messages", "Retained messages", retained_messages.clone());
        registry.register("history_messages", "Messages in the history", history_messages.clone());
        registry.register("history_bytes", "Their bytes, about", history_bytes.clone());
        registry.register(
            "recoveries",
            "Subscriptions that asked to continue, by what came of it",
            recoveries.clone(),
        );
        registry.register("published", "Publishes accepted", published.clone());
        registry.register("publish_rejected", "Publishes refused, by error code", rejected.clone());
        registry.register("delivered", "Messages queued for a receiver", delivered.clone());
        registry.register("dropped", "Frames and messages thrown away", dropped.clone());
        registry.register("auth", "Handshakes by outcome", auth.clone());
        registry.register("frames", "Frames by type", frames.clone());
        registry.register("bytes", "Bytes of frames, without WebSocket headers", bytes.clone());
        Self {
            published: published.get_or_create_owned(&Ingress { ingress: "websocket" }),
            delivered: delivered.get_or_create_owned(&Protocol { protocol: "websocket" }),
            messages_out: frames.get_or_create_owned(&Frames { direction: "out", r#type: "message" }),
            bytes_in: bytes.get_or_create_owned(&Direction { direction: "in" }),
            bytes_out: bytes.get_or_create_owned(&Direction { direction: "out" }),
            registry,
            connections,
            subscriptions,
            presence_members,
            retained_messages,
            history_messages,
            history_bytes,
            recoveries,
            rejected,
            dropped,
            auth,
            frames,
        }
    }
}

impl Metrics {
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    pub(crate) fn connections(&self, state: State) -> Gauge {
        self.connections.get_or_create_owned(&Connections { protocol: "websocket", state })
    }

    pub(crate) fn rejected(&self, code: &'static str) {
        self.rejected.get_or_create(&Code { code }).inc();
    }

    pub(crate) fn dropped(&self, frames: u64) {
        self.dropped_for("slow_consumer", frames);
    }

    /// So many frames or messages were thrown away for this reason.
    pub(crate) fn dropped_for(&self, reason: &'static str, count: u64) {
        if count > 0 {
            self.dropped.get_or_create(&Reason { reason }).inc_by(count);
        }
    }

    /// A subscription continued, or did not for this reason.
    pub(crate) fn recovered(&self, result: &'static str) {
        self.recoveries.get_or_create(&Outcome { result }).inc();
    }

    pub(crate) fn auth(&self, result: &'static str) {
        self.auth.get_or_create(&Outcome { result }).inc();
    }

    /// So many messages were queued for their receivers.
    pub(crate) fn delivered(&self, messages: u64) {
        self.delivered.inc_by(messages);
        self.messages_out.inc_by(messages);
    }

    /// A frame of this type arrived.
    pub(crate) fn frame_in(&self, kind: &'static str) {
        self.frames.get_or_create(&Frames { direction: "in", r#type: kind }).inc();
    }

    /// So many frames of one type were queued.
    pub(crate) fn frames_out(&self, kind: &'static str, count: usize) {
        self.frames.get_or_create(&Frames { direction: "out", r#type: kind }).inc_by(count as u64);
    }

    /// The canonical bytes of a frame for one receiver.
    pub(crate) fn encoded<'a>(&self, frame: impl Into<ServerFrame<'a>>) -> Bytes {
        let frame = frame.into();
        self.frames_out(frame.known_kind().unwrap_or("unknown"), 1);
        frame.to_vec().into()
    }
}
