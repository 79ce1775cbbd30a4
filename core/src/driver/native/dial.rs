//! From a name to a TCP connection: the addresses race, each a little after the one before (RFC 8305, FC-24).

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;

use super::deadline::Deadline;
use super::failure;
use super::url::Place;
use crate::driver::OpenFailure;
use crate::error::ConnectionCode;

/// After how long without an answer the next address is tried as well (RFC 8305, section 5).
const STAGGER: Duration = Duration::from_millis(250);

/// The addresses of a name, with the port.
pub type Resolving = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;
/// Finds the addresses of a name, for a port.
pub type Resolver = Arc<dyn Fn(&str, u16) -> Resolving + Send + Sync>;

/// Asks the system.
pub(super) fn system() -> Resolver {
    Arc::new(|host, port| {
        let host = host.to_owned();
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    })
}

/// A TCP connection to the first address that answers.
pub(super) async fn dial(
    place: &Place,
    resolver: &Resolver,
    deadline: Deadline,
) -> Result<TcpStream, OpenFailure> {
    let found = async {
        resolver(&place.host, place.port)
            .await
            .map_err(|fault| failure(ConnectionCode::Dns, format!("{} cannot be found: {fault}", place.host)))
    };
    let found = deadline.bound(found, || format!("nobody says where {} is", place.host)).await?;
    if found.is_empty() {
        return Err(failure(ConnectionCode::Dns, format!("{} has no address", place.host)));
    }
    let stream = race(place, in_turn(found), deadline, TcpStream::connect).await?;
    let _ = stream.set_nodelay(true); // an optimisation, which some streams do not know
    Ok(stream)
}

/// The first connection that comes about. The next address is tried as soon as one has failed, or the last one has not
/// answered for [`STAGGER`]; when there is none left, the failure names all of them.
async fn race<T, C>(
    place: &Place,
    addresses: Vec<SocketAddr>,
    deadline: Deadline,
    connect: impl Fn(SocketAddr) -> C,
) -> Result<T, OpenFailure>
where
    C: Future<Output = io::Result<T>>,
{
    let mut outcomes: Vec<Option<io::Error>> = addresses.iter().map(|_| None).collect();
    let mut waiting = addresses.iter().copied().enumerate();
    let mut running = FuturesUnordered::new();
    let passed = deadline.passed();
    tokio::pin!(passed);
    loop {
        if let Some((index, address)) = waiting.next() {
            let connecting = connect(address);
            running.push(async move { (index, connecting.await) });
        }
        if running.is_empty() {
            break;
        }
        let stagger = tokio::time::sleep(STAGGER);
        tokio::pin!(stagger);
        tokio::select! {
            biased;
            Some((index, result)) = running.next() => match result {
                Ok(stream) => return Ok(stream),
                Err(fault) => outcomes[index] = Some(fault),
            },
            () = &mut passed => break,
            () = &mut stagger, if waiting.len() > 0 => {}
        }
    }
    let silent = outcomes.iter().any(Option::is_none);
    let told = addresses.iter().zip(outcomes).map(|(address, outcome)| match outcome {
        Some(fault) => format!("{address}: {fault}"),
        None => format!("{address}: no answer"),
    });
    let message = format!("{place} cannot be reached ({})", told.collect::<Vec<_>>().join("; "));
    Err(if silent { deadline.missed(&message) } else { failure(ConnectionCode::Refused, message) })
}

/// The families alternate, the one that the system prefers first.
fn in_turn(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first = found.first().is_some_and(SocketAddr::is_ipv6);
    let (mut preferred, mut others): (Vec<_>, Vec<_>) =
        found.into_iter().rev().partition(|address| address.is_ipv6() == first);
    let mut addresses = Vec::new();
    while !preferred.is_empty() || !others.is_empty() {
        addresses.extend(preferred.pop());
        addresses.extend(others.pop());
    }
    addresses
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::{Instant, sleep};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn families_alternate() {
        let turn: Vec<_> =
            in_turn(addresses("[::1]:1 [::2]:1 [::3]:1 1.1.1.1:1")).iter().map(ToString::to_string).collect();
        assert_eq!(turn, ["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"]);
    }

    fn addresses(text: &str) -> Vec<SocketAddr> {
        text.split(' ').map(|address| address.parse().unwrap()).collect()
    }

    /// Each port says when its address is given, and what becomes of it: 1 answers after 100 ms, 2 refuses at once, 3 is silent.
    async fn raced(text: &str) -> (Result<SocketAddr, OpenFailure>, Vec<u128>) {
        let (start, begun) = (Instant::now(), RefCell::new(Vec::new()));
        let place = Place { host: "broker.test".into(), port: 80 };
        let deadline = Deadline::after(2_000 * MS);
        let result = race(&place, addresses(text), deadline, |address| {
            begun.borrow_mut().push(start.elapsed().as_millis());
            async move {
                match address.port() {
                    1 => sleep(100 * MS).await,
                    2 => return Err(io::ErrorKind::ConnectionRefused.into()),
                    _ => sleep(Duration::from_secs(60)).await,
                }
                Ok(address)
            }
        })
        .await;
        (result, begun.into_inner())
    }

    /// FC-24, in virtual time: when each address is begun, and which one wins.
    #[tokio::test(start_paused = true)]
    async fn addresses_race() {
        for (given, winner, begun) in [
            ("[::1]:1 1.1.1.1:1", "[::1]:1", &[0][..]),
            ("[::1]:2 1.1.1.1:1", "1.1.1.1:1", &[0, 0]),
            ("[::1]:3 1.1.1.1:1", "1.1.1.1:1", &[0, 250]),
            ("[::1]:3 1.1.1.1:2 [::2]:2 1.1.1.2:1", "1.1.1.2:1", &[0, 250, 250, 250]),
            ("[::1]:3 1.1.1.1:3 [::2]:1", "[::2]:1", &[0, 250, 500]),
        ] {
            let (result, when) = raced(given).await;
            assert_eq!(result.unwrap().to_string(), winner, "{given}");
            assert_eq!(when, begun, "{given}");
        }
    }

    /// FC-24: whoever fails is named, with the reason.
    #[tokio::test(start_paused = true)]
    async fn nobody_answers() {
        let start = Instant::now();
        let (result, _) = raced("[::1]:3 1.1.1.1:2").await;
        let failure = result.unwrap_err();
        assert_eq!(failure.code, ConnectionCode::ConnectTimeout);
        let says = "broker.test:80 cannot be reached ([::1]:3: no answer; 1.1.1.1:2: connection refused): given up after 2s";
        assert_eq!(failure.message, says);
        assert_eq!(start.elapsed().as_millis(), 2_000);
        let failure = raced("[::1]:2 1.1.1.1:2").await.0.unwrap_err();
        assert_eq!(failure.code, ConnectionCode::Refused);
        assert!(failure.message.contains("[::1]:2") && failure.message.contains("1.1.1.1:2"));
    }
}
