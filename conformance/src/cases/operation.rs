//! The process: health, start, shutdown, and consumers that do not read (wire protocol 9, 22, 25).

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rmpv::Value;
use tokio::net::{TcpSocket, lookup_host};

use crate::broker::Launch;
use crate::client::{Client, Incoming, patiently};
use crate::http;
use crate::suite::{Case, Context, Needs, case};
use crate::wire::{frame, get, holds, list};

pub(super) fn cases() -> Vec<Case> {
    use Needs::{Broker, Nothing};
    vec![
        case!("C-110", Both, Nothing, "answers /health with 200 and {\"status\":\"ok\"}", health),
        case!(
            "C-125",
            Extended,
            Broker,
            "on SIGTERM sends disconnect, closes with 1012, exits in time",
            shutdown
        ),
        case!(
            "C-126",
            Extended,
            Broker,
            "closes a consumer whose backlog exceeds the limit with 4008",
            slow_consumer
        ),
        case!("C-128", Both, Broker, "starts with every variable that kraken documents", kraken_variables),
    ]
}

/// C-110: with any method.
async fn health(context: Context) -> Result<()> {
    for method in ["GET", "POST", "HEAD", "PUT", "DELETE"] {
        let (head, body) = patiently("answer", http::request(&context.address, method, "/health")).await??;
        ensure!(head.status == 200, "{method} /health was answered with {}", head.status);
        if method == "HEAD" {
            continue;
        }
        let json: serde_json::Value =
            serde_json::from_slice(&body).with_context(|| format!("{method} /health is no JSON"))?;
        ensure!(json == serde_json::json!({"status": "ok"}), "{method} /health was answered with {json}");
        let kind = head.header("content-type").unwrap_or_default();
        ensure!(kind.starts_with("application/json"), "{method} /health has the content type `{kind}`");
    }
    Ok(())
}

/// A TCP stream that takes in little before its owner reads.
async fn narrow_stream(at: &http::Address) -> Result<tokio::net::TcpStream> {
    let address = lookup_host(&at.authority).await?.next().context("no address")?;
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_recv_buffer_size(16 * 1024)?;
    Ok(socket.connect(address).await?)
}

/// C-125: X-17. Among the peers is one that never authenticated, one that answers nothing, and one that does not even
/// read; none of them holds the broker up.
async fn shutdown(context: Context) -> Result<()> {
    const GRACE: Duration = Duration::from_secs(2);
    let mut broker = context.start(Launch::demo().set("SHUTDOWN_GRACE_MS", GRACE)).await?;
    let mut clients = vec![broker.connect("dev-token-alice").await?, broker.connect("dev-token-bob").await?];
    clients[0].subscribe("demo/general/x").await?;
    let mut stranger = broker.open().await?;
    let deaf =
        Client::open_on(narrow_stream(&broker.address).await?, &broker.address, context.observed.clone())
            .await?;
    let mut deaf = deaf.authenticated("dev-token-bob").await?;
    deaf.subscribe("demo/general/x").await?;
    let unfinished = broker.address.dial().await?;
    for at in 0..20 {
        clients[1].publish("demo/general/x", list![at, "x".repeat(50_000)]).await?;
    }
    let began = Instant::now();
    broker.terminate().await?;
    for client in &mut clients {
        let (frames, code, reason) = client.closed().await?;
        ensure!((code, reason.as_str()) == (1012, "draining"), "closed with {code} `{reason}`");
        let last = frames.last().context("no disconnect frame before the close")?;
        holds(last, &frame! {"type" => "disconnect", "reason" => "draining"})?;
        ensure!(get(last, "retryAfterMs").is_none_or(Value::is_u64), "retryAfterMs is no number");
        // What was accepted before is delivered before the end.
        let messages = frames.len() - 1;
        ensure!(messages == 0 || messages == 20, "{messages} of 20 messages came before the close");
    }
    let (_, code, _) = stranger.closed().await.context("a connection without authentication")?;
    ensure!(code == 1012, "a connection without authentication was closed with {code}");
    let late = async {
        let mut client = broker.open().await?;
        client.auth("dev-token-alice").await
    };
    ensure!(late.await.is_err(), "a connection was accepted after SIGTERM");
    let status = broker.ended().await?;
    let took = began.elapsed();
    ensure!(
        took <= GRACE + Duration::from_secs(1),
        "the process ended {took:?} after SIGTERM, {GRACE:?} being allowed"
    );
    ensure!(status.success(), "the process ended with {status}");
    drop((deaf, unfinished));
    Ok(())
}

