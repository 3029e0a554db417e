use std::io;
use std::path::PathBuf;

/// Maximum file size, in bytes. Revocation lists are the longest files.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why a file cannot be used. Errors contain nothing of the file, because it may be a key.
#[derive(Debug, thiserror::Error)]
#[error("{option}: {}: {problem}", path.display())]
pub struct TlsError {
    /// The option that names the file.
    pub option: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Problem of the file.
    pub problem: Problem,
}

impl TlsError {
    /// The error of an option without its file: a bug of the program, because files are read in the order of their
    /// options.
    pub(crate) fn without_file(option: &'static str) -> Self {
        Self { option, path: PathBuf::new(), problem: Problem::Missing("file") }
    }
}

/// Problem of a file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    /// The path is a folder, a pipe or a device.
    #[error("is not a regular file")]
    NotAFile,
    /// The file is too long.
    #[error("has {0} bytes, the limit is {max}", max = FILE_BYTES_MAX)]
    TooLong(u64),
    /// The file contains no item of the kind that its option requires.
    #[error("has no {0} in PEM format")]
    Missing(&'static str),
    /// The PEM blocks of the file are damaged.
    #[error("has a damaged PEM block")]
    Damaged,
    /// The content of the file cannot be used.
    #[error("{0}")]
    Unusable(String),
}
