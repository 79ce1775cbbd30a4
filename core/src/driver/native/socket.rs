//! A WebSocket as a link, with small buffers and bounded messages.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Sink, Stream};
use nolag_protocol::MAX_MESSAGE_BYTES;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::driver::{Link, Outgoing, Received};
use crate::error::ConnectionCode;

/// The settings of every socket: tungstenite reads 128 KiB at a time and bounds what waits for writing by nothing, unless told.
pub(super) fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(16 * 1024)
        .write_buffer_size(16 * 1024)
        .max_write_buffer_size(4 << 20)
        // A broker may batch and replay, but sends no larger message than it takes.
        .max_message_size(Some(4 * MAX_MESSAGE_BYTES))
        .max_frame_size(Some(4 * MAX_MESSAGE_BYTES))
}

/// A WebSocket over any stream of bytes.
pub(crate) struct WebSocket<S>(pub(super) WebSocketStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send> WebSocket<S> {
    /// A WebSocket whose handshake is done.
    pub(crate) async fn from_raw(stream: S, role: Role) -> Self {
        Self(WebSocketStream::from_raw_socket(stream, role, Some(config())).await)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Link for WebSocket<S> {
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        loop {
            return Poll::Ready(match ready!(Pin::new(&mut self.0).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => Received::Frame(bytes),
                Some(Ok(Message::Text(text))) => Received::Text(text.as_str().to_owned()),
                Some(Ok(Message::Close(Some(frame)))) => Received::Closed {
                    code: Some(frame.code.into()),
                    reason: frame.reason.as_str().to_owned(),
                },
                Some(Ok(Message::Close(None))) => {
                    Received::Closed { code: Some(1005), reason: String::new() }
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Err(fault @ (Error::Protocol(_) | Error::Capacity(_) | Error::Utf8(_))))
                    if !is_loss(&fault) =>
                {
                    Received::Failed { code: ConnectionCode::ProtocolError, message: fault.to_string() }
                }
                Some(Err(fault)) => Received::Closed { code: None, reason: fault.to_string() },
                None => Received::Closed { code: None, reason: "connection lost".to_owned() },
            });
        }
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        Pin::new(&mut self.0).poll_ready(cx).map_err(|fault| fault.to_string())
    }

    fn send(&mut self, message: Outgoing) -> Result<(), String> {
        let message = match message {
            Outgoing::Frame(frame) => Message::Binary(Bytes::clone(&frame)),
            Outgoing::Close { code, reason } => {
                Message::Close(Some(CloseFrame { code: CloseCode::from(code), reason: reason.into() }))
            }
        };
        Pin::new(&mut self.0).start_send(message).map_err(|fault| fault.to_string())
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        Pin::new(&mut self.0).poll_flush(cx).map_err(|fault| fault.to_string())
    }
}

/// A connection that ends without a close is no fault of the protocol.
fn is_loss(fault: &Error) -> bool {
    use tokio_tungstenite::tungstenite::error::ProtocolError;
    matches!(fault, Error::Protocol(ProtocolError::ResetWithoutClosingHandshake))
}
