//! The HTTP side of the port: health, readiness, metrics, and the upgrade to WebSocket (wire protocol 3, 22).

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use hyper::server::conn::http1;
use hyper::upgrade::{OnUpgrade, Parts};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nolag_protocol::MAX_MESSAGE_BYTES;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::broker::Broker;
use crate::config::Profile;
use crate::connection;

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long what a client still sends is read after the close, so that it gets to see the close.
const LINGER: Duration = Duration::from_secs(2);

/// What is read of a connection before it says more; eagerly allocated for each.
const READ_BUFFER_BYTES: usize = 4 * 1024;

/// What is gathered before it is written without waiting for more.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;

/// Accepts connections until the future is dropped.
pub async fn serve(broker: Arc<Broker>, listener: TcpListener) {
    let router = router(broker.clone());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                broker.spawn(accept(broker.clone(), router.clone(), stream, peer));
            }
            // Out of file descriptors, most likely: some will come free.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn accept(broker: Arc<Broker>, router: Router, stream: TcpStream, peer: SocketAddr) {
    // Frames are flushed when they are complete; there is nothing for the kernel to gather.
    let _ = stream.set_nodelay(true);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades();
    let mut served = pin!(served);
    let served = tokio::select! {
        served = served.as_mut() => served,
        () = broker.drained() => {
            // A request under way is answered; one that may come is not waited for.
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "an HTTP connection failed");
    }
}

fn router(broker: Arc<Broker>) -> Router {
    let mut router = Router::new().route("/health", any(health)).route("/ws", get(upgrade));
    if broker.settings.profile == Profile::Extended || broker.settings.metrics {
        router = router.route("/ready", get(ready));
    }
    if broker.settings.metrics {
        router = router.route("/metrics", get(metrics));
    }
    router.with_state(broker)
}

async fn health() -> impl IntoResponse {
    json(StatusCode::OK, r#"{"status":"ok"}"#)
}

async fn ready(State(broker): State<Arc<Broker>>) -> Response {
    if broker.is_draining() {
        json(StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"draining"}"#)
    } else {
        json(StatusCode::OK, r#"{"status":"ready"}"#)
    }
}

async fn metrics(State(broker): State<Arc<Broker>>, headers: HeaderMap) -> Response {
    if let Some(token) = &broker.settings.metrics_token {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given =
            given.and_then(|value| value.split_once(' ')).filter(|(s, _)| s.eq_ignore_ascii_case("bearer"));
        if !given.is_some_and(|(_, given)| same(given.trim(), token)) {
            return json(StatusCode::UNAUTHORIZED, r#"{"error":"unauthorized"}"#);
        }
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], broker.metrics_text()).into_response()
}

/// Compares without telling by its time how much was right.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn json(status: StatusCode, body: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Answers an upgrade and hands the connection over to the broker.
async fn upgrade(State(broker): State<Arc<Broker>>, mut request: Request) -> Response {
    let on_upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let (head, _) = request.into_parts();
    // The request and response types of the HTTP library are the same everywhere; only bodies differ.
    let request = axum::http::Request::from_parts(head, ());
    match (create_response_with_body(&request, Body::empty), on_upgrade) {
        (Ok(response), Some(on_upgrade)) => {
            broker.clone().spawn(async move {
                if let Ok(upgraded) = on_upgrade.await
                    && let Ok(Parts { io, read_buf, .. }) = upgraded.downcast::<TokioIo<TcpStream>>()
                {
                    // Copied: the buffer that the request was read into would live as long as the connection.
                    let read_already = read_buf.to_vec();
                    drop(read_buf);
                    websocket(&broker, io.into_inner(), read_already).await;
                }
            });
            response
        }
        (Err(error), _) => {
            (StatusCode::BAD_REQUEST, format!("this path takes WebSocket connections: {error}\n"))
                .into_response()
        }
        (Ok(_), None) => StatusCode::UPGRADE_REQUIRED.into_response(),
    }
}

/// How the broker frames: small buffers for each of many connections, and a bound on what a client may send.
pub fn websocket_config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES))
}

async fn websocket(broker: &Arc<Broker>, stream: TcpStream, read_already: Vec<u8>) {
    let mut socket =
        WebSocketStream::from_partially_read(stream, read_already, Role::Server, Some(websocket_config()))
            .await;
    connection::serve(broker, &mut socket).await;
    let _ = timeout(LINGER, linger(socket.get_mut())).await;
}

/// Closes, and reads on until the client has closed too: what it had sent unread would make the kernel reset the
/// connection, and the client would never see why.
async fn linger(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut unread = [0; 1024];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}
