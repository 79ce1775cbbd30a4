//! What is trusted, and why somebody is not (FC-26).

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error as Fault, RootCertStore};

use super::failure;
use super::url::Place;
use crate::Error;
use crate::driver::OpenFailure;
use crate::error::ConnectionCode;

/// What TLS trusts: the bundled roots, and those given (PEM, at least one).
pub(super) fn config(extra_roots: Option<&[u8]>) -> Result<Arc<ClientConfig>, Error> {
    /// Most clients trust nobody else, and share this: it is some 20 KB.
    static BUNDLED: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let (None, Some(config)) = (extra_roots, BUNDLED.get()) {
        return Ok(Arc::clone(config));
    }
    let bad = |message: String| Error::Config { code: "bad_option", message };
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let bundled = roots.len();
    for certificate in extra_roots.into_iter().flat_map(CertificateDer::pem_slice_iter) {
        let certificate = certificate.map_err(|fault| bad(format!("the CA is no PEM: {fault}")))?;
        roots.add(certificate).map_err(|fault| bad(format!("the CA cannot be used: {fault}")))?;
    }
    if extra_roots.is_some() && roots.len() == bundled {
        let message = "the CA has no certificate: it is PEM text, with -----BEGIN CERTIFICATE-----";
        return Err(bad(message.to_owned()));
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|fault| bad(format!("TLS cannot be used: {fault}")))?;
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    Ok(if extra_roots.is_none() { Arc::clone(BUNDLED.get_or_init(|| config)) } else { config })
}

/// TLS with a host, whose name is checked.
pub(super) async fn connect<S>(
    config: Arc<ClientConfig>,
    place: &Place,
    stream: S,
) -> Result<TlsStream<S>, OpenFailure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = ServerName::try_from(place.host.clone()).map_err(|fault| {
        failure(ConnectionCode::Tls, format!("{} is no name for TLS: {fault}", place.host))
    })?;
    TlsConnector::from(config).connect(name, stream).await.map_err(|fault| explain(place, &fault))
}

fn explain(place: &Place, fault: &io::Error) -> OpenFailure {
    let Some(reason) = fault.get_ref().and_then(|inner| inner.downcast_ref::<Fault>()) else {
        let message = format!(
            "{place} ended the connection during the TLS handshake ({fault}); a broker without TLS has a url that begins with ws://"
        );
        return failure(ConnectionCode::Lost, message);
    };
    let message = match reason {
        Fault::InvalidCertificate(CertificateError::UnknownIssuer) => format!(
            "the certificate of {place} is not trusted: its issuer is unknown; a private CA has to be given"
        ),
        Fault::InvalidCertificate(
            reason @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
        ) => format!("the certificate of {place} is for another name: {reason}"),
        Fault::InvalidCertificate(
            reason @ (CertificateError::Expired | CertificateError::ExpiredContext { .. }),
        ) => format!("the certificate of {place} has expired: {reason}"),
        Fault::InvalidCertificate(reason) => format!("the certificate of {place} is not accepted: {reason}"),
        Fault::InvalidMessage(_) => {
            format!("{place} does not speak TLS; a broker without TLS has a url that begins with ws://")
        }
        reason => format!("TLS with {place} failed: {reason}"),
    };
    failure(ConnectionCode::Tls, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FC-26: what is no PEM is told when it is given.
    #[test]
    fn a_ca_that_is_none() {
        assert!(config(None).is_ok());
        for (pem, says) in [
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "the CA cannot be used"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n", "the CA is no PEM"),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "the CA has no certificate"),
            ("ca.pem", "the CA has no certificate"),
            ("", "the CA has no certificate"),
        ] {
            let error = config(Some(pem.as_bytes())).unwrap_err();
            assert_eq!(error.code(), "bad_option");
            assert!(error.to_string().contains(says), "{pem}: {error}");
        }
    }
}
