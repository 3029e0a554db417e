//! Certificates of these tests.

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
    Valid,
    Expired,
}

/// An authority, and a folder for what it makes.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
    name: String,
}

/// Files of a certificate and its key.
#[derive(Debug, Clone)]
pub struct Paper {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub serial: u64,
}

impl Authority {
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let authority = Self { issuer, folder: TempDir::new()?, name: name.to_owned() };
        fs::write(authority.cert(), authority.issuer.pem())?;
        Ok(authority)
    }

    pub fn cert(&self) -> PathBuf {
        self.path("ca.pem")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for this machine.
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

    /// The same as text.
    pub fn make(&self, serial: u64, validity: Validity) -> Result<(String, String)> {
        let mut params =
            CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
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

/// As Kubernetes replaces files: the new one gets the name at once.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let fresh = path.with_extension("fresh");
    fs::write(&fresh, text)?;
    Ok(fs::rename(fresh, path)?)
}
