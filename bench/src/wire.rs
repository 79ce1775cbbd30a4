//! The protocol as far as generators and stand-ins need it, and by hand: what makes the load shares the cores with what is
//! measured, so it must cost less. Frames are skimmed, never decoded.

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};

/// How long any answer may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// How far a connection's buffer grows for the sake of fewer reads, in bytes.
const LARGEST_READ: usize = 32 * 1024;

/// What of a frame is looked at.
#[derive(Default)]
pub(crate) struct Frame<'a> {
    /// The frame's `type`.
    pub(crate) kind: &'a [u8],
    /// `data`, where it is text.
    pub(crate) data: &'a [u8],
    /// `error`.
    pub(crate) error: &'a [u8],
    /// `topic`.
    pub(crate) topic: &'a [u8],
    /// `msgRef`.
    pub(crate) reference: &'a [u8],
    /// `msgId`.
    pub(crate) id: &'a [u8],
    /// How many `msgIds` there are.
    pub(crate) ids: usize,
    /// The WebSocket message that it came in, header included.
    pub(crate) raw: &'a [u8],
}

/// A connection to a broker.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The bytes of `buffer` that hold what has come and is not yet handled.
    filled: usize,
}

impl Connection {
    /// Connects, and nothing more.
    pub(crate) async fn plain(address: &str) -> Result<Self> {
        let stream =
            TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 512], filled: 0 })
    }

    /// Connects, upgrades to a WebSocket and authenticates.
    pub(crate) async fn login(address: &str, token: &str) -> Result<Self> {
        let mut connection = Self::plain(address).await?;
        let upgrade = format!(
            "GET /ws HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        connection.send(upgrade.as_bytes()).await?;
        timeout(PATIENCE, connection.upgraded()).await.context("the upgrade took too long")??;

        let mut auth = Vec::new();
        rmp::encode::write_map_len(&mut auth, 3)?;
        text(&mut auth, "type", "auth")?;
        text(&mut auth, "token", token)?;
        rmp::encode::write_str(&mut auth, "protocolVersion")?;
        rmp::encode::write_uint(&mut auth, 2)?;
        connection.send(&message(&auth)).await?;
        connection.expect(b"auth", 1).await?;
        Ok(connection)
    }

    /// Subscribes to topics and waits until all are confirmed.
    pub(crate) async fn subscribe(&mut self, topics: impl IntoIterator<Item = String>) -> Result<()> {
        let mut requests = Vec::new();
        let mut count = 0;
        for topic in topics {
            let mut frame = Vec::new();
            rmp::encode::write_map_len(&mut frame, 2)?;
            text(&mut frame, "type", "subscribe")?;
            text(&mut frame, "topic", &topic)?;
            requests.extend(message(&frame));
            count += 1;
        }
        self.send(&requests).await?;
        self.expect(b"subscribed", count).await
    }

    /// Sends bytes as they are: whole WebSocket messages.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        timeout(PATIENCE, self.stream.write_all(bytes)).await.context("the broker stopped reading")??;
        Ok(())
    }

    /// Waits for something to come, and hands over the frames that are complete. Safe to drop while waiting.
    pub(crate) async fn receive(&mut self, mut each: impl FnMut(Frame<'_>)) -> Result<()> {
        let read = self.stream.read(&mut self.buffer[self.filled..]).await?;
        if read == 0 {
            bail!("the connection was closed");
        }
        self.filled += read;
        let full = self.filled == self.buffer.len();
        let mut rest = &self.buffer[..self.filled];
        while let Some((header, length)) = header(rest) {
            let Some(raw) = rest.get(..header + length) else { break };
            match raw[0] & 0x0f {
                2 if length == 0 => {} // a heartbeat's echo
                2 => each(Frame { raw, ..skim(&raw[header..]).context("a frame that is no map")? }),
                8 => bail!(
                    "closed by the broker: {}",
                    String::from_utf8_lossy(raw.get(header + 2..).unwrap_or(&[]))
                ),
                _ => {}
            }
            rest = &rest[header + length..];
        }
        let left = rest.len();
        self.buffer.copy_within(self.filled - left..self.filled, 0);
        self.filled = left;
        // Who hears much reads much at a time; idle connections by the thousand stay small.
        if left == self.buffer.len() || full && self.buffer.len() < LARGEST_READ {
            self.buffer.resize(self.buffer.len() * 4, 0);
        }
        Ok(())
    }

    async fn upgraded(&mut self) -> Result<()> {
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(self.stream.read_u8().await?);
        }
        if !answer.starts_with(b"HTTP/1.1 101") {
            bail!("no upgrade: {}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    }

    /// Waits for `count` frames of one kind; an `error` instead is an error.
    async fn expect(&mut self, kind: &[u8], count: usize) -> Result<()> {
        let mut seen = 0;
        let mut refused = None;
        while seen < count {
            let frame = |frame: Frame<'_>| {
                if !frame.error.is_empty() {
                    refused = Some(String::from_utf8_lossy(frame.error).into_owned());
                } else if frame.kind == kind {
                    seen += 1;
                }
            };
            let what = || format!("no {} came", String::from_utf8_lossy(kind));
            timeout(PATIENCE, self.receive(frame)).await.with_context(what)??;
            if let Some(refused) = refused {
                bail!("the broker refuses: {refused}");
            }
        }
        Ok(())
    }
}

/// A `publish` that asks for `published`, as a ready WebSocket message, and where in it the first byte of `data` lies.
pub(crate) fn publish(topic: &str, data: &str) -> Result<(Vec<u8>, usize)> {
    let mut frame = Vec::new();
    rmp::encode::write_map_len(&mut frame, 4)?;
    text(&mut frame, "type", "publish")?;
    text(&mut frame, "topic", topic)?;
    text(&mut frame, "data", data)?;
    let behind_data = frame.len();
    text(&mut frame, "msgRef", "r")?;
    let message = message(&frame);
    let at = message.len() - frame.len() + behind_data - data.len();
    Ok((message, at))
}

/// Appends one pair of text.
pub(crate) fn text(out: &mut Vec<u8>, key: &str, value: &str) -> Result<()> {
    rmp::encode::write_str(out, key)?;
    Ok(rmp::encode::write_str(out, value)?)
}

/// A binary WebSocket message of a client. The mask is zero: legal, and the payload stays as it is.
fn message(payload: &[u8]) -> Vec<u8> {
    let mut message = vec![0x82];
    match payload.len() {
        length @ 0..126 => message.push(0x80 | u8::try_from(length).expect("below 126")),
        length => {
            message.push(0xfe);
            message.extend(u16::try_from(length).expect("the generator sends small frames").to_be_bytes());
        }
    }
    message.extend([0; 4]);
    message.extend(payload);
    message
}

/// The lengths of a WebSocket header, its mask not counted, and of the payload, once the header is there.
pub(crate) fn header(bytes: &[u8]) -> Option<(usize, usize)> {
    match bytes.get(1)? & 0x7f {
        126 => Some((4, number(bytes.get(2..4)?))),
        127 => Some((10, number(bytes.get(2..10)?))),
        length => Some((2, length.into())),
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, &byte| number << 8 | usize::from(byte))
}

/// Picks what [`Frame`] wants out of a MessagePack map.
pub(crate) fn skim(map: &[u8]) -> Option<Frame<'_>> {
    let mut rest = map;
    let Item::Nested(entries) = item(&mut rest)? else { return None };
    let mut frame = Frame::default();
    for _ in 0..entries / 2 {
        let Item::Text(key) = item(&mut rest)? else { return None };
        let value = item(&mut rest)?;
        match (key, &value) {
            (b"type", Item::Text(text)) => frame.kind = text,
            (b"data", Item::Text(text)) => frame.data = text,
            (b"error", Item::Text(text)) => frame.error = text,
            (b"topic", Item::Text(text)) => frame.topic = text,
            (b"msgRef", Item::Text(text)) => frame.reference = text,
            (b"msgId", Item::Text(text)) => frame.id = text,
            (b"msgIds", Item::Nested(ids)) => frame.ids = *ids,
            _ => {}
        }
        let mut open = value.items();
        while open > 0 {
            open += item(&mut rest)?.items();
            open -= 1;
        }
    }
    Some(frame)
}

