//! A WebSocket as a link, with small buffers and bounded messages.
//!
//! tungstenite frames; it is given the stream anew for each poll, since the driver reads and writes in one task and needs none
//! of the bookkeeping for two.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use nolag_protocol::MAX_MESSAGE_BYTES;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tungstenite::error::ProtocolError;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig, WebSocketContext};
use tungstenite::{Error, Message};

use crate::driver::{Link, Outgoing, Received};
use crate::error::ConnectionCode;

/// How much is read at a time, in bytes; each connection holds as much. A [`ReadAhead`](super::ahead::ReadAhead) below reads more.
const READ_BYTES: usize = 2 * 1024;
/// From how much on it is written before more is taken, in bytes.
const WRITE_BYTES: usize = 16 * 1024;
/// The most that a frame adds to its message, in bytes.
const FRAMING: usize = 14;

fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        // Nothing is written but by a flush: only then is there somebody to wake.
        .write_buffer_size(usize::MAX - 1)
        .max_write_buffer_size(usize::MAX)
        // A broker may batch and replay, but sends no larger message than it takes.
        .max_message_size(Some(4 * MAX_MESSAGE_BYTES))
        .max_frame_size(Some(4 * MAX_MESSAGE_BYTES))
}

/// A WebSocket over any stream of bytes.
pub(crate) struct WebSocket<S> {
    stream: S,
    /// What has come behind the handshake, and is read first. (Given to tungstenite it would be what all later buffers are
    /// measured by.)
    behind: Vec<u8>,
    context: WebSocketContext,
    /// How many bytes were taken since the last flush was complete.
    unflushed: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> WebSocket<S> {
    /// The client's end of a WebSocket whose handshake is done, and what came behind that.
    pub(crate) fn new(stream: S, behind: Vec<u8>) -> Self {
        let context = WebSocketContext::new(Role::Client, Some(config()));
        Self { stream, behind, context, unflushed: 0 }
    }

    fn flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        let Self { stream, behind, context, .. } = self;
        match context.flush(&mut Polled { stream, behind, cx }) {
            Err(fault) if is_pending(&fault) => Poll::Pending,
            Ok(()) | Err(Error::ConnectionClosed) => {
                self.unflushed = 0;
                Poll::Ready(Ok(()))
            }
            Err(fault) => Poll::Ready(Err(reason(&fault))),
        }
    }
}

/// Why a connection ended, for people: without the system's number.
fn reason(fault: &Error) -> String {
    match fault {
        Error::Io(fault) if fault.raw_os_error().is_some() => fault.kind().to_string(),
        _ => fault.to_string(),
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Link for WebSocket<S> {
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        let Self { stream, behind, context, .. } = self;
        loop {
            return Poll::Ready(match context.read(&mut Polled { stream, behind, cx }) {
                Ok(Message::Binary(bytes)) => Received::Frame(bytes),
                Ok(Message::Text(text)) => Received::Text(text.as_str().to_owned()),
                Ok(Message::Close(Some(frame))) => Received::Closed {
                    code: Some(frame.code.into()),
                    reason: frame.reason.as_str().to_owned(),
                },
                Ok(Message::Close(None)) => Received::Closed { code: Some(1005), reason: String::new() },
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
                Err(fault) if is_pending(&fault) => return Poll::Pending,
                // A connection that ends without a close is no fault of the protocol.
                Err(
                    Error::ConnectionClosed
                    | Error::AlreadyClosed
                    | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
                ) => Received::Closed { code: None, reason: "connection lost".to_owned() },
                Err(fault @ (Error::Protocol(_) | Error::Capacity(_) | Error::Utf8(_))) => {
                    Received::Failed { code: ConnectionCode::ProtocolError, message: fault.to_string() }
                }
                Err(fault) => Received::Closed { code: None, reason: reason(&fault) },
            });
        }
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        if self.unflushed < WRITE_BYTES { Poll::Ready(Ok(())) } else { self.flush(cx) }
    }

    fn send(&mut self, message: Outgoing) -> Result<(), String> {
        let message = match message {
            Outgoing::Frame(frame) => Message::Binary(frame),
            Outgoing::Close { code, reason } => {
                Message::Close(Some(CloseFrame { code: CloseCode::from(code), reason: reason.into() }))
            }
        };
        self.unflushed += message.len() + FRAMING;
        // A close is flushed at once, which has to wait for a flush that can.
        match self.context.write(&mut Later, message) {
            Err(fault) if !is_pending(&fault) => Err(reason(&fault)),
            _ => Ok(()),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        self.flush(cx)
    }
}

/// What is not done yet; whoever has to be woken for it knows.
fn is_pending(fault: &Error) -> bool {
    matches!(fault, Error::Io(fault) if fault.kind() == io::ErrorKind::WouldBlock)
}

/// A stream in one poll: what it cannot do at once would block, and wakes the task later.
struct Polled<'a, 'b, S> {
    stream: &'a mut S,
    behind: &'a mut Vec<u8>,
    cx: &'a mut Context<'b>,
}

fn at_once<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl<S: AsyncRead + Unpin> Read for Polled<'_, '_, S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if !self.behind.is_empty() {
            let len = self.behind.len().min(buf.len());
            buf[..len].copy_from_slice(&self.behind[..len]);
            self.behind.drain(..len);
            return Ok(len);
        }
        let mut buf = ReadBuf::new(buf);
        at_once(Pin::new(&mut *self.stream).poll_read(self.cx, &mut buf))?;
        Ok(buf.filled().len())
    }
}

impl<S: AsyncWrite + Unpin> Write for Polled<'_, '_, S> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        at_once(Pin::new(&mut *self.stream).poll_write(self.cx, buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        at_once(Pin::new(&mut *self.stream).poll_flush(self.cx))
    }
}

/// A stream outside of any poll, which takes nothing.
struct Later;

impl Read for Later {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Write for Later {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}