/// C-126: X-21. 20 MB go to a consumer that does not read and may have a backlog of 1 MiB; one that reads gets all of it
/// in order, and the publisher gets its replies. Then the first one reads, up to its close frame.
async fn slow_consumer(context: Context) -> Result<()> {
    const COUNT: u64 = 320;
    let launch = Launch::demo().set("MAX_OUTBOUND_BYTES", 1_048_576).set("PUBLISH_RATE_LIMIT", 0);
    let mut broker = context.start(launch).await?;
    let topic = "demo/general/slow";
    let stream = narrow_stream(&broker.address).await?;
    let slow = Client::open_on(stream, &broker.address, context.observed.clone()).await?;
    let mut slow = slow.authenticated("dev-token-bob").await?;
    slow.subscribe(topic).await?;
    let mut healthy = broker.connect("dev-token-bob").await?;
    healthy.subscribe(topic).await?;
    let mut publisher = broker.connect("dev-token-alice").await?;
    let pad = "x".repeat(64 * 1024);

    let publishing = async {
        for at in 0..COUNT {
            publisher
                .publish(topic, list![at, pad.as_str()])
                .await
                .with_context(|| format!("publish {at}"))?;
        }
        anyhow::Ok(())
    };
    let reading = async {
        for at in 0..COUNT {
            let message = healthy.expect(frame! {"type" => "message", "topic" => topic}).await?;
            let number = get(&message, "data").and_then(|data| data[0].as_u64());
            ensure!(number == Some(at), "the consumer that reads received {number:?} as number {at}");
        }
        anyhow::Ok(())
    };
    let (published, read) = tokio::join!(publishing, reading);
    published.context("the publisher, while a consumer does not read")?;
    read.context("the consumer that reads")?;

    let mut received = 0;
    loop {
        match slow.next().await? {
            Incoming::Frame(frame) if crate::wire::kind(&frame) == "message" => received += 1,
            Incoming::Frame(frame) => {
                holds(&frame, &frame! {"type" => "disconnect", "reason" => "slow_consumer"})?;
            }
            Incoming::Closed { code, reason } => {
                ensure!((code, reason.as_str()) == (4008, "slow_consumer"), "closed with {code} `{reason}`");
                break;
            }
            other => anyhow::bail!(
                "after {received} messages the slow consumer got {other:?} instead of a close frame"
            ),
        }
    }
    ensure!(received < COUNT, "the slow consumer received everything after all");
    broker.alive()?;
    publisher.publish(topic, "after").await?;
    healthy.one_message(frame! {"data" => "after"}).await?;
    Ok(())
}

/// C-128: the table of chapter 25, with kraken's values; those that mean nothing here may cause a warning.
async fn kraken_variables(context: Context) -> Result<()> {
    let variables = [
        ("AUTH_BACKEND", "static"),
        ("AUTH_ALLOW_ALL", "false"),
        ("AUTH_HTTP_URL", ""),
        ("CONTROL_HTTP_URL", ""),
        ("BACKEND_SECRET", "secret"),
        ("BROKER_BACKEND", "syn"),
        ("STORE_BACKEND", "ets"),
        ("STORE_TTL_SECONDS", "3600"),
        ("STORE_MAX_MESSAGES", "10000"),
        ("RECORD_MESSAGES", "true"),
        ("CONTROL_BACKEND", "noop"),
        ("MAX_MESSAGE_SIZE", "921600"),
        ("INTERNAL_SECRET", "change_me"),
        ("MQTT_BROKER_HOST", "localhost"),
        ("MQTT_BROKER_PORT", "1884"),
        ("MQTT_BROKER_USERNAME", "kraken"),
        ("MQTT_BROKER_PASSWORD", "kraken"),
        ("CLUSTER_ENABLED", "false"),
        ("CLUSTER_STRATEGY", "gossip"),
        ("CLUSTER_NODES", ""),
        ("ERLANG_NODE_NAME", "kraken@127.0.0.1"),
        ("ERLANG_COOKIE", "cookie"),
    ];
    // `BROKER_BACKEND=memory` is the other name of the built-in fan-out.
    for backend in ["syn", "memory"] {
        let launch = variables.iter().fold(Launch::demo(), |launch, (name, value)| launch.set(name, *value));
        let mut broker = context.start(launch.set("BROKER_BACKEND", backend)).await?;
        let mut client = broker.connect("dev-token-alice").await?;
        client.subscribe("demo/general/x").await?;
        client.publish("demo/general/x", 1).await?;
        client.one_message(frame! {"data" => 1}).await?;
        broker.alive()?;
        let output = broker.output().to_lowercase();
        ensure!(!output.contains("error") && !output.contains("panicked"), "the broker complained: {output}");
    }
    Ok(())
}
