use std::io;

/// Why a database on disk cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The disk is full, or a quota is used up.
    Full,
    /// The process lacks permission to read or write there.
    Denied,
    /// Another process uses it.
    Locked,
    /// The database is damaged.
    Damaged,
    /// The path holds something other than this database.
    Foreign,
    /// The disk reports errors.
    Failing,
    /// The location cannot contain a database: the folder cannot be created, or its file system lacks a feature.
    Unusable,
}

impl Cause {
    /// Classifies an error of the file system.
    #[must_use]
    pub fn of_io(error: &io::Error) -> Self {
        let is_one_of = |kinds: &[io::ErrorKind]| kinds.contains(&error.kind());
        if is_one_of(&[
            io::ErrorKind::StorageFull,
            io::ErrorKind::QuotaExceeded,
            io::ErrorKind::FileTooLarge,
        ]) {
            Self::Full
        } else if is_one_of(&[io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem]) {
            Self::Denied
        } else if is_one_of(&[io::ErrorKind::NotADirectory, io::ErrorKind::AlreadyExists]) {
            Self::Foreign
        } else {
            Self::of_rest(&error.to_string())
        }
    }

    /// Classifies an error of RocksDB, which distinguishes causes of I/O errors only by their text.
    #[must_use]
    pub fn of_rocksdb(error: &rocksdb::Error) -> Self {
        Self::of_text(&error.kind(), error.as_ref())
    }

    /// Determines the cause from RocksDB's error text, then from its kind.
    fn of_text(kind: &rocksdb::ErrorKind, text: &str) -> Self {
        const FULL: [&str; 3] =
            ["No space left on device", "Disk quota exceeded", "File too large"];
        const DENIED: [&str; 3] =
            ["Permission denied", "Read-only file system", "Operation not permitted"];
        const LOCKED: [&str; 2] = ["lock file", "lock hold by current process"];
        let has = |texts: &[&str]| texts.iter().any(|at| text.contains(at));
        if has(&FULL) {
            Self::Full
        } else if has(&DENIED) {
            Self::Denied
        } else if has(&LOCKED) {
            Self::Locked
        } else if *kind == rocksdb::ErrorKind::Corruption || text.contains("No such file") {
            // A missing file is damage, too: RocksDB keeps a list of its files.
            Self::Damaged
        } else if *kind == rocksdb::ErrorKind::InvalidArgument {
            Self::Foreign
        } else {
            Self::of_rest(text)
        }
    }

    /// Classifies any other error by its text.
    fn of_rest(text: &str) -> Self {
        // RocksDB reports the last text for its own files.
        const FAILING: [&str; 4] =
            ["Input/output error", "Stale file handle", "Too many open files", "Is a directory"];
        if FAILING.iter().any(|at| text.contains(at)) { Self::Failing } else { Self::Unusable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rocksdb::ErrorKind;

    #[test]
    fn texts_of_rocksdb_give_the_cause() {
        let check = |kind, text: &str, expected: Cause| {
            assert_eq!(Cause::of_text(&kind, text), expected, "{text}");
        };
        let io = || ErrorKind::IOError;
        check(io(), "IO error: No space left on device: While appending to file: x", Cause::Full);
        check(io(), "IO error: While appending to file: /d/db/7.log: File too large", Cause::Full);
        check(io(), "IO error: While open a file: /d/db/LOCK: Permission denied", Cause::Denied);
        check(
            io(),
            "IO error: While lock file: /d/db/LOCK: Resource temporarily unavailable",
            Cause::Locked,
        );
        check(io(), "IO error: lock hold by current process, acquire time 1", Cause::Locked);
        check(io(), "IO error: No such file or directory: While open: /d/db/9.sst", Cause::Damaged);
        check(io(), "IO error: While pread: Input/output error", Cause::Failing);
        let is_folder =
            "IO error: While reading file sequentially: /d/db/MANIFEST-5: Is a directory";
        check(io(), is_folder, Cause::Failing);
        check(io(), "IO error: While mmap: Operation not supported", Cause::Unusable);
        check(ErrorKind::Corruption, "Corruption: block checksum mismatch", Cause::Damaged);
        check(ErrorKind::InvalidArgument, "Invalid argument: other comparator", Cause::Foreign);
    }

    #[test]
    fn codes_of_the_file_system_give_the_cause() {
        // Error numbers of Linux.
        for (code, expected) in [
            (28, Cause::Full),
            (30, Cause::Denied),
            (20, Cause::Foreign),
            (5, Cause::Failing),
            (2, Cause::Unusable),
            (36, Cause::Unusable),
            (40, Cause::Unusable),
        ] {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(Cause::of_io(&error), expected, "{error}");
        }
    }
}
