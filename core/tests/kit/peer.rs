//! The broker's end of connections in memory, which a test plays.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use futures_util::{SinkExt as _, StreamExt as _};
use nolag_core::driver::memory::ServerEnd;
use nolag_protocol::frame::{ClientFrame, ServerFrame};
use tokio::sync::mpsc::Receiver;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::kit::{self, accepted, published, subscribed};

/// The broker's end of one connection.
pub struct Peer(pub WebSocketStream<ServerEnd>);

impl Peer {
    pub async fn accept(queue: &mut Receiver<ServerEnd>) -> Self {
        let end = queue.recv().await.unwrap();
        Self(WebSocketStream::from_raw_socket(end, Role::Server, None).await)
    }

    /// The next frame, heartbeats left out; `None` after a close.
    pub async fn read(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Binary(bytes))) if !bytes.is_empty() => return Some(bytes.to_vec()),
                Some(Ok(Message::Close(_))) | None => return None,
                _ => {}
            }
        }
    }

    pub async fn send<'a>(&mut self, frame: impl Into<ServerFrame<'a>>) {
        self.0.send(Message::binary(frame.into().to_vec())).await.unwrap();
    }

    /// Lets a client in, and grants its one subscription.
    pub async fn welcome(&mut self) {
        for _ in 0..2 {
            let bytes = self.read().await.unwrap();
            match ClientFrame::decode(&bytes).unwrap() {
                ClientFrame::Auth(_) => self.send(accepted()).await,
                ClientFrame::Subscribe(frame) => self.send(subscribed(frame.topic)).await,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Answers what is asked until `count` publishes were seen; returns them.
    pub async fn serve(&mut self, count: usize) -> Vec<u64> {
        let mut seen = Vec::new();
        while seen.len() < count {
            let bytes = self.read().await.unwrap();
            match ClientFrame::decode(&bytes).unwrap() {
                ClientFrame::Auth(_) => self.send(accepted()).await,
                ClientFrame::Subscribe(frame) => self.send(subscribed(frame.topic)).await,
                ClientFrame::Publish(frame) => {
                    seen.push(kit::value(frame.data.bytes));
                    self.send(published(frame.topic, frame.msg_ref.0)).await;
                }
                other => panic!("{other:?}"),
            }
        }
        seen
    }
}
