//! An authority that signs certificates for tests, and files of these certificates.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Whether a certificate is valid now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// It is valid.
    Valid,
    /// It was valid until 2020.
    Expired,
}

/// An authority, and a folder for what it makes.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
    name: String,
    hosts: Vec<String>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("name", &self.name)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// Files of a certificate and its key.
#[derive(Debug, Clone)]
pub struct Paper {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Its serial number.
    pub serial: u64,
}

impl Authority {
    /// An authority that signs certificates for this machine.
    ///
    /// # Errors
    /// If its folder cannot be written.
    pub fn new(name: &str) -> Result<Self> {
        Self::for_hosts(name, &["localhost", "127.0.0.1"])
    }

    /// An authority that signs certificates for these names and IP addresses.
    ///
    /// # Errors
    /// As [`Authority::new`].
    pub fn for_hosts(name: &str, hosts: &[&str]) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        let authority = Self { issuer, folder: TempDir::new()?, name: name.to_owned(), hosts };
        fs::write(authority.cert(), authority.issuer.pem())?;
        Ok(authority)
    }

    /// File of the authority's own certificate.
    #[must_use]
    pub fn cert(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Path of a file in the authority's folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The authority's own certificate as text.
    #[must_use]
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Files of a new certificate.
    ///
    /// # Errors
    /// If it cannot be signed or written.
    pub fn sign(&self, serial: u64, validity: Validity) -> Result<Paper> {
        let (cert, key) = self.make(serial, validity)?;
        let paper = Paper {
            cert: self.path(&format!("{serial}.pem")),
            key: self.path(&format!("{serial}.key")),
            serial,
        };
        fs::write(&paper.cert, cert)?;
        fs::write(&paper.key, key)?;
        Ok(paper)
    }

    /// A new certificate and its key as text.
    ///
    /// # Errors
    /// If it cannot be signed.
    pub fn make(&self, serial: u64, validity: Validity) -> Result<(String, String)> {
        let mut params = CertificateParams::new(self.hosts.clone())?;
        let name = format!("{} {serial}", self.name);
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from(serial));
        if validity == Validity::Expired {
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?;
        Ok((cert.pem(), key.serialize_pem()))
    }

    /// The list of what it has revoked.
    ///
    /// # Errors
    /// If it cannot be signed.
    pub fn revoke(&self, serials: &[u64]) -> Result<String> {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer)?.pem().context("a list as text")
    }
}

/// Replaces a file as Kubernetes does: the new one gets the name at once.
///
/// # Errors
/// If the file cannot be written.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let fresh = path.with_extension("fresh");
    fs::write(&fresh, text)?;
    Ok(fs::rename(fresh, path)?)
}
