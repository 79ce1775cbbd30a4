//! FC-26: a private certificate authority. TLS is real; the certificates are made as the tests run.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use nolag_core::driver::native::{Native, Url};
use nolag_core::options::InitialConnect;
use nolag_core::{Client, Error};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::{attempt, local_broker, names};

/// A certificate authority of our own.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub(super) pem: String,
}

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// TLS in front of a broker, with a certificate of this authority for one name.
    pub(super) async fn guard(&self, broker: SocketAddr, name: &str, expired: bool) -> SocketAddr {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        if expired {
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.into()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut inside = acceptor.accept(stream).await?;
                    let mut outside = TcpStream::connect(broker).await?;
                    tokio::io::copy_bidirectional(&mut inside, &mut outside).await
                });
            }
        });
        address
    }
}

fn native(at: SocketAddr, name: &str, ca: Option<&str>) -> Native {
    let url = Url::parse(&format!("wss://{name}")).unwrap();
    Native::with_proxy(url, ca.map(str::as_bytes), None).unwrap().resolver(names(&[(name, &[at])]))
}

/// The text of a failure of TLS that ends the attempts.
fn refusal(result: Result<(), Error>) -> String {
    let error = result.unwrap_err();
    assert!(error.code() == "tls" && error.fatal(), "{error:?}");
    error.to_string()
}

/// One and two certificates in the text, in either order.
#[tokio::test]
async fn trusted() {
    let (ours, other) = (Authority::new("Ours"), Authority::new("Other"));
    let at = ours.guard(local_broker().await, "broker.test", false).await;
    for ca in [ours.pem.clone(), format!("{}{}", other.pem, ours.pem), format!("{}\n{}", ours.pem, other.pem)]
    {
        attempt(native(at, "broker.test", Some(&ca))).await.unwrap();
    }
}

/// Each other case fails with its own reason.
#[tokio::test]
async fn not_trusted() {
    let (ours, other) = (Authority::new("Ours"), Authority::new("Other"));
    let broker = local_broker().await;
    let at = ours.guard(broker, "broker.test", false).await;
    for ca in [None, Some(other.pem.as_str())] {
        let text = refusal(attempt(native(at, "broker.test", ca)).await);
        assert!(text.contains("the certificate of broker.test:443 is not trusted"), "{text}");
    }
    let text = refusal(attempt(native(at, "other.test", Some(&ours.pem))).await);
    assert!(text.contains("the certificate of other.test:443 is for another name"), "{text}");
    assert!(text.contains("broker.test"), "{text}");
    let late = ours.guard(broker, "broker.test", true).await;
    let text = refusal(attempt(native(late, "broker.test", Some(&ours.pem))).await);
    assert!(text.contains("the certificate of broker.test:443 has expired"), "{text}");
}

/// Without a word on the first attempt either, such a failure ends the attempts: nothing is tried in a tight loop.
#[tokio::test]
async fn not_tried_again() {
    let at = Authority::new("Ours").guard(local_broker().await, "broker.test", false).await;
    for initial in [InitialConnect::Wait, InitialConnect::Background] {
        let builder = Client::builder("t").transport(native(at, "broker.test", None));
        let client = builder.options(|options| options.initial_connect = initial).build().unwrap();
        refusal(client.connect().await);
        assert_eq!(client.stats().connect_failures, 1);
    }
}

/// Text that is no PEM is told when the option is given, through the builder as well.
#[tokio::test]
async fn no_pem() {
    let built = Client::builder("t").url("wss://broker.test").ca("ca.pem").build();
    assert_eq!(built.err().unwrap().code(), "bad_option");
}

/// The scheme that belongs to the other kind of port.
#[tokio::test]
async fn the_wrong_scheme() {
    let broker = local_broker().await;
    let guarded = Authority::new("Ours").guard(broker, "broker.test", false).await;
    let plain = Native::with_proxy(Url::parse(&format!("ws://{guarded}")).unwrap(), None, None).unwrap();
    let error = attempt(plain).await.unwrap_err();
    assert_eq!(error.code(), "protocol_error");
    assert!(error.to_string().contains("its url begins with wss://"), "{error}");
    let text = refusal(attempt(native(broker, "broker.test", None)).await);
    assert!(text.contains("a broker without TLS has a url that begins with ws://"), "{text}");
}
