//! Connections that come, do something and vanish in every way, over real sockets; afterwards nothing is left.

mod kit;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{SinkExt as _, StreamExt as _};
use kit::broker;
use nolag_broker::config::Settings;
use nolag_broker::{Broker, http};
use rmpv::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// Only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

async fn start(settings: Settings) -> (Arc<Broker>, SocketAddr) {
    let broker = broker(settings);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(http::serve(broker.clone(), listener));
    (broker, address)
}

fn frame(value: &Value) -> Message {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    Message::Binary(bytes.into())
}

async fn open(address: SocketAddr) -> WebSocketStream<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (socket, _) = tokio_tungstenite::client_async(format!("ws://{address}/ws"), stream).await.unwrap();
    socket
}

/// One connection's life. `way` picks how far it comes and how it ends.
async fn live_and_vanish(address: SocketAddr, way: usize) {
    match way % 10 {
        // A socket that says nothing, one that speaks no HTTP, and one that stops in the middle of a head.
        0 => drop(TcpStream::connect(address).await.unwrap()),
        1 => {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let _ = stream.write_all(&[0x16, 3, 1, 0, 200, 1, 0, 0]).await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
        2 => {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let _ = stream.write_all(b"GET /ws HTTP/1.1\r\nhost: x\r\nupgra").await;
        }
        // An upgrade without a word after it.
        3 => drop(open(address).await),
        way => {
            let mut socket = open(address).await;
            let token = if way % 2 == 0 { "dev-token-alice" } else { "dev-token-bob" };
            let topic = format!("demo/general/{way}");
            let filters = Value::from(vec![Value::from("a"), Value::from("b")]);
            for request in [
                map! {"type": "auth", "token": token, "protocolVersion": 2},
                map! {"type": "subscribe", "topic": topic.as_str()},
                map! {"type": "subscribe", "topic": "demo/general/+/#"},
                map! {"type": "subscribe", "topic": "demo/general/f", "filters": filters},
                map! {"type": "subscribe", "topic": "demo/general/g", "loadBalance": true},
                map! {"type": "lobbySubscribe", "lobbyId": "lounge"},
                map! {"type": "presence", "roomId": "general", "data": way as u64},
                map! {"type": "publish", "topic": topic.as_str(), "data": "x".repeat(100), "retain": way == 5},
                map! {"type": "publish", "topic": "demo/general/g", "data": 1},
            ] {
                socket.feed(frame(&request)).await.unwrap();
            }
            if socket.flush().await.is_err() {
                return;
            }
            match way {
                // Gone with everything unread; gone after one reply; a proper close; a cut in the middle of a
                // frame; garbage; half a close.
                4 => {}
                5 => drop(timeout(PATIENCE, socket.next()).await.unwrap()),
                6 => {
                    let _ = socket.close(None).await;
                    while let Some(Ok(_)) = timeout(PATIENCE, socket.next()).await.unwrap() {}
                }
                7 => drop(socket.get_mut().write_all(&[0x82, 0xfe, 0x40]).await),
                8 => {
                    let _ = socket.get_mut().write_all(&[0xff; 64]).await;
                    while let Some(Ok(_)) = timeout(PATIENCE, socket.next()).await.unwrap() {}
                }
                _ => {
                    let _ = socket.get_mut().shutdown().await;
                    while let Some(Ok(_)) = timeout(PATIENCE, socket.next()).await.unwrap() {}
                }
            }
        }
    }
}

/// Waits until every connection's task has ended.
async fn all_gone(broker: &Broker) {
    let gone = async {
        while broker.connections() > 0 || broker.tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("every task ends");
}

/// The resident memory of this process in bytes; `None` where the system does not tell.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// C-127 and the bounds of the issue: memory returns to where it was, and no task is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_leave_nothing_behind() {
    let (broker, address) = start(Settings { publish_rate_limit: 0, ..Settings::default() }).await;
    let mut after = Vec::new();
    for _ in 0..5 {
        for hundred in 0..10 {
            join_all((0..100).map(|n| live_and_vanish(address, hundred * 100 + n))).await;
        }
        all_gone(&broker).await;
        after.push(resident());
    }
    for gauge in
        ["subscriptions", "presence_members", "connections{protocol=\"websocket\",state=\"authenticated\"}"]
    {
        let line = format!("nolag_{gauge} 0\n");
        assert!(broker.metrics_text().contains(&line), "{gauge}: {}", broker.metrics_text());
    }
    // The allocator keeps what the first rounds needed at their peak; later rounds need no more.
    if let (Some(first), Some(last)) = (after[1], after[4]) {
        assert!(last < first + 8 * 1024 * 1024, "resident memory of the rounds: {after:?}");
    }
}
