//! How our client reaches a broker: names with several addresses, proxies, private certificate authorities. The broker is ours, in
//! this process; names are given by the tests, every port is free.

mod addresses;
mod certificates;
mod proxies;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nolag_broker::auth::{DEMO_TOKENS, StaticAuth};
use nolag_broker::clock::Clock;
use nolag_broker::config::Settings;
use nolag_broker::{Broker, http};
use nolag_core::driver::native::{Native, Resolver};
use nolag_core::options::InitialConnect;
use nolag_core::{Client, Error};
use tokio::net::TcpListener;

const TOKEN: &str = "dev-token-alice";
/// Longer than anything takes that happens at all.
const PATIENCE: Duration = Duration::from_secs(20);

/// A broker on a free port of this address, or nothing if the machine has no such address.
async fn broker(ip: IpAddr) -> Option<SocketAddr> {
    let listener = TcpListener::bind((ip, 0)).await.ok()?;
    let address = listener.local_addr().unwrap();
    let settings = Settings::default();
    let auth = StaticAuth::from_text(DEMO_TOKENS, settings.profile).unwrap();
    let broker = Broker::new(settings, Arc::new(auth), Clock::follow_tokio());
    tokio::spawn(http::serve(broker, listener));
    Some(address)
}

async fn local_broker() -> SocketAddr {
    broker(Ipv4Addr::LOCALHOST.into()).await.unwrap()
}

/// Knows these names and no others.
fn names(known: &[(&str, &[SocketAddr])]) -> Resolver {
    let known: Vec<(String, Vec<SocketAddr>)> =
        known.iter().map(|(name, addresses)| ((*name).to_owned(), addresses.to_vec())).collect();
    Arc::new(move |host, _| {
        let found = known.iter().find(|(name, _)| name == host).map(|(_, addresses)| addresses.clone());
        Box::pin(async move { found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such name")) })
    })
}

/// One attempt, which says how it ended. A client that came in leaves again.
async fn attempt(native: Native) -> Result<(), Error> {
    let builder = Client::builder(TOKEN).transport(native);
    let client = builder.options(|options| options.initial_connect = InitialConnect::Once).build().unwrap();
    tokio::time::timeout(PATIENCE, client.connect()).await.expect("it takes too long")?;
    client.close().await
}
