//! TLS for clients, and the root certificates that they trust.

use std::{path::Path, sync::Arc};

use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

use crate::error::{Error, Result};

/// TLS for clients that trust `roots`.
pub fn client_tls(roots: impl Into<Arc<RootCertStore>>) -> Result<ClientConfig> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::config_because("cannot set up TLS", error))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Reads root certificates from a PEM file, whose path is the value of `setting`, or from the system's store if there
/// is no `path`.
pub fn trusted_roots(path: Option<&Path>, setting: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(path) = path else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let unreadable = |error| {
        let message = format!("expected certificates in `{setting}`, `{}`", path.display());
        Error::config_because(message, error)
    };
    for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
        roots.add_parsable_certificates([certificate.map_err(unreadable)?]);
    }
    Ok(roots)
}
