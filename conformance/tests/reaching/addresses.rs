//! FC-24: every address is tried.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use nolag_core::driver::native::{Native, Url};
use tokio::net::TcpListener;

use super::{attempt, broker, local_broker, names};

fn native(addresses: &[SocketAddr]) -> Native {
    let native = Native::with_proxy(Url::parse("ws://broker.test").unwrap(), None, None).unwrap();
    native.resolver(names(&[("broker.test", addresses)]))
}

async fn nobody() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap()
}

/// The first two runs: the broker listens on one of the two addresses only, whichever is named first.
#[tokio::test]
async fn one_of_two_listens() {
    for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let Some(here) = broker(ip).await else {
            println!("skipped: this machine has no {ip}");
            continue;
        };
        let other = if ip.is_ipv4() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        let there = SocketAddr::new(other, here.port());
        attempt(native(&[there, here])).await.unwrap();
        attempt(native(&[here, there])).await.unwrap();
    }
}

/// An address whose packets are swallowed: its queue of connections is full, and nobody accepts any.
#[cfg(target_os = "linux")]
async fn swallowing() -> (SocketAddr, Vec<impl Sized>) {
    use tokio::net::{TcpSocket, TcpStream};

    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    let listener = socket.listen(1).unwrap();
    let mut queued = Vec::new();
    let full = Duration::from_millis(500);
    while let Ok(stream) = tokio::time::timeout(full, TcpStream::connect(address)).await {
        queued.push((stream.unwrap(), None));
    }
    let (last, _) = queued.pop().unwrap();
    queued.push((last, Some(listener)));
    (address, queued)
}

/// The third run: the first address swallows packets, and the second is tried meanwhile. (When exactly is proven in virtual time,
/// where the race is.)
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_first_swallows_packets() {
    let (silent, _queue) = swallowing().await;
    let here = local_broker().await;
    attempt(native(&[silent, here])).await.unwrap();
    let refusing = nobody().await;
    attempt(native(&[silent, refusing, here])).await.unwrap();
    let failed = attempt(native(&[silent, refusing]).timeout(Duration::from_secs(1))).await.unwrap_err();
    assert_eq!(failed.code(), "connect_timeout");
    let text = failed.to_string();
    assert!(text.contains(&format!("{silent}: no answer")), "{text}");
    assert!(text.contains(&format!("{refusing}: ")), "{text}");
}

/// When none answers, the error names each with its reason.
#[tokio::test]
async fn none_listens() {
    let (first, second) = (nobody().await, nobody().await);
    let failed = attempt(native(&[first, second])).await.unwrap_err();
    assert_eq!(failed.code(), "refused");
    let text = failed.to_string();
    assert!(text.contains("broker.test:80 cannot be reached"), "{text}");
    assert!(text.contains(&format!("{first}: ")) && text.contains(&format!("{second}: ")), "{text}");
}

/// The system's own resolver, for the name that every machine has.
#[tokio::test]
async fn by_the_system() {
    let url = format!("ws://localhost:{}", local_broker().await.port());
    attempt(Native::with_proxy(Url::parse(&url).unwrap(), None, None).unwrap()).await.unwrap();
}
