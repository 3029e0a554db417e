//! Any keys and values as an export of a checkpoint, under a right header and checksum: what is taken over is read, and
//! restored into an index that stays valid; what is refused leaves nothing.
//!
//! The input is the middle of an export: for each record the length of its key (1 byte) and of its value (4, little-endian), the key
//! and the value.

use super::scratch;
use indexer_server::snapshot::{FORMAT_VERSION, Restored, SnapshotConfig, SnapshotStore};
use kvasir_index::{Index, Limits, Restore, Saved};
use std::cell::RefCell;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

/// Blocks that are restored in one step.
const STEP_BLOCKS: usize = 1_000;

thread_local! {
    /// Opened once, for that takes longest.
    static STORE: RefCell<Option<(SnapshotStore, TempDir)>> = const { RefCell::new(None) };
}

pub(super) fn target(input: &[u8]) -> bool {
    let export = export(input);
    // One that has panicked is opened anew.
    let kept = STORE.with(RefCell::take);
    let (mut store, folder) = kept.unwrap_or_else(|| {
        let folder = scratch::folder();
        let opened = SnapshotStore::open(&SnapshotConfig::new(folder.path().to_owned()));
        (opened.expect("a store").store, folder)
    });
    let imported = store.import(export.as_slice());
    let understood = imported.is_ok();
    if understood {
        restore(&store);
        store.clear().expect("room");
    }
    assert!(store.is_empty(), "{imported:?}");
    STORE.with(|kept| kept.replace(Some((store, folder))));
    understood
}

/// The records with what an export has around them.
fn export(records: &[u8]) -> Vec<u8> {
    let mut export = b"kvasir-s".to_vec();
    export.extend(FORMAT_VERSION.to_le_bytes());
    export.extend(records);
    export.push(0);
    export.extend(count(records).to_le_bytes());
    let hash = xxh3_64(&export);
    export.extend(hash.to_le_bytes());
    export
}

fn count(mut records: &[u8]) -> u64 {
    let mut count = 0;
    while let [key, a, b, c, d, rest @ ..] = records {
        let bytes = usize::from(*key) + u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        records = rest.get(bytes..).unwrap_or_default();
        count += 1;
    }
    count
}

fn restore(store: &SnapshotStore) {
    let mut index = Index::new(Limits::default());
    for address in store.workers().cloned().collect::<Vec<_>>() {
        // Damage is an error.
        let Ok(Some(restored)) = store.read(&address) else { continue };
        let Some(mut restore) = saved(restored) else { continue };
        while restore.step(&mut index, STEP_BLOCKS).is_ok_and(|step| !step.done) {}
        index.validate().unwrap_or_else(|error| panic!("{address}: {error}"));
    }
}

fn saved(Restored { worker, pieces }: Restored<'_>) -> Option<Restore> {
    let mut saved = Saved::new(worker.address.worker);
    for source in worker.sources {
        saved.source(source).ok()?;
    }
    for rank in worker.ranks {
        saved.rank(rank.rank, rank.primary, rank.shed_blocks, rank.short);
    }
    for piece in pieces {
        let piece = piece.ok()?;
        piece.pages.into_iter().try_for_each(|page| saved.page(piece.rank, page)).ok()?;
        piece.names.into_iter().try_for_each(|name| saved.name(piece.rank, name)).ok()?;
        piece.holes.into_iter().for_each(|hole| saved.hole(piece.rank, hole));
    }
    Restore::new(saved).ok()
}
