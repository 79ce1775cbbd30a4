//! A broker that knows no rules and no grants, and is faster than any client: what clients are measured against when they are
//! to be measured alone. What one read brought is answered by one write.
//!
//! | a client sends | it gets |
//! | --- | --- |
//! | `auth` | success, with `limits` that name no rate, and no feature |
//! | `subscribe` | `subscribed`; behind it, if the topic ends in `/COUNT/flood`, COUNT messages as fast as they are taken |
//! | the same, `/COUNT/flood-acked` | messages with an id, for which an acknowledgement is asked |
//! | `publish` | `published`, if it has a `msgRef`; the message, if its topic is subscribed |
//! | an empty frame | an empty frame |
//!
//! What it has been sent is counted: for each line on standard input it answers `PUBLISHES ACKNOWLEDGEMENTS`.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail};
use tokio::process::Command;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::process::Process;
use crate::wire::{Frame, header, skim, text};

/// Bytes of the payload of every message of a flood.
pub(super) const PAYLOAD: usize = 100;
/// Bytes that one read may bring.
const READ: usize = 256 * 1024;
/// Bytes of a flood that one write takes, or a little more.
const WRITE: usize = 64 * 1024;
/// An id as brokers give them; its first digits count.
const ID: &str = "00000000-0000-4000-8000-000000000000";
/// The digits that count.
const DIGITS: usize = 8;

/// What clients have sent.
#[derive(Default)]
struct Counts {
    publishes: AtomicU64,
    acks: AtomicU64,
}

/// Starts it in a process of its own, on a free port.
pub(super) async fn start() -> Result<StandIn> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("stand-in");
    Ok(StandIn { process: Process::start(command).await?, publishes: 0, acks: 0 })
}

/// The running process.
pub(super) struct StandIn {
    pub(super) process: Process,
    publishes: u64,
    acks: u64,
}

impl StandIn {
    /// Publishes and acknowledgements since the last time it was asked.
    pub(super) async fn counted(&mut self) -> Result<(u64, u64)> {
        let answer = self.process.ask("counts").await?;
        let (publishes, acks) = answer.split_once(' ').context("expected: PUBLISHES ACKNOWLEDGEMENTS")?;
        let (publishes, acks) = (publishes.parse::<u64>()?, acks.parse::<u64>()?);
        let new = (publishes - self.publishes, acks - self.acks);
        (self.publishes, self.acks) = (publishes, acks);
        Ok(new)
    }
}

/// What that process does.
pub(crate) fn serve() -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("listening on {}", listener.local_addr()?);
    let counts = Arc::new(Counts::default());
    let shared = counts.clone();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let counts = shared.clone();
            thread::spawn(move || {
                // A client that goes, however it goes, is none of our business; one that we cannot follow is.
                if let Err(error) = Connection::open(stream).and_then(|connection| connection.run(&counts))
                    && !error.is::<std::io::Error>()
                {
                    eprintln!("stand-in: {error:#}");
                }
            });
        }
    });
    for line in std::io::stdin().lock().lines() {
        line?;
        println!("{} {}", counts.publishes.load(Relaxed), counts.acks.load(Relaxed));
    }
    Ok(())
}

struct Connection {
    stream: TcpStream,
    /// Shared with the flood, so that each writes whole messages.
    writer: Arc<Mutex<TcpStream>>,
    /// Few.
    subscribed: Vec<Vec<u8>>,
    /// A reply in the making.
    reply: Vec<u8>,
}

