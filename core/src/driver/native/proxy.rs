//! Which proxy stands between us and the broker, and the tunnel through it (point 10 of the decided ones).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::http::Uri;

use super::url::Url;
use crate::Error;

/// The longest answer of a proxy to `CONNECT`, in bytes.
const MAX_ANSWER: usize = 8 * 1024;

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    pub(super) host: String,
    pub(super) port: u16,
    /// `user:password`, if the proxy's URL has them.
    credentials: Option<String>,
}

impl Proxy {
    /// The proxy that the environment names for this URL: `HTTPS_PROXY` for `wss`, `HTTP_PROXY` for `ws`, unless `NO_PROXY`
    /// has the host. Small letters count as well.
    pub(super) fn from_env(
        url: &Url,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, Error> {
        let either = |name: &str| variable(name).or_else(|| variable(&name.to_lowercase()));
        let name = if url.tls { "HTTPS_PROXY" } else { "HTTP_PROXY" };
        let Some(text) = either(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        if is_direct(&url.host, &either("NO_PROXY").unwrap_or_default()) {
            return Ok(None);
        }
        Self::parse(&text).map(Some).ok_or_else(|| Error::Config {
            code: "bad_option",
            message: format!("{name} is no URL of an HTTP proxy, such as http://proxy:3128"),
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = text.parse().ok()?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"))?;
        let credentials = authority.as_str().rsplit_once('@').map(|(credentials, _)| credentials.to_owned());
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Self { host, port: authority.port_u16().unwrap_or(80), credentials })
    }

    /// Asks the proxy for a tunnel to `host` and `port`; what it refuses with is returned.
    pub(super) async fn tunnel<S>(&self, stream: &mut S, host: &str, port: u16) -> Result<(), String>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
        if let Some(credentials) = &self.credentials {
            request.extend(["Proxy-Authorization: Basic ", &STANDARD.encode(credentials), "\r\n"]);
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await.map_err(|fault| fault.to_string())?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            // One byte at a time: what follows the answer belongs to the broker.
            let byte = stream.read_u8().await.map_err(|fault| fault.to_string())?;
            answer.push(byte);
            if answer.len() > MAX_ANSWER {
                return Err("the proxy's answer has no end".to_owned());
            }
        }
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.lines().next().unwrap_or_default();
        match status.split(' ').nth(1) {
            Some(code) if code.starts_with('2') && status.starts_with("HTTP/1.") => Ok(()),
            _ => Err(format!("the proxy answered: {status}")),
        }
    }
}

/// Whether `NO_PROXY` has the host: by its whole name, as part of a domain, or `*`.
fn is_direct(host: &str, no_proxy: &str) -> bool {
    no_proxy.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let domain = entry.trim_start_matches("*.").trim_start_matches('.');
        entry == "*"
            || host.eq_ignore_ascii_case(domain)
            || host.len() > domain.len()
                && host.to_ascii_lowercase().ends_with(&format!(".{}", domain.to_ascii_lowercase()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(url: &str, variables: &[(&str, &str)]) -> Option<(String, u16)> {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let proxy = Proxy::from_env(&Url::parse(url).unwrap(), variable).unwrap()?;
        Some((proxy.host, proxy.port))
    }

    #[test]
    fn which_proxy() {
        let both = [("HTTPS_PROXY", "http://secure:1"), ("http_proxy", "plain:2")];
        assert_eq!(chosen("wss://broker.example", &both), Some(("secure".into(), 1)));
        assert_eq!(chosen("ws://broker.example", &both), Some(("plain".into(), 2)));
        assert_eq!(chosen("ws://broker.example", &[]), None);
        for (no_proxy, direct) in [
            ("broker.example", true),
            ("other, .example", true),
            ("*.example", true),
            ("*", true),
            ("oker.example", false),
            ("", false),
        ] {
            let found = chosen("ws://broker.example", &[("HTTP_PROXY", "http://p"), ("NO_PROXY", no_proxy)]);
            assert_eq!(found.is_none(), direct, "{no_proxy}");
        }
        let bad = Proxy::from_env(&Url::parse("ws://x").unwrap(), |_| Some("socks5://user:secret@p".into()));
        let error = bad.map(|_| ()).unwrap_err();
        assert_eq!(error.code(), "bad_option");
        assert!(!error.to_string().contains("secret"));
    }

    #[tokio::test]
    async fn a_tunnel() {
        for (answer, open) in [
            ("HTTP/1.1 200 Connection established\r\nVia: p\r\n\r\n", true),
            ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", false),
            ("nonsense\r\n\r\n", false),
        ] {
            let (mut ours, mut theirs) = tokio::io::duplex(1_024);
            let proxy = Proxy::parse("http://user:pass@p:3128").unwrap();
            let serve = async {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(theirs.read_u8().await.unwrap());
                }
                theirs.write_all(answer.as_bytes()).await.unwrap();
                theirs.write_all(b"broker").await.unwrap();
                String::from_utf8(request).unwrap()
            };
            let (tunnel, request) = tokio::join!(proxy.tunnel(&mut ours, "::1", 8080), serve);
            assert_eq!(tunnel.is_ok(), open, "{tunnel:?}");
            assert!(request.starts_with("CONNECT [::1]:8080 HTTP/1.1\r\nHost: [::1]:8080\r\n"), "{request}");
            assert!(request.contains("Basic dXNlcjpwYXNz\r\n"));
            let mut rest = [0; 6];
            ours.read_exact(&mut rest).await.unwrap();
            assert_eq!(&rest, b"broker", "nothing of the broker's is swallowed");
        }
    }
}
