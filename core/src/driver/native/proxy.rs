//! Which proxy stands between us and the broker, and the tunnel through it (point 10 of the decided ones, FC-25).

use std::fmt;
use std::io;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tungstenite::http::{StatusCode, Uri};

use super::failure;
use super::url::{Place, Url};
use crate::Error;
use crate::driver::OpenFailure;
use crate::error::ConnectionCode;

/// The longest answer of a proxy to `CONNECT`, in bytes.
const MAX_ANSWER: usize = 8 * 1024;

/// An HTTP proxy, which is asked for a tunnel to the broker. It is shown without its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    pub(super) place: Place,
    /// `user:password`, if the proxy's URL has them.
    credentials: Option<Vec<u8>>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({})", self.place)
    }
}

impl Proxy {
    /// A proxy by its URL, such as `http://user:password@proxy:3128`. The port is 80 where it names none. Only `http` proxies are
    /// supported.
    pub fn parse(url: &str) -> Result<Self, Error> {
        Self::read(url).ok_or_else(|| bad("the proxy"))
    }

    /// The proxy that the process's environment names for a URL; see [`Proxy::from_variables`].
    pub fn from_env(url: &Url) -> Result<Option<Self>, Error> {
        Self::from_variables(url, |name| std::env::var(name).ok())
    }

    /// The proxy that variables name for a URL: `HTTPS_PROXY` for `wss`, `HTTP_PROXY` for `ws`, unless `NO_PROXY` has the host. Each
    /// may be written in small letters as well.
    ///
    /// `NO_PROXY` lists, separated by commas, hosts, domains (with a leading dot or `*.`, or without), addresses and
    /// networks such as `10.0.0.0/8`, each but networks with a port if it is meant for that alone; `*` means all.
    pub fn from_variables(
        url: &Url,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, Error> {
        let set = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
        let either = |name: &str| set(name).or_else(|| set(&name.to_lowercase()));
        let name = if url.tls { "HTTPS_PROXY" } else { "HTTP_PROXY" };
        let Some(text) = either(name) else { return Ok(None) };
        if is_direct(&url.place, &either("NO_PROXY").unwrap_or_default()) {
            return Ok(None);
        }
        Self::read(&text).map(Some).ok_or_else(|| bad(name))
    }

    fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = text.parse().ok()?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"))?;
        let credentials = authority.as_str().rsplit_once('@').map(|(credentials, _)| {
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            percent_decode_str(user).chain(b":".iter().copied()).chain(percent_decode_str(password)).collect()
        });
        Some(Self { place: Place::parse(authority, 80)?, credentials })
    }

    /// Asks the proxy for a tunnel to a place.
    pub(super) async fn tunnel<S>(&self, stream: &mut S, to: &Place) -> Result<(), OpenFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let answer = self.ask(stream, to).await.map_err(|fault| {
            let message = format!("the proxy {} ended the connection: {fault}", self.place);
            failure(ConnectionCode::Lost, message)
        })?;
        let line = String::from_utf8_lossy(&answer);
        let line = line.lines().next().unwrap_or_default();
        let status = line.starts_with("HTTP/1.").then(|| line.split(' ').nth(1)).flatten();
        let Some(status) = status.and_then(|status| StatusCode::from_bytes(status.as_bytes()).ok()) else {
            let message = format!("the proxy {} does not answer in HTTP, but: {line:?}", self.place);
            return Err(failure(ConnectionCode::ProtocolError, message));
        };
        if status.is_success() {
            return Ok(());
        }
        let message = match (status, &self.credentials) {
            (StatusCode::PROXY_AUTHENTICATION_REQUIRED, None) => format!(
                "the proxy {} asks for credentials ({status}): give them as http://user:password@{}",
                self.place, self.place
            ),
            (StatusCode::PROXY_AUTHENTICATION_REQUIRED, Some(_)) => {
                format!("the proxy {} refuses the credentials ({status})", self.place)
            }
            _ => format!("the proxy {} does not connect to {to}: {status}", self.place),
        };
        Err(failure(ConnectionCode::HandshakeRejected(status.as_u16()), message))
    }

    /// The head of the proxy's answer, or as much of it as is bounded.
    async fn ask<S>(&self, stream: &mut S, to: &Place) -> io::Result<Vec<u8>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
        if let Some(credentials) = &self.credentials {
            request.extend(["Proxy-Authorization: Basic ", &STANDARD.encode(credentials), "\r\n"]);
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") && answer.len() < MAX_ANSWER {
            // One byte at a time: what follows the answer belongs to the broker.
            answer.push(stream.read_u8().await?);
            if !b"HTTP/1.".starts_with(&answer[..answer.len().min(7)]) {
                break;
            }
        }
        Ok(answer)
    }
}

