//! From a URL to an upgraded connection: addresses in turn, TLS, the upgrade.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::Error as SocketError;

use super::proxy::Proxy;
use super::socket::{WebSocket, config};
use super::url::Url;
use crate::Error;
use crate::driver::runtime::within;
use crate::driver::{Link, OpenFailure};
use crate::error::ConnectionCode;

/// How long one address may take while there are others: a broken IPv6 must not use up the whole time.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);

/// What TLS trusts: the bundled roots, and those given.
pub(super) fn tls(extra_roots: Option<&[u8]>) -> Result<Arc<ClientConfig>, Error> {
    let bad = |message: String| Error::Config { code: "bad_option", message };
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for certificate in extra_roots.into_iter().flat_map(CertificateDer::pem_slice_iter) {
        let certificate = certificate.map_err(|fault| bad(format!("the CA is no PEM: {fault}")))?;
        roots.add(certificate).map_err(|fault| bad(format!("the CA cannot be used: {fault}")))?;
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|fault| bad(format!("TLS cannot be used: {fault}")))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

pub(super) async fn open(
    url: Url,
    proxy: Option<Proxy>,
    tls: Arc<ClientConfig>,
) -> Result<Box<dyn Link>, OpenFailure> {
    let stream = match proxy {
        None => reach(&url.host, url.port).await?,
        Some(proxy) => {
            let mut stream = reach(&proxy.host, proxy.port).await?;
            let tunnel = proxy.tunnel(&mut stream, &url.host, url.port).await;
            tunnel.map_err(|message| failure(ConnectionCode::Refused, message))?;
            stream
        }
    };
    if !url.tls {
        return upgrade(&url, stream).await;
    }
    let name = ServerName::try_from(url.host.clone())
        .map_err(|fault| failure(ConnectionCode::Tls, format!("{} is no name for TLS: {fault}", url.host)))?;
    let stream = TlsConnector::from(tls)
        .connect(name, stream)
        .await
        .map_err(|fault| failure(ConnectionCode::Tls, format!("TLS with {}: {fault}", url.host)))?;
    upgrade(&url, stream).await
}

/// A TCP connection to the first address that answers, IPv6 and IPv4 in turn.
async fn reach(host: &str, port: u16) -> Result<TcpStream, OpenFailure> {
    let found = tokio::net::lookup_host((host, port))
        .await
        .map_err(|fault| failure(ConnectionCode::Dns, format!("{host} cannot be found: {fault}")))?;
    let addresses = in_turn(found.collect());
    let mut last = failure(ConnectionCode::Dns, format!("{host} has no address"));
    for (index, address) in addresses.iter().enumerate() {
        let connecting = TcpStream::connect(address);
        let result = if index + 1 < addresses.len() {
            within(ADDRESS_TIMEOUT, connecting).await
        } else {
            Some(connecting.await)
        };
        match result {
            Some(Ok(stream)) => {
                let _ = stream.set_nodelay(true); // an optimisation, which some streams do not know
                return Ok(stream);
            }
            Some(Err(fault)) => last = failure(ConnectionCode::Refused, format!("{address}: {fault}")),
            None => last = failure(ConnectionCode::ConnectTimeout, format!("{address} does not answer")),
        }
    }
    Err(last)
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

async fn upgrade<S>(url: &Url, stream: S) -> Result<Box<dyn Link>, OpenFailure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match client_async_with_config(url.text.as_str(), stream, Some(config())).await {
        Ok((socket, _)) => Ok(Box::new(WebSocket(socket))),
        Err(SocketError::Http(response)) => {
            let status = response.status();
            let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
            let target = header("location").map(|target| format!(", which redirects to {target}"));
            Err(OpenFailure {
                code: ConnectionCode::HandshakeRejected(status.as_u16()),
                message: format!("the upgrade was answered with {status}{}", target.unwrap_or_default()),
                retry_after: header("retry-after")
                    .and_then(|text| text.parse().ok())
                    .map(Duration::from_secs),
            })
        }
        Err(SocketError::Io(fault)) => Err(failure(ConnectionCode::Lost, fault.to_string())),
        Err(fault) => Err(failure(ConnectionCode::ProtocolError, fault.to_string())),
    }
}

fn failure(code: ConnectionCode, message: String) -> OpenFailure {
    OpenFailure { code, message, retry_after: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate() {
        let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
        let found = ["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"].map(parse).to_vec();
        let turn: Vec<_> = in_turn(found).iter().map(ToString::to_string).collect();
        assert_eq!(turn, ["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"]);
    }

    #[test]
    fn a_ca_that_is_none() {
        assert!(tls(None).is_ok());
        let pem = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(tls(Some(pem)).unwrap_err().code(), "bad_option");
    }
}
