//! Where the broker is (client-api 5; point 10 of the decided ones).

use std::fmt;

use tungstenite::http::Uri;
use tungstenite::http::uri::Authority;

use crate::Error;

/// A checked URL: `ws` or `wss`, a host, a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Whether TLS is spoken.
    pub(super) tls: bool,
    pub(super) place: Place,
    /// The whole, as the upgrade asks for it.
    pub(super) text: String,
}

/// A host and a port, which it is shown as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The name, or the address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Url {
    /// Checks a URL. `http` and `https` stand for `ws` and `wss`; no path means `/ws`; credentials are refused.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |message: String| Error::Config { code: "bad_url", message };
        if text.is_empty() {
            let message = "a client needs a url, for example ws://localhost:8080/ws".to_owned();
            return Err(Error::Config { code: "url_required", message });
        }
        if has_credentials(text) {
            return Err(bad("credentials do not belong in a url: the token is given apart".to_owned()));
        }
        let uri: Uri = text.parse().map_err(|fault| {
            bad(format!("{text:?} is no URL ({fault}): one looks like ws://localhost:8080/ws"))
        })?;
        let tls = match uri.scheme_str().map(str::to_ascii_lowercase).as_deref() {
            Some("ws" | "http") => false,
            Some("wss" | "https") => true,
            Some(other) => return Err(bad(format!("the scheme of a url is ws or wss, not {other}"))),
            None => return Err(bad(format!("{text:?} has no scheme: put ws:// or wss:// before it"))),
        };
        let authority = uri.authority().ok_or_else(|| bad(format!("{text:?} has no host")))?;
        let place = Place::parse(authority, if tls { 443 } else { 80 })
            .ok_or_else(|| bad(format!("{text:?} has no host, or no port from 1 to 65535")))?;
        let path = if matches!(uri.path(), "/" | "") { "/ws" } else { uri.path() };
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let scheme = if tls { "wss" } else { "ws" };
        Ok(Self { tls, place, text: format!("{scheme}://{authority}{path}{query}") })
    }
}

impl Place {
    /// What stands before the path of a URL, without credentials; `None` without a host or with a port that is none.
    pub(super) fn parse(authority: &Authority, default: u16) -> Option<Self> {
        let (host, text) = (authority.host(), authority.as_str());
        let port = text.rsplit_once('@').map_or(text, |(_, place)| place).strip_prefix(host)?;
        let port = match port.strip_prefix(':') {
            None | Some("") => default,
            Some(digits) => digits.parse().ok().filter(|port| *port > 0)?,
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_owned();
        (!host.is_empty()).then_some(Self { host, port })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Whether something stands before the host, however wrong the rest is.
fn has_credentials(text: &str) -> bool {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (text, whole, place) in [
            ("ws://localhost:8080", "ws://localhost:8080/ws", "localhost:8080"),
            ("https://broker.example", "wss://broker.example/ws", "broker.example:443"),
            ("WS://[::1]:9/live?x=1", "ws://[::1]:9/live?x=1", "[::1]:9"),
            ("http://x?y=a@b", "ws://x/ws?y=a@b", "x:80"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.text.as_str(), url.place.to_string().as_str()), (whole, place));
        }
        assert_eq!(Url::parse("ws://[::1]:9").unwrap().place.host, "::1");
    }

    /// What is wrong is named, and what would be right.
    #[test]
    fn bad_urls() {
        for (text, code, says) in [
            ("", "url_required", "for example ws://localhost:8080/ws"),
            ("ftp://x", "bad_url", "ws or wss, not ftp"),
            ("localhost:8080", "bad_url", "no scheme: put ws:// or wss:// before it"),
            ("ws://user:secret@x/ws", "bad_url", "credentials do not belong in a url"),
            ("ws://user:se cret@x/ws", "bad_url", "credentials do not belong in a url"),
            ("ws:///ws", "bad_url", "is no URL"),
            ("ws://:80/ws", "bad_url", "no host"),
            ("ws://a b", "bad_url", "is no URL"),
            ("ws://x:99999", "bad_url", "no port from 1 to 65535"),
            ("ws://x:0", "bad_url", "no port from 1 to 65535"),
        ] {
            let error = Url::parse(text).unwrap_err();
            assert_eq!(error.code(), code, "{text}");
            assert!(error.fatal() && error.to_string().contains(says), "{text}: {error}");
            assert!(!error.to_string().contains("cret"), "{error}");
        }
    }
}
