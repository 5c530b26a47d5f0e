//! Certificates, keys and authorities from PEM files, for the planes and for etcd.

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;

/// Returns the cryptography that all connections use.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Reads a file; the error names it.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// Parses a certificate and its chain. `file` is for messages.
pub(crate) fn certificates(file: &Path, content: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(content).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| format!("{}: is not a PEM file: {error}", file.display()))?;
    if found.is_empty() {
        let begins = "-----BEGIN CERTIFICATE-----";
        return Err(format!("{}: holds no certificate in PEM; it begins with {begins}", file.display()));
    }
    Ok(found)
}

/// Parses a private key. The error quotes nothing of the file.
pub(crate) fn private_key(file: &Path, content: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let begins = "-----BEGIN PRIVATE KEY-----";
    PrivateKeyDer::from_pem_slice(content)
        .map_err(|_| format!("{}: holds no private key in PEM; it begins with {begins}", file.display()))
}

/// Parses the certificates of authorities.
pub(crate) fn authorities(file: &Path, content: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file, content)? {
        roots.add(certificate).map_err(|error| format!("{}: holds what is no authority: {error}", file.display()))?;
    }
    Ok(roots)
}