fn bad(what: &str) -> Error {
    let message = format!("{what} is no URL of an HTTP proxy, such as http://user:password@proxy:3128");
    Error::Config { code: "bad_option", message }
}

/// Whether `NO_PROXY` has the place.
fn is_direct(place: &Place, no_proxy: &str) -> bool {
    no_proxy.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| has(entry, place))
}

fn has(entry: &str, place: &Place) -> bool {
    let host = place.host.trim_end_matches('.').to_ascii_lowercase();
    if entry == "*" {
        return true;
    }
    if let (Ok(network), Ok(address)) = (entry.parse::<IpNet>(), host.parse::<IpAddr>()) {
        return network.contains(&address);
    }
    let is_address = entry.parse::<IpAddr>().is_ok(); // an IPv6 address has colons of its own
    let (name, port) = match entry.rsplit_once(':') {
        Some((name, port)) if !is_address => (name, Some(port)),
        _ => (entry, None),
    };
    if port.is_some_and(|port| port.parse() != Ok(place.port)) {
        return false;
    }
    let name = name.trim_start_matches('[').trim_end_matches([']', '.']);
    let name = name.trim_start_matches("*.").trim_start_matches('.').to_ascii_lowercase();
    host == name || host.strip_suffix(&name).is_some_and(|rest| rest.ends_with('.') && !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(url: &str, variables: &[(&str, &str)]) -> Option<String> {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let proxy = Proxy::from_variables(&Url::parse(url).unwrap(), variable).unwrap()?;
        Some(proxy.place.to_string())
    }

    #[test]
    fn which_proxy() {
        let both = [("HTTPS_PROXY", "http://secure:1"), ("HTTP_PROXY", " "), ("http_proxy", "plain:2")];
        assert_eq!(chosen("wss://broker.example", &both).as_deref(), Some("secure:1"));
        assert_eq!(chosen("ws://broker.example", &both).as_deref(), Some("plain:2"));
        assert_eq!(chosen("ws://broker.example", &[]), None);
        assert_eq!(chosen("ws://broker.example", &[("HTTPS_PROXY", "secure")]), None);
        assert_eq!(chosen("ws://x", &[("HTTP_PROXY", "http://[::1]/")]).as_deref(), Some("[::1]:80"));
    }

    /// FC-25: whom `NO_PROXY` excepts.
    #[test]
    fn no_proxy() {
        let listed =
            "localhost, 127.0.0.1 ,.corp.test,,10.0.0.0/8,[::2]:80,::3,only.test:81, *.Any.test ,fe80::/10";
        for (url, direct) in [
            ("ws://127.0.0.1", true),
            ("ws://127.0.0.2", false),
            ("ws://LOCALHOST", true),
            ("ws://localhost.", true),
            ("ws://notlocalhost", false),
            ("ws://edge.corp.test", true),
            ("ws://Edge.CORP.test", true),
            ("ws://corp.test", true),
            ("ws://corp.test.example", false),
            ("ws://xcorp.test", false),
            ("ws://broker.other.test", false),
            ("ws://10.1.2.3", true),
            ("ws://11.1.2.3", false),
            ("ws://[::2]", true),
            ("ws://[::2]:81", false),
            ("ws://[::3]:9", true),
            ("ws://[fe80::7]", true),
            ("ws://only.test:81", true),
            ("ws://only.test", false),
            ("ws://a.any.test", true),
        ] {
            for name in ["NO_PROXY", "no_proxy"] {
                let found = chosen(url, &[("HTTP_PROXY", "http://p"), (name, listed)]);
                assert_eq!(found.is_none(), direct, "{url}");
            }
            assert_eq!(chosen(url, &[("HTTP_PROXY", "http://p"), ("NO_PROXY", "x, *")]), None);
            assert!(chosen(url, &[("HTTP_PROXY", "http://p"), ("NO_PROXY", " , .,")]).is_some());
        }
    }

    #[test]
    fn bad_proxies() {
        let url = Url::parse("ws://x").unwrap();
        for text in
            ["socks5://user:secret@p", "https://p", "http://", "http://user:secret@p:x", "user:sec ret@p"]
        {
            let by_variable = Proxy::from_variables(&url, |_| Some(text.into())).unwrap_err();
            for (error, says) in [(by_variable, "HTTP_PROXY"), (Proxy::parse(text).unwrap_err(), "the proxy")]
            {
                assert_eq!(error.code(), "bad_option");
                let message = error.to_string();
                assert!(
                    message.starts_with(says) && message.contains("http://user:password@proxy:3128"),
                    "{message}"
                );
                assert!(!message.contains("ret"), "{message}");
            }
        }
        let proxy = Proxy::parse("http://user:secret@p:3128").unwrap();
        assert_eq!(format!("{proxy:?}"), "Proxy(p:3128)");
    }

    #[tokio::test]
    async fn a_tunnel() {
        let (asks, refuses) = ("http://p:3128", "http://user:p%40%C3%A4ss@p:3128");
        for (proxy, answer, result) in [
            (refuses, "HTTP/1.1 200 Connection established\r\nVia: p\r\n\r\n", Ok(())),
            (asks, "HTTP/1.0 200 OK\r\n\r\n", Ok(())),
            (
                asks,
                "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
                Err((407, "asks for credentials (407")),
            ),
            (
                refuses,
                "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
                Err((407, "refuses the credentials")),
            ),
            (asks, "HTTP/1.1 502 Bad Gateway\r\n\r\n", Err((502, "does not connect to [::1]:8080: 502 Bad"))),
            (asks, "SSH-2.0-OpenSSH_9.6\r\n", Err((0, "does not answer in HTTP"))),
        ] {
            let (mut ours, mut theirs) = tokio::io::duplex(1_024);
            let proxy = Proxy::parse(proxy).unwrap();
            let serve = async {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(theirs.read_u8().await.unwrap());
                }
                theirs.write_all(answer.as_bytes()).await.unwrap();
                theirs.write_all(b"broker").await.unwrap();
                String::from_utf8(request).unwrap()
            };
            let to = Place { host: "::1".into(), port: 8080 };
            let (tunnel, request) = tokio::join!(proxy.tunnel(&mut ours, &to), serve);
            assert!(request.starts_with("CONNECT [::1]:8080 HTTP/1.1\r\nHost: [::1]:8080\r\n"), "{request}");
            let credentials = request.contains("\r\nProxy-Authorization: Basic dXNlcjpwQMOkc3M=\r\n");
            assert_eq!(credentials, proxy.credentials.is_some(), "{request}");
            match (tunnel, result) {
                (Ok(()), Ok(())) => {
                    let mut rest = [0; 6];
                    ours.read_exact(&mut rest).await.unwrap();
                    assert_eq!(&rest, b"broker", "nothing of the broker's is swallowed");
                }
                (Err(failure), Err((status, says))) => {
                    let code = if status == 0 {
                        ConnectionCode::ProtocolError
                    } else {
                        ConnectionCode::HandshakeRejected(status)
                    };
                    assert_eq!(failure.code, code);
                    assert!(failure.message.contains(says), "{}", failure.message);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// A proxy that ends the connection before its answer does.
    #[tokio::test]
    async fn a_proxy_that_leaves() {
        let (mut ours, mut theirs) = tokio::io::duplex(1_024);
        theirs.write_all(b"HTTP/1.1 2").await.unwrap();
        drop(theirs);
        let to = Place { host: "x".into(), port: 1 };
        let failure = Proxy::parse("p").unwrap().tunnel(&mut ours, &to).await.unwrap_err();
        assert_eq!(failure.code, ConnectionCode::Lost);
    }
}
