//! Wrong hosts, wrong ports, wrong schemes: each failure has its code, and says what was wrong and what would be right.

#![cfg(feature = "native")]

use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nolag_core::driver::native::{Native, Url};
use nolag_core::driver::{Received, Transport as _};
use nolag_core::error::ConnectionCode;
use nolag_core::options::InitialConnect;
use nolag_core::{Client, Error};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// Soon enough for a test that waits for a peer that stays silent.
const SOON: Duration = Duration::from_millis(300);

fn native(url: &str) -> Native {
    Native::with_proxy(Url::parse(url).unwrap(), None, None).unwrap()
}

/// How a client that tries once fails.
async fn failure(native: Native) -> Error {
    let builder = Client::builder("secret-token").transport(native);
    let client = builder.options(|options| options.initial_connect = InitialConnect::Once).build().unwrap();
    client.connect().await.unwrap_err()
}

/// The failure's code, after a look at its text.
async fn fails(native: Native, says: &str) -> String {
    let error = failure(native).await;
    assert!(error.to_string().contains(says), "{error}");
    assert!(!error.to_string().contains("secret-token"), "{error}");
    error.code().to_owned()
}

/// Somebody who answers every connection's first bytes with these, and leaves.
async fn answering(answer: impl Into<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = answer.into();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await; // whoever asks may leave as well
            let _ = stream.write_all(&answer).await;
        }
    });
    address
}

#[tokio::test]
async fn nobody_there() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(fails(native(&format!("ws://{address}")), &address.to_string()).await, "refused");
    let unknown = native("ws://broker.test").resolver(Arc::new(|_, _| {
        Box::pin(async { Err(io::Error::new(io::ErrorKind::NotFound, "no such name")) })
    }));
    assert_eq!(fails(unknown, "broker.test cannot be found: no such name").await, "dns");
    let nowhere = native("ws://broker.test").resolver(Arc::new(|_, _| Box::pin(async { Ok(Vec::new()) })));
    assert_eq!(fails(nowhere, "broker.test has no address").await, "dns");
    let silent = native("ws://broker.test").resolver(Arc::new(|_, _| Box::pin(std::future::pending())));
    assert_eq!(fails(silent.timeout(SOON), "nobody says where broker.test is").await, "connect_timeout");
}

/// Whoever answers in HTTP, but not with an upgrade, is quoted with the status; a redirect with its target (point 10).
#[tokio::test]
async fn not_a_websocket() {
    for (answer, status, says) in [
        ("HTTP/1.1 200 OK\r\n\r\nhello", 200, "answers 200 OK where a WebSocket was asked for"),
        ("HTTP/1.1 404 Not Found\r\n\r\n", 404, "are host and path right?"),
        ("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\n\r\n", 503, "503 Service Unavailable"),
        ("HTTP/1.1 301 Moved\r\nLocation: https://b.test/ws\r\n\r\n", 301, "redirects to https://b.test/ws,"),
        ("HTTP/1.1 302 Found\r\n\r\n", 302, "answers 302 Found"),
        ("HTTP/1.0 403 Forbidden\r\n\r\n", 403, "answers 403 in HTTP/1.0"),
    ] {
        let url = format!("ws://{}", answering(answer).await);
        assert_eq!(fails(native(&url), says).await, "handshake_rejected");
        let failure = native(&url).open().await.err().unwrap();
        assert_eq!(failure.code, ConnectionCode::HandshakeRejected(status));
        assert_eq!(failure.retry_after, (status == 503).then_some(Duration::from_secs(7)));
    }
}

#[tokio::test]
async fn not_http() {
    let accept = derive_accept_key(b"another key");
    let wrong_key = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    for (answer, code, says) in [
        (
            &b"SSH-2.0-OpenSSH_9.6\r\n"[..],
            "protocol_error",
            "does not speak HTTP, but answers \"SSH-2.0-Open",
        ),
        (b"HTTP/1.1 101 Switch", "protocol_error", "does not speak HTTP, but answers \"HTTP/1.1 101"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "protocol_error", "speaks TLS: its url begins with wss://"),
        (b"\xff\xfe", "protocol_error", "is it the broker's port?"),
        (wrong_key.as_bytes(), "protocol_error", "does not answer as a WebSocket does"),
        (b"", "lost", "ended the connection before it answered"),
    ] {
        let address = answering(answer).await;
        assert_eq!(fails(native(&format!("ws://{address}")), says).await, code);
    }
    let endless = answering(format!("HTTP/1.1 200 OK\r\n{}", "X: y\r\n".repeat(20_000))).await;
    assert_eq!(fails(native(&format!("ws://{endless}")), "does not").await, "protocol_error");
}

/// TLS where none is spoken.
#[tokio::test]
async fn not_tls() {
    for (answer, code, says) in [
        (
            "HTTP/1.1 400 Bad Request\r\n\r\n",
            "tls",
            "does not speak TLS; a broker without TLS has a url that begins with ws://",
        ),
        ("", "lost", "ended the connection during the TLS handshake"),
    ] {
        let address = answering(answer).await;
        assert_eq!(fails(native(&format!("wss://{address}")), says).await, code);
    }
}

/// A peer that takes the connection and says nothing.
#[tokio::test]
async fn silence() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    for (scheme, says) in
        [("ws", "takes connections and does not answer"), ("wss", "does not answer the TLS handshake")]
    {
        let native = native(&format!("{scheme}://{address}")).timeout(SOON);
        assert_eq!(fails(native, says).await, "connect_timeout");
    }
}

/// What comes in one piece with the answer to the upgrade belongs to the connection.
#[tokio::test]
async fn a_frame_behind_the_upgrade() {
    const FRAMES: u64 = 5_000;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let serve = async {
        let (mut stream, _): (TcpStream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let request = String::from_utf8(request).unwrap();
        let key = request.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let accept = derive_accept_key(key.as_bytes());
        let mut answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        )
        .into_bytes();
        for number in 0..FRAMES {
            answer.extend([0x82, 8]);
            answer.extend(number.to_be_bytes());
        }
        stream.write_all(&answer).await.unwrap();
        stream
    };
    let mut native = native(&url);
    let read = async {
        let mut link = native.open().await.ok().unwrap();
        for number in 0..FRAMES {
            let frame = Received::Frame(number.to_be_bytes().to_vec().into());
            assert_eq!(poll_fn(|cx| link.poll_read(cx)).await, frame);
        }
        link
    };
    let (mut link, stream) = tokio::join!(read, serve);
    drop(stream);
    let end = poll_fn(|cx| link.poll_read(cx)).await;
    assert!(matches!(end, Received::Closed { code: None, .. }), "{end:?}");
}
