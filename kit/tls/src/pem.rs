//! Reads PEM files.

use crate::error::FILE_BYTES_MAX;
use crate::{Problem, TlsError};
use rustls::RootCertStore;
#[cfg(feature = "server")]
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// A file, and the option that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The option with the file's path.
    pub option: &'static str,
    /// The file.
    pub path: PathBuf,
}

/// The content of a file.
pub struct Contents {
    source: Source,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Contents").field(&self.source).finish()
    }
}

impl Source {
    pub(crate) fn refused(&self, problem: impl Into<Problem>) -> TlsError {
        TlsError { option: self.option, path: self.path.clone(), problem: problem.into() }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// If the file cannot be read or is too long.
    pub(crate) fn read_file(&self) -> Result<Contents, TlsError> {
        // Reading a pipe would never end.
        let is_file = self.path.metadata().map_err(|error| self.refused(error))?.is_file();
        if !is_file {
            return Err(self.refused(Problem::NotAFile));
        }
        let mut bytes = Vec::new();
        let file = File::open(&self.path).map_err(|error| self.refused(error))?;
        let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
        let length = read.map_err(|error| self.refused(error))? as u64;
        if length > FILE_BYTES_MAX {
            return Err(self.refused(Problem::TooLong(length)));
        }
        Ok(Contents { source: self.clone(), bytes })
    }
}

impl Contents {
    pub(crate) fn refused(&self, problem: impl Into<Problem>) -> TlsError {
        self.source.refused(problem)
    }

    /// The content as text.
    ///
    /// # Errors
    /// If the content is not UTF-8.
    pub fn text(&self) -> Result<&str, TlsError> {
        std::str::from_utf8(&self.bytes).map_err(|_error| self.unusable("is not UTF-8"))
    }

    /// An error for unusable content. The error's text must not contain any of the content.
    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    pub fn unusable(&self, error: impl ToString) -> TlsError {
        self.refused(Problem::Unusable(error.to_string()))
    }

    /// All certificates, at least one.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        self.parse_all("certificate")
    }

    /// All lists of revoked certificates, at least one.
    #[cfg(feature = "server")]
    pub(crate) fn revocation_lists(
        &self,
    ) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
        self.parse_all("list of revoked certificates")
    }

    /// Why the key does not match its certificate.
    pub(crate) fn unusable_key(&self, error: &rustls::Error) -> TlsError {
        if let rustls::Error::InconsistentKeys(_) = error {
            return self.unusable("is not the key of tls-cert");
        }
        self.unusable(error)
    }

    fn parse_all<T: PemObject>(&self, what: &'static str) -> Result<Vec<T>, TlsError> {
        let read: Result<Vec<T>, _> = T::pem_slice_iter(&self.bytes).collect();
        let read = read.map_err(|error| self.damaged(&error, what))?;
        if read.is_empty() { Err(self.refused(Problem::Missing(what))) } else { Ok(read) }
    }

    /// The first private key.
    pub(crate) fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        const WHAT: &str = "private key without a passphrase";
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| self.damaged(&error, WHAT))
    }

    /// Certificates as trust anchors.
    pub(crate) fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| self.unusable(error))?;
        }
        Ok(roots)
    }

    /// The parser's errors quote the file, so they are not passed on.
    fn damaged(&self, error: &pem::Error, what: &'static str) -> TlsError {
        let is_missing = matches!(error, pem::Error::NoItemsFound);
        self.refused(if is_missing { Problem::Missing(what) } else { Problem::Damaged })
    }
}
