//! Where the broker is (client-api 5; point 10 of the decided ones).

use tokio_tungstenite::tungstenite::http::Uri;

use crate::Error;

/// A checked URL: `ws` or `wss`, a host, a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Whether TLS is spoken.
    pub(super) tls: bool,
    /// The name, or the address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// The whole, as the upgrade asks for it.
    pub(super) text: String,
}

impl Url {
    /// Checks a URL. `http` and `https` stand for `ws` and `wss`; no path means `/ws`; credentials are refused.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |message: String| Error::Config { code: "bad_url", message };
        if text.is_empty() {
            let message = "a client needs a url, for example ws://localhost:8080/ws".to_owned();
            return Err(Error::Config { code: "url_required", message });
        }
        let uri: Uri = text.parse().map_err(|fault| bad(format!("{text:?} is no URL: {fault}")))?;
        let tls = match uri.scheme_str() {
            Some("ws" | "http") => false,
            Some("wss" | "https") => true,
            Some(other) => return Err(bad(format!("the scheme is ws or wss, not {other}"))),
            None => return Err(bad(format!("{text:?} has no scheme: put ws:// or wss:// before it"))),
        };
        let authority = uri.authority().ok_or_else(|| bad(format!("{text:?} has no host")))?;
        if authority.as_str().contains('@') {
            return Err(bad("credentials do not belong in a url: the token is given apart".to_owned()));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(bad(format!("{text:?} has no host")));
        }
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = match uri.path_and_query().map_or("/", |path| path.as_str()) {
            "/" | "" => "/ws",
            path => path,
        };
        let scheme = if tls { "wss" } else { "ws" };
        Ok(Self { tls, host, port, text: format!("{scheme}://{authority}{path}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (text, whole, port) in [
            ("ws://localhost:8080", "ws://localhost:8080/ws", 8080),
            ("https://broker.example", "wss://broker.example/ws", 443),
            ("ws://[::1]:9/live?x=1", "ws://[::1]:9/live?x=1", 9),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.text.as_str(), url.port), (whole, port));
        }
        assert_eq!(Url::parse("ws://[::1]:9").unwrap().host, "::1");
        for (text, code) in [
            ("", "url_required"),
            ("ftp://x", "bad_url"),
            ("localhost:8080", "bad_url"),
            ("ws://user:secret@x/ws", "bad_url"),
            ("ws:///ws", "bad_url"),
            ("ws://a b", "bad_url"),
        ] {
            let error = Url::parse(text).unwrap_err();
            assert_eq!(error.code(), code, "{text}");
            assert!(!error.to_string().contains("secret"));
        }
    }
}
