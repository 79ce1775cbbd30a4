//! How a client comes to be.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{broadcast, watch};

use super::desk::{Clerk, Desk};
use super::{Client, Inner};
use crate::driver::native::{Native, Proxy, Url};
use crate::driver::{TokenFuture, TokenProvider, Transport, drive_seeded, runtime};
use crate::error::Error;
use crate::event::State;
use crate::options::{Credentials, Options, Secret};
use crate::session::{Token, TokenFailure, TokenRequest};

/// How many events a reader may fall behind before it misses the oldest.
const EVENT_BACKLOG: usize = 1_024;

/// Where tokens come from.
pub enum TokenSource {
    /// One token. A refusal of it ends the attempts.
    Static(Secret),
    /// Asked before every connection. A refusal asks it once more.
    Provider(TokenProvider),
}

impl From<&str> for TokenSource {
    fn from(token: &str) -> Self {
        Self::Static(Secret::new(token))
    }
}

impl From<String> for TokenSource {
    fn from(token: String) -> Self {
        Self::Static(Secret::new(token))
    }
}

impl TokenSource {
    /// A provider from an async function.
    pub fn provider<F, R>(fetch: F) -> Self
    where
        F: Fn(TokenRequest) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Token, TokenFailure>> + Send + 'static,
    {
        Self::Provider(Arc::new(move |request| Box::pin(fetch(request)) as TokenFuture))
    }
}

/// Which proxy a client goes through.
enum ProxyChoice {
    Environment,
    None,
    This(String),
}

/// The settings of a client that is not there yet.
#[must_use = "a client is made by `build`"]
pub struct Builder {
    options: Options,
    provider: Option<TokenProvider>,
    url: Option<String>,
    ca: Option<Vec<u8>>,
    proxy: ProxyChoice,
    headers: Vec<(String, String)>,
    transport: Option<Box<dyn Transport>>,
    seed: u64,
}

impl Builder {
    pub(super) fn new(token: TokenSource) -> Self {
        let (credentials, provider) = match token {
            TokenSource::Static(token) => (Credentials::Static(token), None),
            TokenSource::Provider(provider) => (Credentials::Provider, Some(provider)),
        };
        Self {
            options: Options::new(credentials),
            provider,
            url: None,
            ca: None,
            proxy: ProxyChoice::Environment,
            headers: Vec::new(),
            transport: None,
            seed: runtime::seed(),
        }
    }

    /// Where the broker is. Without it the environment's `NOLAG_URL` says.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Certificates to trust beside the bundled roots, in PEM.
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// An HTTP proxy, such as `http://user:password@proxy:3128`, whatever the environment says.
    pub fn proxy(mut self, url: impl Into<String>) -> Self {
        self.proxy = ProxyChoice::This(url.into());
        self
    }

    /// No proxy, whatever the environment says.
    pub fn no_proxy(mut self) -> Self {
        self.proxy = ProxyChoice::None;
        self
    }

    /// Another header of the request for the upgrade.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Changes options; the credentials stay as they are.
    pub fn options(mut self, change: impl FnOnce(&mut Options)) -> Self {
        let credentials = self.options.credentials.clone();
        change(&mut self.options);
        self.options.credentials = credentials;
        self
    }

    /// Another transport than WebSockets over TCP; a URL is not needed then.
    pub fn transport(mut self, transport: impl Transport) -> Self {
        self.transport = Some(Box::new(transport));
        self
    }

    /// Where the jitter of waits and the names of client and publishes are drawn from, so that a test can be repeated. Without it
    /// nobody can guess them.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The client, its driver running beside the caller on the current tokio runtime. Nothing is sent before
    /// [`Client::connect`].
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn build(self) -> Result<Client, Error> {
        let (client, driver) = self.build_with_driver()?;
        runtime::spawn(driver);
        Ok(client)
    }

    /// The client, and the future that drives it, for whoever wants to run it by themselves. It must run on tokio, and ends
    /// when the last handle is gone.
    pub fn build_with_driver(self) -> Result<(Client, impl Future<Output = ()> + Send + 'static), Error> {
        let Self { options, provider, url, ca, proxy, headers, transport, seed } = self;
        let transport = match transport {
            Some(transport) => transport,
            None => {
                let url = url.or_else(|| std::env::var("NOLAG_URL").ok()).unwrap_or_default();
                let url = Url::parse(&url)?;
                let mut native = match proxy {
                    ProxyChoice::Environment => Native::new(url, ca.as_deref())?,
                    ProxyChoice::None => Native::with_proxy(url, ca.as_deref(), None)?,
                    ProxyChoice::This(proxy) => {
                        Native::with_proxy(url, ca.as_deref(), Some(Proxy::parse(&proxy)?))?
                    }
                };
                native = native.within(&options);
                for (name, value) in &headers {
                    native = native.header(name, value)?;
                }
                Box::new(native)
            }
        };
        let (events, _) = broadcast::channel(EVENT_BACKLOG);
        let desk = Arc::new(Desk::new(events));
        let (sender, state) = watch::channel(State::Idle);
        let clerk = Clerk::new(Arc::clone(&desk), sender);
        let (handle, driver) = drive_seeded(options, transport, provider, clerk, seed);
        Ok((Client { inner: Arc::new(Inner { handle, desk, state }) }, driver))
    }
}
