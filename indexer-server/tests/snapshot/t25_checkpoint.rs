//! Checkpoints of a running server. A position in the broker's stream is on disk only after all changes of its
//! messages.

use crate::model::address;
use indexer_server::partitions::{
    IndexConfig, IndexMetrics, IndexedSource, Partitions, RegisteredBy, Writer, start_writers,
};
use indexer_server::snapshot::{
    CheckpointMetrics, Checkpointer, Checkpoints, Restorer, Roster, SharedStore, SnapshotConfig,
    StreamPosition,
};
use kvasir_index::{ChangeLimits, Limits};
use kvasir_proto::convert::Registration;
use kvasir_proto::pb;
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, Incarnation, KvEvent, LocalHash, SourceStatus, StoredBlock, Tier,
};
use prometheus_client::registry::Registry;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const WORKERS: u64 = 3;
const CHAINS: u64 = 128;
const CHAIN_BLOCKS: u64 = 512;

/// An index with workers that a stream feeds, and its checkpoints.
struct Server {
    writer: Writer,
    sources: Vec<IndexedSource>,
    /// Number of answered messages.
    answered: Arc<AtomicU64>,
    roster: Arc<Mutex<Roster>>,
    checkpoints: Checkpoints,
    restorer: Restorer,
    on_disk: watch::Receiver<Option<StreamPosition>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

fn registration(worker: u64) -> Registration {
    let at = address(worker);
    let request = pb::RegisterWorkerRequest {
        worker_id: at.worker.as_str().to_owned(),
        model: at.partition.model().to_owned(),
        tenant: at.partition.tenant().to_owned(),
        block_size: 16,
        ..pb::RegisterWorkerRequest::default()
    };
    Registration::try_from(request).expect("a registration")
}

fn position(sequence: u64) -> StreamPosition {
    StreamPosition { stream_created_unix_ns: 5, sequence }
}

impl Server {
    async fn start(folder: &Path) -> Self {
        let limits = Limits { changes: Some(ChangeLimits::default()), ..Limits::default() };
        let partitions = Arc::new(Partitions::new(IndexConfig::new(NonZeroUsize::MIN), limits));
        let mut registry = Registry::default();
        let metrics = IndexMetrics::register(&mut registry, Arc::clone(&partitions));
        let (writer, _threads) = start_writers(&partitions, &metrics).expect("threads");
        let mut sources = Vec::new();
        for worker in (0..WORKERS).map(address) {
            let partition = partitions.get_or_create(&worker.partition, 16).expect("room");
            let feed = ("stream", CopyMode::Set);
            let source = writer.add_source(&partition, &worker.worker, feed, 0).await;
            sources.push(source.expect("a writer").expect("room"));
        }
        let shared_store =
            SharedStore::open(SnapshotConfig::new(folder.to_owned())).await.expect("a store");
        let wanted = |worker| (registration(worker), RegisteredBy::Configuration);
        let present = (0..WORKERS).map(wanted).collect();
        let roster = Arc::new(Mutex::new(Roster { present, expected: Vec::new() }));
        let registered = Arc::clone(&roster);
        let answered = Arc::new(AtomicU64::new(0));
        let (checkpointer, checkpoints) = Checkpointer::new(
            shared_store.clone(),
            partitions,
            writer.clone(),
            Arc::new(move || registered.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            Duration::from_secs(86_400),
            CheckpointMetrics::register(&mut registry),
        );
        let (tell, on_disk) = watch::channel(None);
        let consumed = Arc::clone(&answered);
        let ask = Arc::new(move || Some(position(consumed.load(Ordering::SeqCst))));
        let task = checkpointer.following(ask, tell);
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        drop(tasks.spawn(task.run(stop.clone())));
        let restorer = Restorer::new(shared_store, writer.clone());
        Self { writer, sources, answered, roster, checkpoints, restorer, on_disk, tasks, stop }
    }

    /// Stops like a process, after a last checkpoint.
    async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Every worker stores some chains.
    async fn fill(&self) {
        for (chain, source) in
            (0..CHAINS).flat_map(|at| self.sources.iter().map(move |to| (at, to)))
        {
            let block = |at| {
                let number = u64::from(source.id().0) << 32 | chain << 16 | at;
                StoredBlock { name: BlockName(number), local: LocalHash(number) }
            };
            let blocks = (0..CHAIN_BLOCKS).map(block).collect();
            let stored = KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
            let status = SourceStatus::default();
            self.writer.apply(source, 0, vec![stored], status).await.expect("a writer");
        }
    }

    /// Answers the next message: a block of one of the workers, round-robin.
    async fn consume(&self) {
        let sequence = self.answered.load(Ordering::SeqCst) + 1;
        let source = &self.sources[(sequence % WORKERS) as usize];
        let block = StoredBlock { name: BlockName(sequence), local: LocalHash(sequence) };
        let stored = KvEvent::Stored { parent: None, tier: Tier::Device, blocks: vec![block] };
        let applied = Cursor { incarnation: Incarnation(1), sequence, fingerprint: None };
        let status = SourceStatus { applied: Some(applied), ..SourceStatus::default() };
        self.writer.apply(source, 0, vec![stored], status).await.expect("a writer");
        self.answered.store(sequence, Ordering::SeqCst);
    }
}

/// Checks that the data on disk covers its position: each worker includes its last message up to the position, or a
/// later one.
fn check(folder: &Path, at_least: u64) {
    let store = crate::model::open(folder);
    let position = store.stream_position().expect("a position").sequence;
    assert!(position >= at_least, "{position} < {at_least}");
    for worker in 0..WORKERS {
        let covered = (0..=position).rev().find(|at| at % WORKERS == worker).unwrap_or(0);
        let stored = store.read(&address(worker)).expect("readable").expect("stored");
        let applied = stored.worker.sources[0].status.applied.map_or(0, |at| at.sequence);
        assert!(applied >= covered, "worker {worker}: {applied} < {covered}, position {position}");
        assert!(stored.worker.held_blocks >= covered.div_ceil(WORKERS), "worker {worker}");
    }
}

/// Copies the database, as a kill at this moment would leave it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.join("db")).expect("a folder");
    for file in std::fs::read_dir(from.join("db")).expect("a folder") {
        let file = file.expect("an entry");
        std::fs::copy(file.path(), to.join("db").join(file.file_name())).expect("a copy");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_keeps_the_position_that_it_covers() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(folder.path()).await;
    assert_eq!(server.restorer.stream_position().await, Ok(None));
    for round in 1..=20 {
        let before = server.answered.load(Ordering::SeqCst);
        for _message in 0..round {
            server.consume().await;
        }
        let at_least = before + round;
        // Messages are answered while the checkpoint is written.
        let (report, ()) = tokio::join!(server.checkpoints.create(false), async {
            for _message in 0..30 {
                server.consume().await;
            }
        });
        report.expect("room");
        let told = server.on_disk.borrow_and_update().expect("told").sequence;
        assert!(told >= at_least, "{told} < {at_least}");
        assert_eq!(server.restorer.stream_position().await, Ok(Some(position(told))));
        let copied = tempfile::tempdir().expect("a folder");
        copy(folder.path(), copied.path());
        check(copied.path(), told);
    }
    // Without changes, the checkpoint publishes and writes no position.
    server.checkpoints.create(false).await.expect("room");
    server.on_disk.borrow_and_update();
    let before = server.checkpoints.create(false).await.expect("room").written_bytes;
    assert_eq!(server.checkpoints.create(false).await.expect("room").written_bytes, before);
    assert!(!server.on_disk.has_changed().expect("a task"));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_worker_is_restored_the_position_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(folder.path()).await;
    server.consume().await;
    server.checkpoints.create(false).await.expect("room");
    assert_eq!(*server.on_disk.borrow_and_update(), Some(position(1)));
    let expect = |of: &Roster| {
        let mut roster = of.clone();
        roster.expected.extend(roster.present.pop().map(|(registration, _)| registration));
        roster
    };
    let all = {
        let mut roster = server.roster.lock().unwrap_or_else(PoisonError::into_inner);
        let expecting = expect(&roster);
        std::mem::replace(&mut *roster, expecting)
    };
    server.consume().await;
    server.checkpoints.create(false).await.expect("room");
    assert_eq!(server.restorer.stream_position().await, Ok(Some(position(1))));
    assert!(!server.on_disk.has_changed().expect("a task"));
    *server.roster.lock().unwrap_or_else(PoisonError::into_inner) = all;
    server.checkpoints.create(false).await.expect("room");
    assert_eq!(*server.on_disk.borrow_and_update(), Some(position(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_restart_wrote_anew_is_compacted_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path()).await;
    server.fill().await;
    let first = server.checkpoints.create(true).await.expect("room");
    let pairs = WORKERS * CHAINS * CHAIN_BLOCKS;
    server.stop().await;
    let server = Server::start(folder.path()).await;
    server.fill().await;
    let second = server.checkpoints.create(false).await.expect("room");
    let per_pair = |bytes| bytes as f64 / pairs as f64;
    println!(
        "{pairs} pairs: {:.2} bytes a pair compacted, {:.2} after a restart, {:.2} written by it",
        per_pair(first.disk_bytes),
        per_pair(second.disk_bytes),
        per_pair(second.written_bytes)
    );
    assert_eq!((first.blocks as u64, second.blocks as u64), (pairs, pairs));
    assert!(second.disk_bytes < first.disk_bytes * 5 / 4, "{first:?}, {second:?}");
    // Compaction happens only once: a checkpoint without changes writes next to no data.
    let third = server.checkpoints.create(false).await.expect("room");
    assert!(third.written_bytes < second.written_bytes + 4_096, "{second:?}, {third:?}");
    server.stop().await;
}