/// One MessagePack item: a whole scalar, or the head of something that holds others.
enum Item<'a> {
    /// `str` or `bin`.
    Text(&'a [u8]),
    /// An array or map with so many items behind its head.
    Nested(usize),
    Other,
}

impl Item<'_> {
    fn items(&self) -> usize {
        if let Item::Nested(items) = self { *items } else { 0 }
    }
}

fn item<'a>(rest: &mut &'a [u8]) -> Option<Item<'a>> {
    let mut take = |length: usize| {
        let (taken, left) = rest.split_at_checked(length)?;
        *rest = left;
        Some(taken)
    };
    let head = take(1)?[0];
    Some(match head {
        0x80..=0x8f => Item::Nested(usize::from(head & 0x0f) * 2),
        0x90..=0x9f => Item::Nested(usize::from(head & 0x0f)),
        0xa0..=0xbf => Item::Text(take(usize::from(head & 0x1f))?),
        // Long headers of bin, ext, str, array and map: the length in 1, 2 or 4 bytes.
        0xc4..=0xc6 => Item::Text({
            let length = number(take(1 << (head - 0xc4))?);
            take(length)?
        }),
        0xd9..=0xdb => Item::Text({
            let length = number(take(1 << (head - 0xd9))?);
            take(length)?
        }),
        0xc7..=0xc9 => {
            let length = number(take(1 << (head - 0xc7))?);
            take(length + 1)?;
            Item::Other
        }
        0xdc | 0xdd => Item::Nested(number(take(2 << (head - 0xdc))?)),
        0xde | 0xdf => Item::Nested(number(take(2 << (head - 0xde))?) * 2),
        // Numbers and fixed ext: what follows has a length of its own.
        0xca..=0xd8 => {
            take(match head {
                0xcc | 0xd0 => 1,
                0xcd | 0xd1 | 0xd4 => 2,
                0xd5 => 3,
                0xca | 0xce | 0xd2 => 4,
                0xd6 => 5,
                0xd7 => 9,
                0xd8 => 17,
                _ => 8,
            })?;
            Item::Other
        }
        _ => Item::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::{header, message, publish, skim};

    #[test]
    fn skimming_finds_the_fields_between_others() {
        let mut frame = vec![0x85];
        frame.extend(b"\xa4skip\x92\xcd\x01\x02\x81\xa1k\xc0");
        frame.extend(b"\xa4type\xa7message");
        frame.extend(b"\xa1n\xcb\x3f\xf0\0\0\0\0\0\0");
        frame.extend(b"\xa4data\xd9\x05hello");
        frame.extend(b"\xa3ext\xc7\x02\x01ab");
        let skimmed = skim(&frame).expect("it is a map");
        assert_eq!((skimmed.kind, skimmed.data), (&b"message"[..], &b"hello"[..]));
        assert!(skim(&frame[..frame.len() - 1]).is_none(), "cut short");
    }

    #[test]
    fn headers_of_each_length() {
        assert_eq!(header(&[0x82, 125]), Some((2, 125)));
        assert_eq!(header(&[0x82, 126, 1]), None);
        assert_eq!(header(&[0x82, 126, 1, 2]), Some((4, 258)));
        assert_eq!(message(&[7; 200])[..4], [0x82, 0xfe, 0, 200]);
    }

    #[test]
    fn a_publish_tells_where_its_data_lies() {
        let (message, at) = publish("a/b/c", "0123456789").expect("it fits");
        assert_eq!(&message[at..at + 10], b"0123456789");
    }
}
