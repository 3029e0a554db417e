use super::database::{Disk, Read, connect};
use super::folder;
use super::format::{begin_incarnation, put_manifest};
use super::records::ManifestRecord;
use super::restore::{Found, FoundIncarnation, read_journal};
use crate::disk::{DiskConfig, DiskError, NewIncarnation, Opened, Restored};
use crate::journal::JournalConfig;
use kvasir_proto::types::Incarnation;
use rocksdb::{DB, WriteBatch};
use std::path::Path;

/// Opens the journal folder and restores its journal. Begins the incarnation `fresh` with an empty journal instead if
/// the folder is new, or if its journal cannot be resumed; [`Opened::restored`] has the reason. Blocks the thread.
///
/// # Errors
/// If the folder cannot be used: see [`DiskError::is_misconfigured`] for what to do then.
pub fn open(
    config: &DiskConfig,
    journal: JournalConfig,
    fresh: (Incarnation, u64),
) -> Result<Opened, DiskError> {
    let is_used = folder::prepare(&config.folder)?;
    // The first image is due when half of the memory limit was written.
    let log_bytes_min = journal.bytes_max as u64 / 2;
    let why = match (is_used, check_folder(config, journal)) {
        (false, _) => NewIncarnation::First,
        (true, Ok(Ok((database, found)))) => {
            let read = Read {
                image: found.image,
                log_bytes: found.log_bytes,
                batches: found.batches,
                blocks: found.journal.status().held_blocks as u64,
            };
            let disk = Disk::new(config.folder.clone(), database, read, log_bytes_min);
            let restored = Restored { journal: found.journal, sources: found.sources };
            return Ok(Opened { disk, restored: Ok(restored) });
        }
        (true, Ok(Err(why))) => why,
        (true, Err(DiskError::Damaged { reason, .. })) => NewIncarnation::Damaged(reason),
        (true, Err(error)) => return Err(error),
    };
    let database = create_database(config, journal, fresh)?;
    let disk = Disk::new(config.folder.clone(), database, Read::default(), log_bytes_min);
    Ok(Opened { disk, restored: Err(why) })
}

/// Removes the folder's mark, because this agent continues without the folder. The next start then begins a new
/// incarnation.
///
/// # Errors
/// If the mark cannot be removed. Then the folder would count, although it will be behind the published stream.
pub fn leave(config: &DiskConfig) -> Result<(), DiskError> {
    folder::unmark(&config.folder)
}

/// Reads the journal of a folder. The outer error means that the folder cannot be used, the inner one that its journal
/// is not resumed.
fn check_folder(
    config: &DiskConfig,
    journal: JournalConfig,
) -> Result<Result<(DB, Box<FoundIncarnation>), NewIncarnation>, DiskError> {
    let folder = &config.folder;
    if !folder::database(folder).join("CURRENT").exists() {
        return Ok(Err(NewIncarnation::Damaged("there is no database".to_owned())));
    }
    // Opening detects a folder in use, before anything is decided.
    let database = connect(folder)?;
    let found = read_journal(&database, config, journal);
    match found.map_err(|error| DiskError::of_rocksdb(folder, &error))? {
        Found::OtherWorker(found) => Err(DiskError::OtherWorker {
            folder: folder.clone(),
            found,
            requested: config.address.clone(),
        }),
        Found::Nothing => Ok(Err(NewIncarnation::Unmarked)),
        Found::Unusable(why) => Ok(Err(why)),
        Found::Incarnation(_) if !folder::is_marked(folder) => Ok(Err(NewIncarnation::Unmarked)),
        Found::Incarnation(found) => Ok(Ok((database, found))),
    }
}

/// Removes the folder's database and image, and creates an empty database for `incarnation`.
fn create_database(
    config: &DiskConfig,
    journal: JournalConfig,
    (incarnation, first): (Incarnation, u64),
) -> Result<DB, DiskError> {
    let folder: &Path = &config.folder;
    folder::unmark(folder)?;
    folder::remove_database(folder)?;
    folder::remove_image(folder)?;
    let database = connect(folder)?;
    let mut changes = WriteBatch::default();
    let manifest = ManifestRecord::new(config, journal.copy_mode);
    put_manifest(&manifest, &mut changes);
    begin_incarnation(incarnation, first, &mut changes);
    database.write(changes).map_err(|error| DiskError::of_rocksdb(folder, &error))?;
    folder::create_mark(folder)?;
    Ok(database)
}
