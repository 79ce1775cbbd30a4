//! FC-25: proxies, and the hosts that need none.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use nolag_core::driver::native::{Native, Proxy, Url};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::certificates::Authority;
use super::{TOKEN, attempt, local_broker, names};

/// A proxy that leads wherever it is asked to one place, and keeps what it was shown.
struct Recorder {
    address: SocketAddr,
    /// The head of each request.
    heads: Arc<Mutex<Vec<String>>>,
    /// All bytes that clients sent through tunnels.
    through: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    /// Asks for this `Proxy-Authorization`, if any.
    async fn start(leads_to: SocketAddr, authorization: Option<&'static str>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let recorder = Self { address, heads: Arc::default(), through: Arc::default() };
        let (heads, through) = (Arc::clone(&recorder.heads), Arc::clone(&recorder.through));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (heads, through) = (Arc::clone(&heads), Arc::clone(&through));
                tokio::spawn(Self::tunnel(stream, leads_to, authorization, heads, through));
            }
        });
        recorder
    }

    async fn tunnel(
        mut client: TcpStream,
        leads_to: SocketAddr,
        authorization: Option<&'static str>,
        heads: Arc<Mutex<Vec<String>>>,
        through: Arc<Mutex<Vec<u8>>>,
    ) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap();
        heads.lock().unwrap().push(head.clone());
        if authorization.is_some_and(|wanted| !head.contains(&format!("Proxy-Authorization: {wanted}\r\n"))) {
            return client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await;
        }
        let mut broker = TcpStream::connect(leads_to).await?;
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_broker, mut to_broker) = broker.split();
        let back = tokio::io::copy(&mut from_broker, &mut to_client);
        let forth = async {
            let mut chunk = vec![0; 4096];
            loop {
                let len = from_client.read(&mut chunk).await?;
                if len == 0 {
                    return to_broker.shutdown().await;
                }
                through.lock().unwrap().extend_from_slice(&chunk[..len]);
                to_broker.write_all(&chunk[..len]).await?;
            }
        };
        tokio::try_join!(back, forth).map(|_| ())
    }

    /// What was asked since the last time, first lines only.
    fn asked(&self) -> Vec<String> {
        let heads = std::mem::take(&mut *self.heads.lock().unwrap());
        heads.iter().map(|head| head.lines().next().unwrap_or_default().to_owned()).collect()
    }

    fn was_shown(&self, text: &str) -> bool {
        // A client masks what it sends; with the key, which comes before it, anybody can read it.
        let through = self.through.lock().unwrap();
        let is_there = |key: &[u8], rest: &[u8]| {
            rest.windows(text.len()).enumerate().any(|(start, window)| {
                (window.iter().enumerate())
                    .all(|(at, byte)| byte ^ key[(start + at) % 4] == text.as_bytes()[at])
            })
        };
        through.windows(4).enumerate().any(|(at, key)| is_there(key, &through[at + 4..]))
            || is_there(&[0; 4], &through)
    }
}

/// Connects to a host in an environment with both proxies and this `NO_PROXY`.
async fn connect(host: &str, proxy: &Recorder, broker: SocketAddr, no_proxy: &'static str) {
    let url = Url::parse(&format!("ws://{host}:{}", broker.port())).unwrap();
    let environment = |name: &str| match name {
        "HTTP_PROXY" | "HTTPS_PROXY" => Some("http://proxy.test:3128".to_owned()),
        "no_proxy" => Some(no_proxy.to_owned()),
        _ => None,
    };
    let chosen = Proxy::from_variables(&url, environment).unwrap();
    // Only the proxy knows where broker.other.test is.
    let known = names(&[
        ("proxy.test", &[proxy.address]),
        ("127.0.0.1", &[broker]),
        ("LOCALHOST", &[broker]),
        ("edge.corp.test", &[broker]),
    ]);
    attempt(Native::with_proxy(url, None, chosen).unwrap().resolver(known)).await.unwrap();
}

/// Only who is not excepted goes through the proxy, with one CONNECT that names host and port.
#[tokio::test]
async fn exceptions() {
    const LISTED: &str = "localhost, 127.0.0.1 ,.corp.test";
    let broker = local_broker().await;
    let proxy = Recorder::start(broker, None).await;
    for host in ["127.0.0.1", "LOCALHOST", "edge.corp.test"] {
        connect(host, &proxy, broker, LISTED).await;
        assert!(proxy.asked().is_empty(), "{host}");
    }
    connect("broker.other.test", &proxy, broker, LISTED).await;
    assert_eq!(proxy.asked(), [format!("CONNECT broker.other.test:{} HTTP/1.1", broker.port())]);
    assert!(proxy.was_shown(TOKEN), "without TLS nothing hides it");
    connect("127.0.0.1", &proxy, broker, "*").await;
    connect("edge.corp.test", &proxy, broker, "*").await;
    assert!(proxy.asked().is_empty());
}

/// The options count before the environment: no proxy, and another one.
#[tokio::test]
async fn options() {
    let broker = local_broker().await;
    let url = Url::parse(&format!("ws://{broker}")).unwrap();
    attempt(Native::with_proxy(url.clone(), None, None).unwrap()).await.unwrap();
    let proxy = Recorder::start(broker, Some("Basic dXNlcjpwQHNz")).await;
    for (credentials, says) in [
        ("", Some("asks for credentials (407")),
        ("user:no@", Some("refuses the credentials (407")),
        ("user:p%40ss@", None),
    ] {
        let through = Proxy::parse(&format!("http://{credentials}{}", proxy.address)).unwrap();
        let result = attempt(Native::with_proxy(url.clone(), None, Some(through)).unwrap()).await;
        assert_eq!(proxy.asked(), [format!("CONNECT {broker} HTTP/1.1")]);
        match (says, result) {
            (None, result) => result.unwrap(),
            (Some(says), result) => {
                let error = result.unwrap_err();
                assert_eq!(error.code(), "handshake_rejected");
                assert!(error.to_string().contains(says), "{error}");
            }
        }
    }
}

/// Through the tunnel TLS is spoken with the broker: its name is checked, and the proxy never sees the token.
#[tokio::test]
async fn tls_inside() {
    let authority = Authority::new("Ours");
    let guard = authority.guard(local_broker().await, "broker.test", false).await;
    let proxy = Recorder::start(guard, None).await;
    let through = Proxy::parse(&proxy.address.to_string()).unwrap();
    let native = |name: &str| {
        let url = Url::parse(&format!("wss://{name}")).unwrap();
        Native::with_proxy(url, Some(authority.pem.as_bytes()), Some(through.clone())).unwrap()
    };
    attempt(native("broker.test")).await.unwrap();
    assert_eq!(proxy.asked(), ["CONNECT broker.test:443 HTTP/1.1"]);
    assert!(!proxy.was_shown(TOKEN));
    assert_eq!(attempt(native("other.test")).await.unwrap_err().code(), "tls");
}

/// A proxy that is not there is named as the one that is not.
#[tokio::test]
async fn no_proxy_there() {
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    let through = Proxy::parse(&format!("http://user:secret@{nobody}")).unwrap();
    let native = Native::with_proxy(Url::parse("ws://broker.test").unwrap(), None, Some(through)).unwrap();
    let error = attempt(native).await.unwrap_err();
    assert_eq!(error.code(), "refused");
    let text = error.to_string();
    assert!(text.contains("through the proxy") && text.contains(&nobody.to_string()), "{text}");
    assert!(!text.contains("secret"), "{text}");
}
