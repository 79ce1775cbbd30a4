//! Frames on their way to the transport.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::{Link, Outgoing};

/// The most bytes of a message that several frames share; a larger frame goes alone.
const MAX_BATCH_BYTES: usize = 64 * 1024;

/// With more than this waiting, in bytes, publishes are held back (client-api 12.1).
const FULL: usize = 1 << 20;

/// What waits for the transport, in order.
#[derive(Default)]
pub(super) struct Outbound {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// Frames may share a message.
    batch: bool,
    /// There was more than [`FULL`], and still is more than half of it.
    full: bool,
}

impl Outbound {
    /// Takes a frame. Whether the broker takes several in one message holds for all that wait.
    pub(super) fn push(&mut self, frame: Bytes, batch: bool) {
        self.batch = batch;
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether publishes are to be held back, where that has changed since it was last asked.
    pub(super) fn turned_full(&mut self) -> Option<bool> {
        let full = if self.full { self.bytes > FULL / 2 } else { self.bytes > FULL };
        (std::mem::replace(&mut self.full, full) != full).then_some(full)
    }

    /// Hands the link all that it takes, and flushes once.
    pub(super) fn write(&mut self, link: &mut dyn Link, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        while !self.is_empty() {
            match link.poll_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(message)) => return Poll::Ready(Err(message)),
                Poll::Pending => break,
            }
            if let Some(message) = self.next_message()
                && let Err(message) = link.send(Outgoing::Frame(message))
            {
                return Poll::Ready(Err(message));
            }
        }
        link.poll_flush(cx)
    }

    /// The next frame, and those behind it that may share its message. A heartbeat shares none.
    fn next_message(&mut self) -> Option<Bytes> {
        let first = self.frames.pop_front()?;
        let (mut len, mut others) = (first.len(), 0);
        if self.batch && !first.is_empty() {
            for frame in &self.frames {
                if frame.is_empty() || len + frame.len() > MAX_BATCH_BYTES {
                    break;
                }
                len += frame.len();
                others += 1;
            }
        }
        self.bytes -= len;
        if others == 0 {
            return Some(first);
        }
        let mut message = Vec::with_capacity(len);
        for frame in std::iter::once(first).chain(self.frames.drain(..others)) {
            message.extend_from_slice(&frame);
        }
        Some(message.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(batch: bool, sizes: &[usize]) -> Vec<usize> {
        let mut out = Outbound::default();
        for (n, size) in sizes.iter().enumerate() {
            out.push(vec![u8::try_from(n).unwrap(); *size].into(), batch);
        }
        assert_eq!(out.bytes, sizes.iter().sum::<usize>());
        let messages: Vec<_> = std::iter::from_fn(|| out.next_message()).collect();
        let sent = messages.concat();
        let expected: Vec<u8> =
            sizes.iter().enumerate().flat_map(|(n, size)| vec![u8::try_from(n).unwrap(); *size]).collect();
        assert_eq!((sent, out.bytes), (expected, 0), "all of it, in order");
        messages.iter().map(Bytes::len).collect()
    }

    /// Features 5: frames share a message where that is granted, up to its bound; heartbeats and large ones go alone.
    #[test]
    fn which_frames_share_a_message() {
        assert_eq!(messages(false, &[10, 20, 30]), [10, 20, 30]);
        assert_eq!(messages(true, &[10, 20, 30]), [60]);
        assert_eq!(messages(true, &[10, 20, 0, 30, 40, 0, 0, 5]), [30, 0, 70, 0, 0, 5]);
        assert_eq!(messages(true, &[0, 1_000_000, 10, 20]), [0, 1_000_000, 30]);
        assert_eq!(messages(true, &[10, 65_526, 1, 1]), [65_536, 2], "not a byte more");
    }
}
