//! Few reads when much arrives, no buffer when nothing does.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// How much is read ahead at a time, in bytes.
const AHEAD: usize = 64 * 1024;
/// With how much of that it is tried again, in bytes.
const WORTHWHILE: usize = 8 * 1024;

/// A stream that reads ahead as long as more has arrived than was asked for. The buffer is there that long: an idle connection
/// has none.
pub(super) struct ReadAhead<S> {
    stream: S,
    ahead: Vec<u8>,
    /// How much of `ahead` has been taken.
    taken: usize,
    /// The last read probably left something behind.
    more: bool,
}

impl<S> ReadAhead<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, ahead: Vec::new(), taken: 0, more: false }
    }
}

impl<S: AsyncRead + Unpin> ReadAhead<S> {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ahead.clear();
        self.taken = 0;
        self.ahead.reserve(AHEAD);
        let filled = pin!(self.stream.read_buf(&mut self.ahead)).poll(cx);
        self.more = self.ahead.len() >= WORTHWHILE;
        if self.ahead.is_empty() {
            self.ahead = Vec::new();
        }
        filled.map_ok(|_| ())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.taken == this.ahead.len() {
            if !this.more {
                this.ahead = Vec::new();
                this.taken = 0;
                ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
                this.more = buf.remaining() == 0;
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_fill(cx))?;
        }
        let rest = &this.ahead[this.taken..];
        let len = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..len]);
        this.taken += len;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
