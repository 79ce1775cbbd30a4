//! The Rust client, and beside it a loop over tokio-tungstenite that does the same reads and writes and nothing else: what a
//! client costs is what it takes beyond that. Each runs in a process of its own, on one thread unless told.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _, stream};
use nolag_core::Client;
use nolag_core::options::Qos;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Bytes, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::stand_in::PAYLOAD;
use crate::process;
use crate::wire::{skim, text};

/// Publishes that wait for their answer at a time: as many as the client has in flight unless told otherwise.
const WINDOW: usize = 64;
/// Messages that are taken before what they are answered with is written, as in the client.
const MAX_TURN: usize = 256;
/// What is read at a time, in bytes: as much as the client reads of a flood.
const BUFFER: usize = 64 * 1024;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Who works
    who: Who,
    /// What is done
    work: RustWork,
    /// `HOST:PORT` of the stand-in
    #[arg(long)]
    address: String,
    /// Messages
    #[arg(long)]
    count: usize,
    /// On as many threads as there are cores, instead of one
    #[arg(long)]
    threads: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Who {
    Client,
    Bare,
}

impl Who {
    /// The name of the value on a command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Bare => "bare",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RustWork {
    Receive,
    ReceiveAcked,
    /// Nobody waits for an answer, and none comes.
    PublishWritten,
    /// 64 wait for their answer at a time.
    PublishAwaited,
}

impl RustWork {
    /// The name of the value on a command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::ReceiveAcked => "receive-acked",
            Self::PublishWritten => "publish-written",
            Self::PublishAwaited => "publish-awaited",
        }
    }

    fn flood(self, count: usize) -> String {
        let kind = if self == Self::ReceiveAcked { "flood-acked" } else { "flood" };
        format!("bench/{count}/{kind}")
    }
}

/// Works, and prints how fast that was.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut runtime = if args.threads {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let watch = runtime.enable_all().build()?.block_on(async {
        match args.who {
            Who::Client => client(args).await,
            Who::Bare => bare(args).await,
        }
    })?;
    let (time, cpu) = watch;
    let figures = HashMap::from([
        ("per_s", args.count as f64 / time.as_secs_f64()),
        ("cpu_us", cpu.as_secs_f64() * 1e6 / args.count as f64),
    ]);
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

/// Time and CPU time since a moment.
struct Watch(Instant, Duration);

impl Watch {
    fn start() -> Result<Self> {
        Ok(Self(Instant::now(), process::cpu("self")?))
    }

    fn stop(&self) -> Result<(Duration, Duration)> {
        Ok((self.0.elapsed(), process::cpu("self")?.saturating_sub(self.1)))
    }
}

async fn client(args: &Args) -> Result<(Duration, Duration)> {
    let client = Client::builder("bench").url(format!("ws://{}", args.address)).build()?;
    client.connect().await?;
    let data = "x".repeat(PAYLOAD);
    let spent = match args.work {
        RustWork::Receive | RustWork::ReceiveAcked => {
            let mut messages = client.subscribe(&args.work.flood(args.count)).await?;
            let watch = Watch::start()?;
            for _ in 0..args.count {
                black_box(messages.next().await.context("the subscription ended")??);
            }
            watch.stop()?
        }
        RustWork::PublishWritten | RustWork::PublishAwaited => {
            let qos = if args.work == RustWork::PublishWritten { Qos::AtMostOnce } else { Qos::AtLeastOnce };
            let watch = Watch::start()?;
            let mut publishes = stream::iter(0..args.count)
                .map(|_| client.publish("bench/room/sink", &data).qos(qos).into_future())
                .buffer_unordered(WINDOW);
            while let Some(receipt) = publishes.next().await {
                black_box(receipt?);
            }
            drop(publishes);
            watch.stop()?
        }
    };
    client.close().await?;
    Ok(spent)
}

type Socket = WebSocketStream<TcpStream>;

