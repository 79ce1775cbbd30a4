//! WebSockets over TCP and TLS, on tokio.
//!
//! - [`Url`]: where to, checked when the client is built
//! - `connect`: names, addresses, TLS, the upgrade; `proxy`: the way through one
//! - `socket`: a WebSocket as a [`Link`](super::Link)

mod connect;
mod proxy;
mod socket;
mod url;

use std::sync::Arc;

use tokio_rustls::rustls::ClientConfig;

pub(crate) use socket::WebSocket;
pub use url::Url;

use super::{Opening, Transport};
use crate::Error;

/// Opens WebSockets to one URL.
pub struct Native {
    url: Url,
    proxy: Option<proxy::Proxy>,
    tls: Arc<ClientConfig>,
}

impl Native {
    /// A transport to `url` that trusts the bundled roots, and the certificates in `extra_roots` (PEM). The
    /// environment may name a proxy: `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`.
    pub fn new(url: Url, extra_roots: Option<&[u8]>) -> Result<Self, Error> {
        let proxy = proxy::Proxy::from_env(&url, |name| std::env::var(name).ok())?;
        Ok(Self { url, proxy, tls: connect::tls(extra_roots)? })
    }
}

impl Transport for Native {
    fn open(&mut self) -> Opening {
        Box::pin(connect::open(self.url.clone(), self.proxy.clone(), self.tls.clone()))
    }
}