impl Connection {
    /// Upgrades.
    fn open(mut stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            request.extend(byte);
        }
        let request = String::from_utf8_lossy(&request);
        let key = request
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find_map(|(name, value)| name.eq_ignore_ascii_case("sec-websocket-key").then_some(value))
            .context("an upgrade without a key")?;
        let accept = derive_accept_key(key.as_bytes());
        write!(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        )?;
        let writer = Arc::new(Mutex::new(stream.try_clone()?));
        Ok(Self { stream, writer, subscribed: Vec::new(), reply: Vec::new() })
    }

    fn run(mut self, counts: &Counts) -> Result<()> {
        let mut buffer = vec![0; READ];
        let mut filled = 0;
        let mut out = Vec::new();
        loop {
            let read = self.stream.read(&mut buffer[filled..])?;
            if read == 0 {
                return Ok(());
            }
            filled += read;
            let mut flood = None;
            let mut at = 0;
            while let Some(message) = unmask(&mut buffer[at..filled])? {
                let opcode = buffer[at] & 0x0f;
                let payload = &buffer[at + message.start..at + message.end];
                match opcode {
                    2 if payload.is_empty() => out.extend(b"\x82\0"),
                    2 => {
                        let frame = skim(payload).context("a frame that is no map")?;
                        flood = self.answer(&frame, &mut out, counts)?.or(flood);
                    }
                    8 => {
                        out.extend(b"\x88\x02\x03\xe8");
                        return self.write(&out);
                    }
                    9 => message_into(&mut out, 0x8a, payload),
                    10 => {}
                    other => bail!("a message of the kind {other}"),
                }
                at += message.end;
            }
            buffer.copy_within(at..filled, 0);
            filled -= at;
            if !out.is_empty() {
                self.write(&out)?;
                out.clear();
            }
            if let Some(flood) = flood {
                let writer = self.writer.clone();
                // What the client sends meanwhile is read here.
                thread::spawn(move || flood.run(&writer));
            }
        }
    }

    fn answer(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>, counts: &Counts) -> Result<Option<Flood>> {
        self.reply.clear();
        let reply = &mut self.reply;
        match frame.kind {
            b"auth" => {
                rmp::encode::write_map_len(reply, 8)?;
                text(reply, "type", "auth")?;
                rmp::encode::write_str(reply, "success")?;
                rmp::encode::write_bool(reply, true)?;
                text(reply, "actorTokenId", "stand-in")?;
                text(reply, "actorType", "user")?;
                text(reply, "projectId", "bench")?;
                rmp::encode::write_str(reply, "protocolVersion")?;
                rmp::encode::write_pfix(reply, 2)?;
                rmp::encode::write_str(reply, "restoredSubscriptions")?;
                rmp::encode::write_array_len(reply, 0)?;
                // Told, and no rate among them: nobody need pace.
                rmp::encode::write_str(reply, "limits")?;
                rmp::encode::write_map_len(reply, 0)?;
            }
            b"subscribe" => {
                self.subscribed.push(frame.topic.to_vec());
                confirmation("subscribed", frame, reply)?;
                message_into(out, 0x82, reply);
                return Flood::asked_for(std::str::from_utf8(frame.topic)?);
            }
            b"unsubscribe" => {
                self.subscribed.retain(|topic| topic != frame.topic);
                confirmation("unsubscribed", frame, reply)?;
            }
            b"publish" => {
                counts.publishes.fetch_add(1, Relaxed);
                if self.subscribed.iter().any(|topic| topic == frame.topic) {
                    let (topic, data) = (std::str::from_utf8(frame.topic)?, std::str::from_utf8(frame.data)?);
                    message_into(out, 0x82, &message(topic, data, false)?);
                }
                if frame.reference.is_empty() {
                    return Ok(None);
                }
                confirmation("published", frame, reply)?;
            }
            b"ack" => {
                counts.acks.fetch_add(1, Relaxed);
                return Ok(None);
            }
            b"batchAck" => {
                counts.acks.fetch_add(frame.ids as u64, Relaxed);
                return Ok(None);
            }
            other => bail!("a frame of the type {:?}", String::from_utf8_lossy(other)),
        }
        message_into(out, 0x82, reply);
        Ok(None)
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        Ok(self.writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes)?)
    }
}

/// Messages that are written as fast as they are taken.
struct Flood {
    message: Vec<u8>,
    /// Where the digits are that count, if there is an id.
    digits: Option<Range<usize>>,
    count: u64,
}

impl Flood {
    fn asked_for(topic: &str) -> Result<Option<Self>> {
        let mut levels = topic.rsplit('/');
        let acked = match levels.next() {
            Some("flood") => false,
            Some("flood-acked") => true,
            _ => return Ok(None),
        };
        let count = levels.next().and_then(|count| count.parse().ok()).context("a flood without a count")?;
        let frame = message(topic, &"x".repeat(PAYLOAD), acked)?;
        let mut bytes = Vec::new();
        message_into(&mut bytes, 0x82, &frame);
        let id = bytes.windows(ID.len()).position(|bytes| bytes == ID.as_bytes());
        Ok(Some(Self { message: bytes, digits: id.map(|at| at..at + DIGITS), count }))
    }

    fn run(mut self, writer: &Mutex<TcpStream>) {
        let mut chunk = Vec::with_capacity(WRITE + self.message.len());
        for number in 1..=self.count {
            if let Some(digits) = self.digits.clone() {
                hexadecimal(number, &mut self.message[digits]);
            }
            chunk.extend_from_slice(&self.message);
            if chunk.len() >= WRITE || number == self.count {
                if writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(&chunk).is_err() {
                    return; // the client has gone
                }
                chunk.clear();
            }
        }
    }
}