async fn bare(args: &Args) -> Result<(Duration, Duration)> {
    let stream = TcpStream::connect(&args.address).await?;
    stream.set_nodelay(true)?;
    let config = WebSocketConfig::default().read_buffer_size(BUFFER).write_buffer_size(BUFFER);
    let url = format!("ws://{}/ws", args.address);
    let (mut socket, _) = client_async_with_config(url, stream, Some(config)).await?;
    socket.send(frame(&[("type", "auth"), ("token", "bench")])?).await?;
    next(&mut socket).await?;
    let spent = match args.work {
        RustWork::Receive | RustWork::ReceiveAcked => {
            let topic = args.work.flood(args.count);
            socket.send(frame(&[("type", "subscribe"), ("topic", &topic)])?).await?;
            next(&mut socket).await?;
            let watch = Watch::start()?;
            let acked = args.work == RustWork::ReceiveAcked;
            receive(&mut socket, args.count, acked).await?;
            watch.stop()?
        }
        RustWork::PublishWritten | RustWork::PublishAwaited => {
            let watch = Watch::start()?;
            let awaited = args.work == RustWork::PublishAwaited;
            publish(&mut socket, args.count, awaited).await?;
            watch.stop()?
        }
    };
    socket.close(None).await?;
    Ok(spent)
}

/// Takes what is ready, and answers it with one frame.
async fn receive(socket: &mut Socket, count: usize, acked: bool) -> Result<()> {
    let mut received = 0;
    while received < count {
        let mut ready = vec![next(socket).await?];
        while ready.len() < MAX_TURN
            && let Some(message) = next(socket).now_or_never()
        {
            ready.push(message?);
        }
        received += ready.len();
        if acked {
            let mut ids = Vec::with_capacity(ready.len());
            for message in &ready {
                ids.push(std::str::from_utf8(skim(message).context("a frame that is no map")?.id)?);
            }
            let mut batch = Vec::new();
            rmp::encode::write_map_len(&mut batch, 2)?;
            text(&mut batch, "type", "batchAck")?;
            rmp::encode::write_str(&mut batch, "msgIds")?;
            rmp::encode::write_array_len(&mut batch, u32::try_from(ids.len())?)?;
            for id in ids {
                rmp::encode::write_str(&mut batch, id)?;
            }
            socket.send(Message::binary(batch)).await?;
        }
        black_box(ready);
    }
    Ok(())
}

/// Writes as many as may be in flight with one flush; takes what is ready.
async fn publish(socket: &mut Socket, count: usize, awaited: bool) -> Result<()> {
    let data = "x".repeat(PAYLOAD);
    let mut sent = 0;
    let mut in_flight = 0;
    while sent < count || in_flight > 0 {
        while in_flight < WINDOW && sent < count {
            let reference = format!("{sent:016x}");
            let pairs =
                [("type", "publish"), ("topic", "bench/room/sink"), ("data", &data), ("msgRef", &reference)];
            socket.feed(frame(if awaited { &pairs } else { &pairs[..3] })?).await?;
            sent += 1;
            in_flight += 1;
        }
        socket.flush().await?;
        if !awaited {
            in_flight = 0;
            continue;
        }
        black_box(next(socket).await?);
        in_flight -= 1;
        while in_flight > 0
            && let Some(message) = next(socket).now_or_never()
        {
            black_box(message?);
            in_flight -= 1;
        }
    }
    Ok(())
}

async fn next(socket: &mut Socket) -> Result<Bytes> {
    match socket.next().await.context("the connection was closed")?? {
        Message::Binary(frame) => Ok(frame),
        other => bail!("not a frame: {other:?}"),
    }
}

fn frame(pairs: &[(&str, &str)]) -> Result<Message> {
    let mut frame = Vec::new();
    rmp::encode::write_map_len(&mut frame, u32::try_from(pairs.len())?)?;
    for (key, value) in pairs {
        text(&mut frame, key, value)?;
    }
    Ok(Message::binary(frame))
}
