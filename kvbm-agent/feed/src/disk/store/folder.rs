//! Files of the journal's folder. `db` is the database. `counts` is the mark: while it exists, the database may be
//! resumed. Removing the mark is the one change that works on a full disk.

use crate::disk::{DiskError, POOL_FOLDER};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const DATABASE: &str = "db";
const MARK: &str = "counts";
const IMAGE: &str = "image.sst";

/// Path of the database.
pub(super) fn database(folder: &Path) -> PathBuf {
    folder.join(DATABASE)
}

/// Path of an unfinished image.
pub(super) fn image(folder: &Path) -> PathBuf {
    folder.join(IMAGE)
}

/// Creates the folder. Returns whether it has a database already.
///
/// # Errors
/// If the folder cannot be created, or has files that are not a journal's.
pub(super) fn prepare(folder: &Path) -> Result<bool, DiskError> {
    let failed = |error: io::Error| DiskError::of_io(folder, &error);
    fs::create_dir_all(folder).map_err(failed)?;
    let mut is_used = false;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        is_used |= name == DATABASE;
        if ![DATABASE, MARK, IMAGE, POOL_FOLDER].iter().any(|known| name == *known) {
            let reason = format!("{} is there", name.display());
            return Err(DiskError::Foreign { folder: folder.to_owned(), reason });
        }
    }
    Ok(is_used)
}

pub(super) fn is_marked(folder: &Path) -> bool {
    folder.join(MARK).exists()
}

/// Creates the mark: the database counts from now on.
pub(super) fn create_mark(folder: &Path) -> Result<(), DiskError> {
    fs::write(folder.join(MARK), []).map_err(|error| DiskError::of_io(folder, &error))
}

/// Removes the mark: the database no longer counts.
pub(super) fn unmark(folder: &Path) -> Result<(), DiskError> {
    remove(fs::remove_file(folder.join(MARK)), folder)
}

/// Removes the rest of an unfinished image.
pub(super) fn remove_image(folder: &Path) -> Result<(), DiskError> {
    remove(fs::remove_file(image(folder)), folder)
}

/// Removes the database, which must not be open.
pub(super) fn remove_database(folder: &Path) -> Result<(), DiskError> {
    remove(fs::remove_dir_all(database(folder)), folder)
}

fn remove(outcome: io::Result<()>, folder: &Path) -> Result<(), DiskError> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(DiskError::of_io(folder, &error))
        }
        Err(_) | Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_without_folders_is_a_wrong_start() {
        let folder = Path::new("/proc/no-such-place");
        let error = prepare(folder).expect_err("refused");
        assert!(matches!(error, DiskError::NoPlace { .. }), "{error:?}");
        assert!(error.is_misconfigured());
        let text = "/proc/no-such-place: cannot be made: choose a folder on a local disk (";
        assert!(error.to_string().starts_with(text), "{error}");
    }
}
