//! One connection's life, from the first frame to the close.
//!
//! A connection is any stream and sink of WebSocket messages. Its one task runs three things beside each
//! other, none waiting for another: reading (frames go to the [`session`]), writing (what the [`Outgoing`]
//! queue holds, all that is ready in one flush) and watching for somebody who wants the connection closed.
//!
//! - [`session`]: what each frame does; knows no socket: authentication and what is due
//! - [`requests`]: which request goes where: to [`topics`] or to [`rooms`]
//! - [`limits`]: what a connection may publish
//! - [`wakes`]: so that a frame to write does not cost a look at the socket

mod limits;
mod requests;
mod rooms;
mod session;
mod topics;
mod wakes;

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use nolag_protocol::codes;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use crate::broker::Broker;
use crate::outgoing::{Close, Entry, Outgoing, Taken};
use session::Session;

/// How long a peer has to take what is left and to answer a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a close frame has room for; a backend's reason may be longer.
const MAX_REASON_BYTES: usize = 123;

/// Frames are packed into messages of at most so many bytes.
const PACKED_BYTES: usize = 64 * 1024;

/// A larger frame goes as it is: a message of its own costs less than copying it.
const COPIED_BYTES: usize = 16 * 1024;

/// Whether a frame may share a message with others. A heartbeat is an empty message.
fn joins(frame: &Bytes) -> bool {
    (1..=COPIED_BYTES).contains(&frame.len())
}

/// Why a connection ends.
enum Ending {
    /// The broker closes it.
    Close(Close),
    /// The peer sent a close; the framing layer has its answer ready.
    PeerClosed,
    /// The transport failed or ended.
    Lost,
}

/// Serves a connection until it has ended; the broker forgets it then. The future may be dropped, which loses the
/// connection.
pub async fn serve<S>(broker: &Arc<Broker>, socket: S)
where
    S: Stream<Item = Result<Message, SocketError>> + Sink<Message, Error = SocketError> + Unpin,
{
    let registration = broker.register();
    let outgoing = registration.outgoing.clone();
    let mut session = Session::new(broker.clone(), outgoing.clone());
    let (sink, mut stream) = socket.split();
    let mut writer =
        Writer { sink, outgoing: &outgoing, broker, batch: VecDeque::new(), held: None, alone: usize::MAX };

    let ending = tokio::select! {
        biased;
        ending = wakes::when_woken(read(&mut stream, &mut session, &outgoing)) => ending,
        ending = writer.run() => ending,
        close = poll_fn(|context| outgoing.poll_closing(context)) => Ending::Close(close),
    };
    session.broke_off(matches!(ending, Ending::Lost));
    // Nothing more reaches this connection from here on, and whoever watches it learns that it has gone.
    drop(session);
    // A peer that neither takes nor answers anything is left behind.
    let _ = timeout(CLOSE_TIMEOUT, async {
        match ending {
            Ending::Close(close) => {
                outgoing.close(close.clone());
                writer.close(close, &mut stream).await;
            }
            Ending::PeerClosed => writer.sink.close().await.unwrap_or_default(),
            Ending::Lost => {}
        }
    })
    .await;
}

/// Reads and handles frames, answers of the authorization service, and what is due.
async fn read<S>(stream: &mut S, session: &mut Session, outgoing: &Outgoing) -> Ending
where
    S: Stream<Item = Result<Message, SocketError>> + Unpin,
{
    let mut due = pin!(sleep_until(Instant::now()));
    loop {
        if outgoing.is_closing() {
            // The closing branch of `serve` takes over.
            return pending().await;
        }
        let deadline = session.deadline();
        if due.deadline() != deadline {
            due.as_mut().reset(deadline);
        }
        tokio::select! {
            biased;
            () = session.answer() => {}
            () = due.as_mut() => session.due(),
            // While an `auth` waits for its answer, later frames wait behind it.
            () = yield_now(), if session.has_more() && !session.awaits_answer() => session.go_on(),
            message = stream.next(), if !session.has_more() && !session.awaits_answer() => match message {
                Some(Ok(Message::Binary(frame))) => session.binary(&frame),
                Some(Ok(Message::Text(text))) => session.text(&text),
                Some(Ok(Message::Close(_))) => return Ending::PeerClosed,
                Some(Ok(_)) => session.heard(),
                Some(Err(error)) => return ending_of(&error),
                None => return Ending::Lost,
            },
        }
    }
}

