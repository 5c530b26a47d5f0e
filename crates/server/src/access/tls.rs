//! TLS with certificates from PEM files, reloaded when they change.
//!
//! A connection keeps the certificate that it started with; new connections use the new one.
//! Versions are TLS 1.2 and 1.3 with the ciphers of rustls. Client certificates are checked only
//! against the configured authorities.

use super::config::TlsFiles;
use super::reload::Reloading;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, RootCertStore, ServerConfig};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

/// ALPN protocols, in order of preference.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The latest time that webpki knows. A certificate has expired by then, so that its check names
/// the end of its validity.
const FAR: Duration = Duration::from_secs(253_402_300_800);

pub(super) struct Tls {
    config: Reloading<LoadedTls>,
    plain_metrics: bool,
}

/// The configuration that the files hold.
struct LoadedTls {
    config: Arc<ServerConfig>,
    /// End of the validity of the first certificate that ends, in seconds since the Unix epoch.
    expiry_s: Option<u64>,
}

impl Tls {
    pub(super) fn open(files: &TlsFiles) -> Result<Tls, String> {
        let paths: Vec<_> =
            [&files.certificate, &files.key].into_iter().chain(&files.client_authorities).cloned().collect();
        let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let config = Reloading::open("TLS", paths, move |contents| build(&shown, contents))?;
        Ok(Tls { config, plain_metrics: files.plain_metrics })
    }

    pub(super) fn refresh(&self) {
        self.config.refresh();
    }

    /// Returns the TLS acceptor of a listener; `None` if it is unencrypted.
    pub(super) fn acceptor(&self, is_metrics: bool) -> Option<TlsAcceptor> {
        self.covers(is_metrics).then(|| TlsAcceptor::from(self.config.current().config.clone()))
    }

    /// Returns the time at which the first certificate of the chain ends, in seconds since the Unix
    /// epoch.
    pub(super) fn expiry_s(&self) -> Option<u64> {
        self.config.current().expiry_s
    }

    /// Returns true if the listener is encrypted.
    pub(super) fn covers(&self, is_metrics: bool) -> bool {
        !(is_metrics && self.plain_metrics)
    }
}

/// Builds the configuration. `shown` and `contents` hold the certificate, the key and, if
/// configured, the authorities.
fn build(shown: &[String], contents: &[Vec<u8>]) -> Result<LoadedTls, String> {
    let chain = certificates(&shown[0], &contents[0])?;
    let expiry_s = chain.iter().filter_map(expiry_s).min();
    let key = PrivateKeyDer::from_pem_slice(&contents[1]).map_err(|_| {
        format!("{}: holds no private key in PEM; it begins with -----BEGIN PRIVATE KEY-----", shown[1])
    })?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    let builder = match (shown.get(2), contents.get(2)) {
        (Some(file), Some(content)) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file, content)? {
                roots.add(certificate).map_err(|error| format!("{file}: holds what is no authority: {error}"))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| format!("{file}: {error}"))?)
        }
        _ => builder.with_no_client_auth(),
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(|error| format!("{} and {} do not go together: {error}", shown[0], shown[1]))?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(LoadedTls { config: Arc::new(config), expiry_s })
}

/// Returns the end of a certificate's validity in seconds since the Unix epoch.
fn expiry_s(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (parsed, roots) = (ParsedCertificate::try_from(certificate).ok()?, RootCertStore::empty());
    let far = UnixTime::since_unix_epoch(FAR);
    match verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], far, &[]) {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Some(not_after.as_secs())
        }
        _ => None,
    }
}

/// Returns the end of the first certificate of a chain in PEM that ends.
pub(super) fn chain_expiry_s(contents: &[Vec<u8>]) -> Result<Option<u64>, String> {
    Ok(certificates("--peer-cert", &contents[0])?.iter().filter_map(expiry_s).min())
}

fn certificates(file: &str, content: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(content).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| format!("{file}: is not a PEM file: {error}"))?;
    if found.is_empty() {
        return Err(format!("{file}: holds no certificate in PEM; it begins with -----BEGIN CERTIFICATE-----"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::TempFiles;
    use super::*;
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    fn pair() -> (String, String) {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (cert.pem(), signing_key.serialize_pem())
    }

    #[test]
    fn files_that_do_not_serve_are_named_with_the_cause() {
        let folder = TempFiles::new();
        let ((certificate, key), (_, other_key)) = (pair(), pair());
        let open = |certificate: &str, key: &str, authorities: Option<&str>| {
            let files = TlsFiles {
                certificate: folder.write("cert.pem", certificate),
                key: folder.write("key.pem", key),
                client_authorities: authorities.map(|text| folder.write("ca.pem", text)),
                plain_metrics: false,
            };
            Tls::open(&files).err().unwrap_or_default()
        };
        assert_eq!(open(&certificate, &key, None), "");
        assert_eq!(open(&certificate, &key, Some(&certificate)), "");
        assert!(open(&key, &key, None).contains("cert.pem: holds no certificate"));
        assert!(open(&certificate, &certificate, None).contains("key.pem: holds no private key"));
        assert!(open(&certificate, &other_key, None).contains("do not go together"));
        assert!(open(&certificate, &key, Some("")).contains("ca.pem: holds no certificate"));
        assert!(open(&certificate[..certificate.len() / 2], &key, None).contains("cert.pem: "));
    }

    #[test]
    fn the_end_of_a_certificate_is_read_before_and_after_it() {
        for (year, is_authority) in [(2001, false), (2077, false), (2049, true)] {
            let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
            params.not_before = rcgen::date_time_ymd(2000, 1, 1);
            params.not_after = rcgen::date_time_ymd(year, 3, 1);
            if is_authority {
                params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            }
            let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
            let expected = params.not_after.unix_timestamp().cast_unsigned();
            assert_eq!(expiry_s(certificate.der()), Some(expected), "{year}");
        }
        assert_eq!(expiry_s(&CertificateDer::from(vec![1, 2, 3])), None);
    }

    #[test]
    fn a_pair_is_taken_over_once_both_halves_are_there() {
        let folder = TempFiles::new();
        let ((old, old_key), (new, new_key)) = (pair(), pair());
        let files = TlsFiles {
            certificate: folder.write("cert.pem", old),
            key: folder.write("key.pem", old_key),
            client_authorities: None,
            plain_metrics: true,
        };
        let tls = Tls::open(&files).unwrap();
        let before = tls.config.current();
        folder.write("cert.pem", new);
        tls.refresh();
        assert!(Arc::ptr_eq(&before, &tls.config.current()), "a certificate without its key");
        folder.write("key.pem", new_key);
        tls.refresh();
        assert!(!Arc::ptr_eq(&before, &tls.config.current()));
        assert!(tls.acceptor(false).is_some() && tls.acceptor(true).is_none());
    }
}