/// What confirms a client's frame that names a topic.
fn confirmation(kind: &str, frame: &Frame<'_>, reply: &mut Vec<u8>) -> Result<()> {
    rmp::encode::write_map_len(reply, 2 + u32::from(!frame.reference.is_empty()))?;
    text(reply, "type", kind)?;
    text(reply, "topic", std::str::from_utf8(frame.topic)?)?;
    if !frame.reference.is_empty() {
        text(reply, "msgRef", std::str::from_utf8(frame.reference)?)?;
    }
    Ok(())
}

/// A `message`, in kraken's form.
fn message(topic: &str, data: &str, acked: bool) -> Result<Vec<u8>> {
    let mut frame = Vec::new();
    rmp::encode::write_map_len(&mut frame, if acked { 6 } else { 4 })?;
    text(&mut frame, "type", "message")?;
    text(&mut frame, "topic", topic)?;
    text(&mut frame, "data", data)?;
    text(&mut frame, "filter", "#")?;
    if acked {
        text(&mut frame, "msgId", ID)?;
        rmp::encode::write_str(&mut frame, "requiresAck")?;
        rmp::encode::write_bool(&mut frame, true)?;
    }
    Ok(frame)
}

fn hexadecimal(mut number: u64, digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

/// Appends a server's WebSocket message.
fn message_into(out: &mut Vec<u8>, head: u8, payload: &[u8]) {
    out.push(head);
    match u16::try_from(payload.len()) {
        Ok(length @ 0..126) => out.push(length.to_be_bytes()[1]),
        Ok(length) => {
            out.push(126);
            out.extend(length.to_be_bytes());
        }
        Err(_) => {
            out.push(127);
            out.extend((payload.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
}

/// Unmasks a client's first message in place, once it is there whole, and tells where its payload lies.
fn unmask(bytes: &mut [u8]) -> Result<Option<Range<usize>>> {
    let Some((start, length)) = header(bytes) else { return Ok(None) };
    if bytes[0] & 0x80 == 0 || bytes[1] & 0x80 == 0 {
        bail!("a message in fragments or without a mask");
    }
    let payload = start + 4..start + 4 + length;
    if payload.end > READ {
        bail!("a message of {length} bytes");
    }
    if bytes.len() < payload.end {
        return Ok(None);
    }
    let mask = [bytes[start], bytes[start + 1], bytes[start + 2], bytes[start + 3]];
    for four in bytes[payload.clone()].chunks_mut(4) {
        for (byte, mask) in four.iter_mut().zip(mask) {
            *byte ^= mask;
        }
    }
    Ok(Some(payload))
}

#[cfg(test)]
mod tests {
    use super::{Flood, ID, hexadecimal, message_into, unmask};
    use crate::wire::{header, skim};

    #[test]
    fn messages_are_unmasked_once_they_are_whole() {
        let mut bytes = vec![0x82, 0x85, 1, 2, 3, 4];
        bytes.extend(b"hello".iter().zip([1, 2, 3, 4, 1]).map(|(byte, mask)| byte ^ mask));
        assert!(unmask(&mut bytes[..10]).expect("it is well formed").is_none(), "cut short");
        let payload = unmask(&mut bytes).expect("it is well formed").expect("it is whole");
        assert_eq!(&bytes[payload], b"hello");
        assert!(unmask(&mut [0x82, 0x01, 7]).is_err(), "without a mask");
    }

    #[test]
    fn headers_are_as_long_as_the_payload_needs() {
        for length in [0, 125, 126, 65_535, 65_536] {
            let mut bytes = Vec::new();
            message_into(&mut bytes, 0x82, &vec![7; length]);
            let (start, told) = header(&bytes).expect("it is whole");
            assert_eq!((bytes.len() - start, told), (length, length));
        }
    }

    #[test]
    fn a_flood_counts_in_its_ids() {
        let plain = Flood::asked_for("bench/300/flood").expect("it is well formed").expect("it is a flood");
        assert!(plain.digits.is_none());
        let mut acked =
            Flood::asked_for("bench/300/flood-acked").expect("it is well formed").expect("it is a flood");
        hexadecimal(300, &mut acked.message[acked.digits.clone().expect("it has an id")]);
        let (start, _) = header(&acked.message).expect("it is whole");
        let frame = skim(&acked.message[start..]).expect("it is a map");
        assert_eq!(frame.id, ID.replacen("00000000", "0000012c", 1).as_bytes());
        assert_eq!((acked.count, frame.topic), (300, &b"bench/300/flood-acked"[..]));
        assert!(Flood::asked_for("bench/flood").is_err(), "without a count");
        assert!(Flood::asked_for("bench/300/other").expect("it is well formed").is_none());
    }
}
