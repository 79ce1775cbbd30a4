//! What a client logs, at the finest level.

#![cfg(feature = "native")]

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use futures_util::{SinkExt as _, StreamExt as _};
use nolag_core::Client;
use nolag_core::driver::memory::Memory;
use nolag_protocol::frame::{ClientFrame, ServerFrame};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tracing::field::{Field, Visit};
use tracing::span;

#[path = "kit/mod.rs"]
mod kit;
use kit::{accepted, error, map, message, published, subscribed};

/// Everything that is logged, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}"); // a string takes all
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        span.record(&mut Line(&mut self.0.lock().unwrap()));
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut Line(&mut self.0.lock().unwrap()));
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut log = self.0.lock().unwrap();
        event.record(&mut Line(&mut log));
        log.push('\n');
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// API-075, API-096, K-058: at the finest level one reads of states, errors, and each frame's kind and size, those in a batch too; never
/// of a payload or a token.
#[tokio::test(start_paused = true)]
async fn what_is_logged() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let (transport, mut queue) = Memory::new();
    let client = Client::builder("s3cret-token").transport(transport).build().unwrap();
    tokio::spawn(async move {
        let mut peer =
            WebSocketStream::from_raw_socket(queue.recv().await.unwrap(), Role::Server, None).await;
        let payload = map(&[("secret", "payl0ad".into())]);
        while let Some(Ok(Message::Binary(mut rest))) = peer.next().await {
            let mut answers = Vec::new();
            while !rest.is_empty() {
                let (frame, behind) = ClientFrame::decode_first(&rest);
                let answer: Option<ServerFrame<'_>> = match frame.unwrap() {
                    ClientFrame::Auth(_) => {
                        let features = vec!["batch"];
                        Some(nolag_protocol::frame::AuthReply { features, ..accepted() }.into())
                    }
                    ClientFrame::Subscribe(frame) if frame.topic == "t" => {
                        answers.extend(subscribed(frame.topic).to_vec());
                        Some(message("t", Some("m-1"), &payload).into())
                    }
                    ClientFrame::Subscribe(frame) => {
                        let (topic, msg_ref) = (Some(frame.topic), frame.msg_ref.0);
                        Some(
                            nolag_protocol::frame::ErrorReply { topic, msg_ref, ..error("unknown_topic") }
                                .into(),
                        )
                    }
                    ClientFrame::Publish(frame) => Some(published(frame.topic, frame.msg_ref.0).into()),
                    _ => None,
                };
                answers.extend(answer.map(|frame| frame.to_vec()).unwrap_or_default());
                let read = rest.len() - behind.len();
                rest = rest.slice(read..);
            }
            if !answers.is_empty() {
                peer.send(Message::binary(answers)).await.unwrap();
            }
        }
    });
    client.connect().await.unwrap();
    let mut messages = client.subscribe("t").await.unwrap();
    messages.next().await.unwrap().unwrap();
    assert!(client.subscribe("refused").await.is_err());
    let payload = map(&[("secret", "payl0ad".into())]);
    client.publish_bytes("t", payload).await.unwrap();
    client.close().await.unwrap();
    drop((messages, client));
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;

    let log = log.0.lock().unwrap().clone();
    for told in [
        "sent=true kind=\"auth\" bytes=",
        "sent=false kind=\"auth\" bytes=",
        "sent=true kind=\"subscribe\"",
        "sent=false kind=\"subscribed\"",
        "sent=false kind=\"message\"",
        "sent=true kind=\"ack\"",
        "sent=false kind=\"published\"",
        "unknown_topic",
        "to=Connected",
    ] {
        assert!(log.contains(told), "{told} is not in {log}");
    }
    for secret in ["s3cret", "payl0ad"] {
        assert!(!log.contains(secret), "{secret} is in {log}");
    }
}
