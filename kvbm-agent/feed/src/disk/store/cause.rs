use crate::disk::DiskError;
use kvasir_store::Cause;
use std::io;
use std::path::Path;

impl DiskError {
    pub(super) fn of_io(folder: &Path, error: &io::Error) -> Self {
        Self::of_cause(Cause::of_io(error), folder, error.to_string())
    }

    pub(super) fn of_rocksdb(folder: &Path, error: &rocksdb::Error) -> Self {
        Self::of_cause(Cause::of_rocksdb(error), folder, error.as_ref().to_owned())
    }

    /// Creates the error for a cause, with the folder and the reason.
    fn of_cause(cause: Cause, folder: &Path, reason: String) -> Self {
        let folder = folder.to_owned();
        match cause {
            Cause::Full => Self::Full { folder, reason },
            Cause::Denied => Self::Permission { folder, reason },
            Cause::Locked => Self::Locked { folder, reason },
            Cause::Damaged => Self::Damaged { folder, reason },
            Cause::Foreign => Self::Foreign { folder, reason },
            Cause::Failing => Self::Failing { folder, reason },
            Cause::Unusable => Self::NoPlace { folder, reason },
        }
    }
}
