//! The HTTP upgrade, and what is said by whoever does not answer it as a WebSocket does.

use std::io::{self, Cursor, Read, Write};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tungstenite::Error as Fault;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::handshake::HandshakeError;
use tungstenite::handshake::client::{ClientHandshake, Response};
use tungstenite::handshake::machine::TryParse as _;
use tungstenite::http::HeaderMap;

use super::failure;
use super::url::Url;
use crate::driver::OpenFailure;
use crate::error::ConnectionCode;

/// The longest head of an answer, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// How much of an answer that is none is quoted, in characters.
const MAX_QUOTE: usize = 60;

/// Both directions of the handshake in memory: tungstenite writes and checks it, we carry it.
#[derive(Default)]
struct Exchange {
    request: Vec<u8>,
    answer: Cursor<Vec<u8>>,
}

impl Read for Exchange {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match Read::read(&mut self.answer, buf)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            len => Ok(len),
        }
    }
}

impl Write for Exchange {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Write::write(&mut self.request, buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Upgrades the connection. Returns what has come behind the answer.
pub(super) async fn upgrade<S>(url: &Url, headers: &HeaderMap, stream: &mut S) -> Result<Vec<u8>, OpenFailure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let odd = |fault: Fault| {
        let message = format!("{} does not answer as a WebSocket does: {fault}", url.place);
        failure(ConnectionCode::ProtocolError, message)
    };
    let mut request = url.text.as_str().into_client_request().map_err(odd)?;
    request.headers_mut().extend(headers.clone());
    let handshake = ClientHandshake::start(Exchange::default(), request, None).map_err(odd)?;
    let mut handshake = match handshake.handshake() {
        Err(HandshakeError::Interrupted(handshake)) => handshake,
        Err(HandshakeError::Failure(fault)) => return Err(odd(fault)),
        Ok(_) => return Err(odd(Fault::AlreadyClosed)), // there was no answer yet
    };
    let exchange = handshake.get_mut().get_mut();
    let lost = |fault| lost(url, &fault);
    stream.write_all(&exchange.request).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let mut answer = read_head(url, stream).await?;
    exchange.answer = Cursor::new(answer.head);
    match handshake.handshake() {
        Ok(_) => Ok(std::mem::take(&mut answer.behind)),
        Err(HandshakeError::Failure(Fault::Http(response))) => Err(rejected(url, &response)),
        Err(HandshakeError::Failure(fault)) => Err(odd(fault)),
        Err(HandshakeError::Interrupted(_)) => Err(odd(Fault::AttackAttempt)),
    }
}

struct Answer {
    head: Vec<u8>,
    behind: Vec<u8>,
}

async fn read_head<S: AsyncRead + Unpin>(url: &Url, stream: &mut S) -> Result<Answer, OpenFailure> {
    let mut head = Vec::new();
    loop {
        match stream.read_buf(&mut head).await {
            Ok(0) if head.is_empty() => {
                return Err(lost(url, &io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(0) => return Err(no_http(url, &head)),
            Ok(_) => {}
            Err(fault) => return Err(lost(url, &fault)),
        }
        match Response::try_parse(&head) {
            Ok(Some((len, _))) => {
                let behind = head.split_off(len);
                return Ok(Answer { head, behind });
            }
            Ok(None) if head.len() < MAX_HEAD => {}
            Ok(None) | Err(_) => return Err(no_http(url, &head)),
        }
    }
}

fn lost(url: &Url, fault: &io::Error) -> OpenFailure {
    let hint = if url.tls { "" } else { "; a broker with TLS has a url that begins with wss://" };
    let message = format!("{} ended the connection before it answered ({fault}){hint}", url.place);
    failure(ConnectionCode::Lost, message)
}

/// The server has answered, but with another status than that of an upgrade.
fn rejected(url: &Url, response: &Response) -> OpenFailure {
    let status = response.status();
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let place = &url.place;
    let message = match header("location").filter(|_| status.is_redirection()) {
        Some(target) => {
            format!("{place} answers {status} and redirects to {target}, which has to be given as the url")
        }
        None => format!("{place} answers {status} where a WebSocket was asked for: are host and path right?"),
    };
    OpenFailure {
        code: ConnectionCode::HandshakeRejected(status.as_u16()),
        message,
        retry_after: header("retry-after").and_then(|text| text.parse().ok()).map(Duration::from_secs),
    }
}

/// What came is no answer in HTTP/1.1.
fn no_http(url: &Url, answer: &[u8]) -> OpenFailure {
    let place = &url.place;
    if let Some(status) = answer.strip_prefix(b"HTTP/1.0 ").and_then(|rest| rest.get(..3))
        && let Some(status) = std::str::from_utf8(status).ok().and_then(|status| status.parse().ok())
    {
        let message = format!("{place} answers {status} in HTTP/1.0, which has no WebSockets");
        return failure(ConnectionCode::HandshakeRejected(status), message);
    }
    // A TLS record begins with its kind, here 21 (alert) or 22 (handshake), and the version's 3.
    let message = if matches!(answer, [21 | 22, 3, ..]) {
        format!("{place} speaks TLS: its url begins with wss://")
    } else {
        let text: String = String::from_utf8_lossy(answer).chars().take(MAX_QUOTE).collect();
        format!("{place} does not speak HTTP, but answers {text:?}: is it the broker's port?")
    };
    failure(ConnectionCode::ProtocolError, message)
}
