//! How a client reaches its broker: the transport, and the tokens that Python gives.

use std::sync::{Arc, Mutex, PoisonError};

use nolag_core::Error;
use nolag_core::driver::TokenProvider;
use nolag_core::driver::native::{Native, Proxy, Url};
use nolag_core::options::Secret;
use nolag_core::session::{Token, TokenFailure};
use pyo3::prelude::*;
use tokio::sync::oneshot;

use crate::queue::{Item, Queue};
use crate::settings;

/// Takes a token for a session that waits for one.
#[pyclass(frozen, module = "nolag._native")]
pub(crate) struct TokenAnswer(Mutex<Option<TokenSender>>);

type TokenSender = oneshot::Sender<Result<Token, TokenFailure>>;

#[pymethods]
impl TokenAnswer {
    /// The token; `expires_in` in seconds where that is known.
    #[pyo3(signature = (token, expires_in=None))]
    fn give(&self, token: String, expires_in: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let expires_in = expires_in.map(settings::seconds).transpose()?;
        self.send(Ok(Token { secret: Secret::new(token), expires_in }));
        Ok(())
    }

    /// There is none.
    fn fail(&self, message: String, fatal: bool) {
        self.send(Err(TokenFailure { message, fatal }));
    }
}

impl TokenAnswer {
    pub(crate) fn new(reply: TokenSender) -> Self {
        Self(Mutex::new(Some(reply)))
    }

    fn send(&self, token: Result<Token, TokenFailure>) {
        if let Some(reply) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = reply.send(token); // the session may have given up
        }
    }
}

/// A transport; `proxy` is a URL, `False` for none, or absent for the environment's.
pub(crate) fn native(
    url: &str,
    ca: Option<&[u8]>,
    proxy: Option<&Bound<'_, PyAny>>,
    headers: Vec<(String, String)>,
) -> Result<Native, Error> {
    let url = Url::parse(url)?;
    let mut native = match proxy {
        None => Native::new(url, ca)?,
        Some(choice) => match choice.extract::<String>() {
            Ok(proxy) => Native::with_proxy(url, ca, Some(Proxy::parse(&proxy)?))?,
            Err(_) => Native::with_proxy(url, ca, None)?,
        },
    };
    for (name, value) in headers {
        native = native.header(&name, &value)?;
    }
    Ok(native)
}

/// Asks the owner, on its event loop.
pub(crate) fn provider(queue: Arc<Queue>) -> TokenProvider {
    Arc::new(move |request| {
        let (reply, token) = oneshot::channel();
        queue.push(Item::Token(request, reply));
        Box::pin(async move {
            let gone =
                || TokenFailure { message: "the token provider gave no token".to_owned(), fatal: false };
            token.await.unwrap_or_else(|_| Err(gone()))
        })
    })
}
