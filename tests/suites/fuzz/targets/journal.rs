//! Any keys and values as an agent's journal on disk: it is continued, or a new life begins; and what is continued can be
//! dumped. The input is parts: a key, its value, and so on.

use super::{parts, scratch};
use kvasir_feed::disk::{self, DiskConfig, DiskError};
use kvasir_feed::journal::{DumpStep, Journal, JournalConfig};
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::types::{Incarnation, PartitionKey, WorkerId};
use rocksdb::{DB, IteratorMode, WriteBatch};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Records of a dump that are read at once.
const STEP_RECORDS: usize = 1_000;
/// Most steps of a dump: as many as the largest journal of an input could need.
const STEPS_MAX: usize = 100_000;

thread_local! {
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// Whose journal it is.
pub fn config(folder: PathBuf) -> DiskConfig {
    let partition = PartitionKey::new("m", "").expect("a name");
    let address = WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") };
    DiskConfig {
        folder,
        address,
        block_size: 4,
        lora_names: BTreeMap::new(),
        is_consolidated: false,
    }
}

pub(super) fn target(input: &[u8]) -> bool {
    let kept = FOLDER.with(RefCell::take);
    let folder = kept.unwrap_or_else(scratch::folder);
    let config = config(folder.path().to_owned());
    let fresh = (Incarnation(1), 0);
    drop(disk::open(&config, JournalConfig::DEFAULT, fresh).expect("a folder"));
    replace(&folder.path().join("db"), input);
    let understood = match disk::open(&config, JournalConfig::DEFAULT, fresh) {
        Ok(opened) => opened.restored.is_ok_and(|restored| {
            read(restored.journal);
            true
        }),
        // Another worker's folder is refused, and then not used any more.
        Err(DiskError::OtherWorker { .. }) => return false,
        Err(error) => panic!("{error}"),
    };
    FOLDER.with(|kept| kept.replace(Some(folder)));
    understood
}

/// Puts the input in place of all that the database has.
fn replace(database: &Path, input: &[u8]) {
    let database = DB::open_default(database).expect("a database");
    let mut changes = WriteBatch::default();
    for entry in database.iterator(IteratorMode::Start) {
        changes.delete(entry.expect("an entry").0);
    }
    for pair in parts(input).chunks_exact(2) {
        changes.put(pair[0], pair[1]);
    }
    database.write(changes).expect("room");
}

fn read(mut journal: Journal) {
    let dump = journal.begin_dump(None).expect("no other dump");
    for _step in 0..STEPS_MAX {
        match journal.step_dump(dump, STEP_RECORDS).expect("no change meanwhile") {
            DumpStep::Records { .. } => {}
            DumpStep::Cut(_) => return,
        }
    }
    panic!("the dump does not end");
}
