use std::{io, path::PathBuf};

/// Longest file, in bytes: lists of revoked certificates are the longest.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why a file cannot be used. No variant has a part of the file: it may be a key.
#[derive(Debug, thiserror::Error)]
#[error("{option}: {}: {problem}", path.display())]
pub struct TlsError {
    /// The option that names the file.
    pub option: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Problem,
}

impl TlsError {
    /// An option without its file: a fault of the program, as files are read in the order of their options.
    pub(crate) fn without_file(option: &'static str) -> Self {
        Self { option, path: PathBuf::new(), problem: Problem::Missing("file") }
    }
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    /// It is a folder, a pipe or a device.
    #[error("is not a regular file")]
    NotAFile,
    /// It is too long.
    #[error("has {0} bytes, the limit is {max}", max = FILE_BYTES_MAX)]
    TooLong(u64),
    /// It has nothing of the kind that the option is for.
    #[error("has no {0} in PEM format")]
    Missing(&'static str),
    /// Its PEM blocks are damaged.
    #[error("has a damaged PEM block")]
    Damaged,
    /// What it has cannot be used.
    #[error("{0}")]
    Unusable(String),
}
