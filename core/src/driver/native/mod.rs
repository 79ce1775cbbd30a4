//! WebSockets over TCP and TLS, on tokio.
//!
//! | module | |
//! | --- | --- |
//! | `url` | where to, checked when the client is built |
//! | `dial` | from a name to a TCP connection |
//! | `proxy` | the way through a proxy |
//! | `tls` | what is trusted |
//! | `upgrade` | from a connection to a WebSocket |
//! | `background` | the thread for clients of other languages |
//! | `socket` | a WebSocket as a [`Link`]; `ahead` reads for it |
//!
//! Every failure says which step it was, what was wrong and, where that can be known, what would be right.

mod ahead;
mod background;
mod deadline;
mod dial;
mod proxy;
mod socket;
mod tls;
mod upgrade;
mod url;

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::ClientConfig;
use tungstenite::http::{HeaderMap, HeaderName, HeaderValue};

pub use background::background;
pub use dial::{Resolver, Resolving};
pub use proxy::Proxy;
pub(crate) use socket::WebSocket;
pub use url::Url;

use super::{Link, OpenFailure, Opening, Transport};
use crate::error::ConnectionCode;
use crate::{Error, Options};
use ahead::ReadAhead;
use deadline::Deadline;

/// How long an attempt may take, unless told. Less than the session's `connect_timeout`, so that what it was waiting for is told.
const TIMEOUT: Duration = Duration::from_secs(9);

/// Opens WebSockets to one URL.
#[derive(Clone)]
pub struct Native {
    url: Url,
    proxy: Option<Proxy>,
    tls: Arc<ClientConfig>,
    headers: HeaderMap,
    resolver: Resolver,
    timeout: Duration,
}

impl Native {
    /// A transport to `url` that trusts the bundled roots, and the certificates in `extra_roots` (PEM). The environment may
    /// name a proxy ([`Proxy::from_env`]).
    pub fn new(url: Url, extra_roots: Option<&[u8]>) -> Result<Self, Error> {
        let proxy = Proxy::from_env(&url)?;
        Self::with_proxy(url, extra_roots, proxy)
    }

    /// The same through this proxy, or through none, whatever the environment says.
    pub fn with_proxy(url: Url, extra_roots: Option<&[u8]>, proxy: Option<Proxy>) -> Result<Self, Error> {
        Ok(Self {
            url,
            proxy,
            tls: tls::config(extra_roots)?,
            headers: HeaderMap::new(),
            resolver: dial::system(),
            timeout: TIMEOUT,
        })
    }

    /// Sends another header with the request for the upgrade.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, Error> {
        let bad =
            |what| Error::Config { code: "bad_option", message: format!("{name:?} is no header: {what}") };
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| bad("the name has other characters than a header's"))?;
        let value = HeaderValue::from_str(value).map_err(|_| bad("the value has control characters"))?;
        self.headers.append(name, value);
        Ok(self)
    }

    /// Finds addresses otherwise than the system does. With a proxy that is the proxy's address: the broker's name is left to it.
    #[must_use]
    pub fn resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = resolver;
        self
    }

    /// How long an attempt may take, 9 s unless told. Where [`Options::connect_timeout`] is shorter, that ends the attempt, without
    /// saying what it was waiting for.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// The same, as these options are best served: a little less than their `connect_timeout`.
    #[must_use]
    pub fn within(self, options: &Options) -> Self {
        self.timeout(options.connect_timeout.mul_f64(0.9))
    }

    async fn link(self) -> Result<Box<dyn Link>, OpenFailure> {
        let deadline = Deadline::after(self.timeout);
        let to = &self.url.place;
        let stream = match &self.proxy {
            None => ReadAhead::new(dial::dial(to, &self.resolver, deadline).await?),
            Some(proxy) => {
                let stream = dial::dial(&proxy.place, &self.resolver, deadline).await;
                let stream = stream.map_err(|fault| OpenFailure {
                    message: format!("through the proxy: {}", fault.message),
                    ..fault
                })?;
                let mut stream = ReadAhead::new(stream);
                let stuck = || format!("the proxy {} does not answer", proxy.place);
                deadline.bound(proxy.tunnel(&mut stream, to), stuck).await?;
                stream
            }
        };
        if !self.url.tls {
            return self.upgraded(stream, deadline).await;
        }
        let stuck = || {
            format!(
                "{to} does not answer the TLS handshake; a broker without TLS has a url that begins with ws://"
            )
        };
        let stream = deadline.bound(tls::connect(Arc::clone(&self.tls), to, stream), stuck).await?;
        self.upgraded(stream, deadline).await
    }

    async fn upgraded<S>(&self, mut stream: S, deadline: Deadline) -> Result<Box<dyn Link>, OpenFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stuck = || format!("{} takes connections and does not answer", self.url.place);
        let behind = deadline.bound(upgrade::upgrade(&self.url, &self.headers, &mut stream), stuck).await?;
        Ok(Box::new(WebSocket::new(stream, behind)))
    }
}

impl Transport for Native {
    fn open(&mut self) -> Opening {
        Box::pin(self.clone().link())
    }
}

fn failure(code: ConnectionCode, message: String) -> OpenFailure {
    OpenFailure { code, message, retry_after: None }
}
