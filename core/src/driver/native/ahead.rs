//! Few reads when much arrives, no buffer when nothing does.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// How much is read ahead at first, in bytes: what was asked for may just have been little. Only if as much comes it goes on.
const FIRST: usize = 8 * 1024;
/// How much is read ahead at a time after that, in bytes.
const AHEAD: usize = 64 * 1024;

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
        self.ahead.reserve_exact(if self.ahead.capacity() == 0 { FIRST } else { AHEAD });
        let filled = pin!(self.stream.read_buf(&mut self.ahead)).poll(cx);
        self.more = self.ahead.len() >= FIRST;
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Gives what it has in pieces, each at once; counts how often it was asked.
    struct Pieces {
        pieces: VecDeque<Vec<u8>>,
        asked: usize,
    }

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.asked += 1;
            let Some(mut piece) = self.pieces.pop_front() else { return Poll::Pending };
            let rest = piece.split_off(piece.len().min(buf.remaining()));
            buf.put_slice(&piece);
            if !rest.is_empty() {
                self.pieces.push_front(rest);
            }
            Poll::Ready(Ok(()))
        }
    }

    /// All that comes of a stream of these pieces, read so many bytes at a time, until it has nothing.
    fn drain(pieces: Vec<Vec<u8>>, at_a_time: usize) -> (Vec<u8>, ReadAhead<Pieces>) {
        let mut stream = ReadAhead::new(Pieces { pieces: pieces.into(), asked: 0 });
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut all = Vec::new();
        loop {
            let mut buf = vec![0; at_a_time];
            let mut buf = ReadBuf::new(&mut buf);
            match Pin::new(&mut stream).poll_read(&mut cx, &mut buf) {
                Poll::Ready(result) => result.unwrap(),
                Poll::Pending => return (all, stream),
            }
            all.extend_from_slice(buf.filled());
        }
    }

    /// Whatever the pieces are, their bytes come in order, and nothing is held when all have come.
    #[test]
    fn nothing_is_lost() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let pieces: Vec<Vec<u8>> = (0..random.usize(1..20))
                .map(|_| {
                    let len = 1 << random.u32(0..18);
                    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
                })
                .collect();
            let (all, stream) = drain(pieces.clone(), 1 << random.u32(0..15));
            assert_eq!(all, pieces.concat());
            assert_eq!(stream.ahead.capacity(), 0);
        }
    }

    #[test]
    fn few_reads_in_a_flood() {
        let (all, stream) = drain(vec![vec![7; 1 << 20]], 4096);
        assert_eq!((all.len(), stream.ahead.capacity()), (1 << 20, 0));
        assert!(stream.stream.asked <= 20, "{}", stream.stream.asked);
        let (_, stream) = drain(vec![vec![7; 100]; 10], 4096);
        assert_eq!(stream.stream.asked, 11, "small messages are read as they are");
    }
}