fn ending_of(error: &SocketError) -> Ending {
    let close = match error {
        SocketError::Capacity(_) => codes::MESSAGE_TOO_BIG,
        SocketError::Utf8(_) => codes::INVALID_TEXT,
        SocketError::Protocol(
            tokio_tungstenite::tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
        ) => return Ending::Lost,
        SocketError::Protocol(_) => codes::PROTOCOL_ERROR,
        _ => return Ending::Lost,
    };
    Ending::Close(close.into())
}

struct Writer<'c, K> {
    sink: K,
    outgoing: &'c Outgoing,
    broker: &'c Broker,
    /// Taken from the queue, not yet given to the socket.
    batch: VecDeque<Entry>,
    /// Comes next: it did not fit the message before.
    held: Option<Bytes>,
    /// So many frames go in messages of their own, whatever follows (`batch`, features 5).
    alone: usize,
}

impl<K: Sink<Message, Error = SocketError> + Unpin> Writer<'_, K> {
    /// Writes what is queued until a close is asked for or the socket fails. It may be dropped and started
    /// again at any await without losing a frame.
    async fn run(&mut self) -> Ending {
        loop {
            match self.write_ready().await {
                Ok(None) => {}
                Ok(Some(close)) => return Ending::Close(close),
                Err(_) => return Ending::Lost,
            }
        }
    }

    /// Waits for frames and hands over all that are there, flushing when no more are.
    async fn write_ready(&mut self) -> Result<Option<Close>, SocketError> {
        const KEPT_CAPACITY: usize = 64;
        if self.is_empty() {
            if self.batch.capacity() > KEPT_CAPACITY {
                self.batch = VecDeque::new();
            }
            let (outgoing, batch) = (self.outgoing, &mut self.batch);
            match poll_fn(|context| outgoing.poll_take(batch, context)).await {
                Taken::Frames { alone } => self.alone = alone,
                Taken::Close(close) => return Ok(Some(close)),
            }
        }
        let mut bytes = 0;
        while !self.is_empty() {
            poll_fn(|context| Pin::new(&mut self.sink).poll_ready(context)).await?;
            if let Some(message) = self.next_message() {
                bytes += message.len();
                Pin::new(&mut self.sink).start_send(Message::Binary(message))?;
            }
        }
        self.broker.metrics.bytes_out.inc_by(bytes as u64);
        if self.outgoing.is_empty() {
            self.sink.flush().await?;
        }
        Ok(None)
    }

    fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.held.is_none()
    }

    /// The next frame; none where the batch ends in a replay that is over.
    fn next_frame(&mut self) -> Option<Bytes> {
        if let Some(frame) = self.held.take() {
            return Some(frame);
        }
        loop {
            if let Entry::Replay(replay) = self.batch.front_mut()?
                && let Some(frame) = replay.next()
            {
                return Some(frame);
            }
            if let Some(Entry::Frame(frame)) = self.batch.pop_front() {
                self.outgoing.sent(frame.len());
                return Some(frame);
            }
        }
    }

    /// The next message: one frame, or as many as may go together (features 5).
    fn next_message(&mut self) -> Option<Bytes> {
        let first = self.next_frame()?;
        if self.alone > 0 {
            self.alone -= 1;
            return Some(first);
        }
        let mut packed: Option<Vec<u8>> = None;
        while joins(&first)
            && let Some(next) = self.next_frame()
        {
            let bytes = packed.as_ref().map_or(first.len(), Vec::len) + next.len();
            if !joins(&next) || bytes > PACKED_BYTES {
                self.held = Some(next);
                break;
            }
            packed.get_or_insert_with(|| first.to_vec()).extend_from_slice(&next);
        }
        Some(packed.map_or(first, Bytes::from))
    }

    /// Writes what is left and the close, and waits for the peer's.
    async fn close<S>(&mut self, close: Close, stream: &mut S)
    where
        S: Stream<Item = Result<Message, SocketError>> + Unpin,
    {
        if close.code == codes::SLOW_CONSUMER.code {
            // What it did not take it will not be given: it asks again when it comes back.
            self.outgoing.drop_frames(self.batch.len() + usize::from(self.held.is_some()));
            self.held = None;
            self.batch.clear();
        }
        while let Ok(None) = self.write_ready().await {}
        let farewell = self.broker.farewell(&close).map(|frame| Message::Binary(frame.into()));
        let reason = &close.reason[..close.reason.floor_char_boundary(MAX_REASON_BYTES)];
        let frame = CloseFrame { code: close.code.into(), reason: reason.into() };
        for message in farewell.into_iter().chain([Message::Close(Some(frame))]) {
            if self.sink.feed(message).await.is_err() {
                return;
            }
        }
        if self.sink.flush().await.is_ok() {
            while let Some(Ok(_)) = stream.next().await {}
        }
    }
}
