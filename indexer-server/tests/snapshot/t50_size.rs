//! Sizes at 2 M (worker, block) pairs of distinct content.

use crate::model::{REGISTRATION, address};
use indexer_server::partitions::RegisteredBy;
use indexer_server::snapshot::{Change, Figures, SnapshotConfig, SnapshotStore, WorkerState};
use kvasir_index::{
    PAGE_SLOTS, PageImage, RankImage, RunImage, SourceId, SourceImage, WorkerImage,
};
use kvasir_proto::types::{
    BlockName, CopyMode, LocalHash, SourceStatus, StoredBlock, Tier, TierSet,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use tokio::time::Instant;

const WORKERS: u64 = 64;
const WORKER_BLOCKS: u32 = 31_250;
const CHAIN_BLOCKS: RangeInclusive<u32> = 64..=512;
const BYTES_PER_PAIR_MAX: f64 = 24.0;
/// Blocks of one event, and events of one worker between two of its images.
const EVENT_BLOCKS: u32 = 16;
const IMAGE_EVENTS: usize = 32;

/// A worker that stores chains block by block, each in an empty page, like the index.
struct Worker {
    image: WorkerImage,
    pages: Vec<PageImage>,
    changed: BTreeSet<u32>,
    chain_left: u32,
    slot: u32,
    held: u32,
}

impl Worker {
    fn new(number: u64) -> Self {
        let source = SourceImage {
            id: SourceId(0),
            name: "engine".into(),
            copy_mode: CopyMode::Counted,
            status: SourceStatus::default(),
            incomplete: false,
            suspect: false,
            ranks: vec![0],
        };
        let rank = RankImage {
            rank: 0,
            primary: Some(SourceId(0)),
            shed_blocks: 0,
            short: Vec::new(),
            pages: Vec::new(),
            names: Vec::new(),
            holes: Vec::new(),
            meanings: Vec::new(),
        };
        let worker = address(number).worker;
        let image = WorkerImage { worker, whole: true, sources: vec![source], ranks: vec![rank] };
        let pages = Vec::new();
        let changed = BTreeSet::new();
        Self { image, pages, changed, chain_left: 0, slot: 0, held: 0 }
    }

    fn store_block(&mut self, random: &mut ChaCha8Rng) {
        let begins = self.chain_left == 0;
        if begins {
            self.chain_left = random.random_range(CHAIN_BLOCKS);
            self.slot = self.slot.next_multiple_of(PAGE_SLOTS);
        }
        let slot = self.slot;
        let page = self.slot / PAGE_SLOTS;
        if slot.is_multiple_of(PAGE_SLOTS) {
            let parent = (!begins).then(|| slot - 1);
            let tiers = TierSet::EMPTY.with(Tier::Device);
            let run = RunImage { first: slot, parent, tiers, blocks: Vec::new() };
            self.pages.push(PageImage { page, runs: vec![run] });
        }
        let name = BlockName(random.random());
        let local = LocalHash(random.random());
        self.pages[page as usize].runs[0].blocks.push(StoredBlock { name, local });
        self.changed.insert(page);
        self.chain_left -= 1;
        self.slot += 1;
        self.held += 1;
    }

    /// An image of the changes since the last image.
    fn cut(&mut self, whole: bool) {
        self.image.whole = whole;
        let changed = std::mem::take(&mut self.changed);
        let pages = changed.iter().map(|page| self.pages[*page as usize].clone());
        self.image.ranks[0].pages = if whole { self.pages.clone() } else { pages.collect() };
    }
}

fn write(store: &mut SnapshotStore, workers: &[Worker]) {
    let addresses: Vec<_> = (0..WORKERS).map(address).collect();
    let changes: Vec<_> = workers
        .iter()
        .zip(&addresses)
        .map(|(worker, at)| {
            Change::Store(WorkerState {
                partition: &at.partition,
                image: &worker.image,
                registration: REGISTRATION,
                registered_by: RegisteredBy::Request,
                held_blocks: u64::from(worker.held),
            })
        })
        .collect();
    store.write(&changes).expect("room");
}

fn report(about: &str, figures: &Figures) -> f64 {
    let per_pair = |bytes: u64| bytes as f64 / figures.held_blocks as f64;
    println!(
        "{about}: {} pairs; bytes a pair: {:.2} on disk, {:.2} encoded, {:.2} written by RocksDB \
         ({:.2} log, {:.2} flushed, {:.2} compacted); {} syncs",
        figures.held_blocks,
        per_pair(figures.disk_bytes),
        per_pair(figures.encoded_bytes),
        per_pair(figures.written_bytes()),
        per_pair(figures.logged_bytes),
        per_pair(figures.flushed_bytes),
        per_pair(figures.compacted_bytes),
        figures.log_syncs,
    );
    per_pair(figures.disk_bytes)
}

/// Reads all workers. Returns the number of blocks.
fn read_all(store: &SnapshotStore) -> u64 {
    let mut blocks = 0;
    for address in store.workers() {
        let restored = store.read(address).expect("readable").expect("stored");
        for piece in restored.pieces {
            for page in piece.expect("readable").pages {
                blocks += page.runs.iter().map(|run| run.blocks.len() as u64).sum::<u64>();
            }
        }
    }
    blocks
}

fn open(folder: &std::path::Path) -> SnapshotStore {
    SnapshotStore::open(&SnapshotConfig::new(folder.to_owned())).expect("a store").store
}

/// Exports all data into another store.
fn export_and_import(store: &mut SnapshotStore, pairs: u64) {
    let started = Instant::now();
    let mut export = store.export().expect("room");
    let mut bytes = Vec::new();
    while let Some(chunk) = export.next_chunk().expect("readable") {
        bytes.extend(chunk);
    }
    let exported = started.elapsed().as_secs_f64();
    let folder = tempfile::tempdir().expect("a folder");
    let mut other = open(folder.path());
    let started = Instant::now();
    let imported = other.import(&*bytes).expect("an export");
    println!(
        "export: {:.2} bytes a pair, made at {:.1} M pairs/s, taken over at {:.1} M pairs/s",
        bytes.len() as f64 / pairs as f64,
        pairs as f64 / exported / 1e6,
        pairs as f64 / started.elapsed().as_secs_f64() / 1e6
    );
    assert_eq!((imported.held_blocks, read_all(&other)), (pairs, pairs));
}

#[test]
fn two_million_pairs_take_few_bytes() {
    let random = &mut ChaCha8Rng::seed_from_u64(50);
    let mut workers: Vec<_> = (0..WORKERS).map(Worker::new).collect();
    for worker in &mut workers {
        (0..WORKER_BLOCKS).for_each(|_block| worker.store_block(random));
        worker.cut(true);
    }
    let pairs = WORKERS * u64::from(WORKER_BLOCKS);
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    let started = Instant::now();
    write(&mut store, &workers);
    println!("stored at {:.1} M pairs/s", pairs as f64 / started.elapsed().as_secs_f64() / 1e6);
    report("whole images", &store.figures().expect("figures"));
    store.compact().expect("room");
    let bytes = report("compacted", &store.figures().expect("figures"));
    assert!(bytes <= BYTES_PER_PAIR_MAX, "{bytes} bytes a pair");

    drop(store);
    let mut store = open(folder.path());
    let started = Instant::now();
    assert_eq!(read_all(&store), pairs);
    println!("read at {:.1} M pairs/s", pairs as f64 / started.elapsed().as_secs_f64() / 1e6);

    export_and_import(&mut store, pairs);

    // Complete images again, as after a restart: the replaced data is deleted.
    write(&mut store, &workers);
    report("replaced", &store.figures().expect("figures"));
    store.compact().expect("room");
    let bytes = report("compacted", &store.figures().expect("figures"));
    assert!(bytes <= BYTES_PER_PAIR_MAX, "{bytes} bytes a pair");
}

#[test]
fn growth_writes_little_more_than_what_changes() {
    let random = &mut ChaCha8Rng::seed_from_u64(51);
    let mut workers: Vec<_> = (0..WORKERS).map(Worker::new).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    let mut whole = true;
    while workers[0].held < WORKER_BLOCKS {
        for worker in &mut workers {
            for _event in 0..IMAGE_EVENTS {
                (0..EVENT_BLOCKS).for_each(|_block| worker.store_block(random));
            }
            worker.cut(whole);
        }
        write(&mut store, &workers);
        whole = false;
    }
    let figures = store.figures().expect("figures");
    report("growth", &figures);
    store.compact().expect("room");
    let bytes = report("compacted", &store.figures().expect("figures"));
    assert!(bytes <= BYTES_PER_PAIR_MAX, "{bytes} bytes a pair");
    assert_eq!(read_all(&store), figures.held_blocks);
}
