//! The little HTTP that the suite needs, by hand: the upgrade as bytes, and requests to the other paths.

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The key and its answer that RFC 6455 gives as an example (1.3).
const KEY: (&str, &str) = ("dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");

/// Where a broker listens.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    /// Host and port, as in the URL.
    pub(crate) authority: String,
    /// The path of the URL, `/ws`.
    pub(crate) path: String,
}

impl Address {
    /// Reads `ws://host:port/path`.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("ws://").with_context(|| format!("`{url}` does not start with ws://"))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, "ws"));
        ensure!(!authority.is_empty(), "`{url}` names no host");
        let authority =
            if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
        Ok(Self { authority, path: format!("/{path}") })
    }

    /// Opens a TCP connection.
    pub(crate) async fn dial(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(&self.authority)
            .await
            .with_context(|| format!("connecting to {}", self.authority))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// A response's head.
pub(crate) struct Head {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    /// The value of a header, named in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }
}

/// The broker's answer to an upgrade, and the stream behind it.
pub(crate) struct Upgraded {
    pub(crate) head: Head,
    pub(crate) stream: TcpStream,
    /// Bytes that came behind the head.
    pub(crate) rest: Vec<u8>,
}

impl Upgraded {
    /// Fails unless the broker switched protocols.
    pub(crate) fn accepted(&self) -> Result<()> {
        ensure!(self.head.status == 101, "the upgrade was answered with status {}", self.head.status);
        ensure!(
            self.head.header("sec-websocket-accept") == Some(KEY.1),
            "a wrong sec-websocket-accept: {:?}",
            self.head.header("sec-websocket-accept")
        );
        Ok(())
    }
}

/// Asks for a WebSocket at `path`, with `more` header lines, each ended by CR LF.
pub(crate) async fn upgrade(mut stream: TcpStream, at: &Address, path: &str, more: &str) -> Result<Upgraded> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n{more}\r\n",
        at.authority, KEY.0
    );
    stream.write_all(request.as_bytes()).await?;
    let (head, rest) = read_head(&mut stream).await?;
    Ok(Upgraded { head, stream, rest })
}

/// Makes a request without a body, and gives the head and the body.
pub(crate) async fn request(at: &Address, method: &str, path: &str) -> Result<(Head, Vec<u8>)> {
    let mut stream = at.dial().await?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        at.authority
    );
    stream.write_all(request.as_bytes()).await?;
    let (head, mut body) = read_head(&mut stream).await?;
    let length = head.header("content-length").and_then(|length| length.parse::<usize>().ok());
    while length.is_none_or(|length| body.len() < length) {
        if stream.read_buf(&mut body).await? == 0 {
            break;
        }
    }
    Ok((head, body))
}

async fn read_head(stream: &mut TcpStream) -> Result<(Head, Vec<u8>)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            bail!("the broker closed the TCP connection instead of answering");
        }
    };
    let rest = bytes.split_off(end + 4);
    let text = String::from_utf8(bytes).context("an HTTP head that is not UTF-8")?;
    let mut lines = text.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("no status line")?.parse()?;
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Ok((Head { status, headers }, rest))
}
