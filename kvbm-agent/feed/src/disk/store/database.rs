//! Shell around RocksDB: writes batches, positions and holdings atomically.

use super::folder;
use super::format::{
    self, Target, put_batch, put_holdings, put_meanings, put_source, remove_meanings, source_key,
};
use super::records::ImageRecord;
use super::restore::{Origin, Show};
use crate::disk::{
    DiskChange, DiskError, DiskFigures, DiskStatus, NewIncarnation, SourceChange, Verdict,
};
use crate::journal::Batch;
use kvasir_proto::types::Incarnation;
use kvasir_store::{Bounds, options};
use parking_lot::Mutex;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use rocksdb::{DB, DBRecoveryMode, Options, WriteBatch};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum bytes of batches without an image. Beyond it, writing to disk stops.
const LOG_BYTES_MAX: u64 = 4 << 30;
/// Estimated bytes of a batch besides its value.
const BATCH_BYTES: u64 = 64;

/// An open journal on disk. Writes are in order as long as callers hold the journal's lock.
pub struct Disk {
    pub(super) folder: PathBuf,
    pub(super) database: DB,
    /// Whether writing has stopped.
    given_up: AtomicBool,
    /// Whether the folder counts although writing has stopped: its mark could not be removed.
    is_stale: AtomicBool,
    state: Mutex<State>,
    figures: DiskFigures,
    /// Bytes of batches after which the first image is made.
    log_bytes_min: u64,
    image_is_due: Notify,
}

#[derive(Debug)]
pub(super) struct State {
    /// Buffer, kept for its memory.
    scratch: Vec<u8>,
    /// The current image.
    pub(super) image: Option<ImageRecord>,
    pub(super) status: DiskStatus,
}

impl State {
    /// Resets image and sizes, because the written data is removed.
    const fn forget_image(&mut self) {
        self.image = None;
        (self.status.log_bytes, self.status.image_bytes) = (0, 0);
    }
}

/// Facts read when the database was opened.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Read {
    pub(super) image: Option<ImageRecord>,
    pub(super) log_bytes: u64,
    pub(super) batches: u64,
    pub(super) blocks: u64,
}

impl Target for WriteBatch {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        Self::put(self, key, value);
    }

    fn remove(&mut self, key: &[u8]) {
        self.delete(key);
    }

    fn remove_range(&mut self, (first, behind): Bounds) {
        self.delete_range(first, behind);
    }
}

impl Origin for DB {
    type Error = rocksdb::Error;

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, rocksdb::Error> {
        Self::get(self, key)
    }

    fn each(
        &self,
        bounds: Bounds,
        show: &mut Show<'_>,
    ) -> Result<Result<(), NewIncarnation>, rocksdb::Error> {
        let mut values = self.raw_iterator_opt(options::sweep(bounds));
        values.seek_to_first();
        while let Some((key, value)) = values.item() {
            if let Err(reason) = show(key, value) {
                return Ok(Err(reason));
            }
            values.next();
        }
        values.status().map(Ok)
    }
}

/// Options of the database.
pub(super) fn database_options() -> Options {
    let mut options = options::database();
    // A journal older than the published stream must not be resumed. At the end of a log, a truncated write cannot be
    // distinguished from damage.
    options.set_wal_recovery_mode(DBRecoveryMode::AbsoluteConsistency);
    options
}

/// Opens a database.
pub(super) fn connect(folder: &Path) -> Result<DB, DiskError> {
    let database = DB::open(&database_options(), folder::database(folder));
    database.map_err(|error| DiskError::of_rocksdb(folder, &error))
}

impl Disk {
    /// Creates the disk of an opened database, with the counts that were read. The first image is due after
    /// `log_bytes_min` bytes.
    pub(super) fn new(folder: PathBuf, database: DB, read: Read, log_bytes_min: u64) -> Self {
        let status = DiskStatus {
            error: None,
            verdict: Verdict::Pending,
            written_bytes: 0,
            log_bytes: read.log_bytes,
            images: 0,
            image_bytes: read.image.map_or(0, |image| image.bytes),
            restored_blocks: read.blocks,
            restored_batches: read.batches,
        };
        Self {
            folder,
            database,
            given_up: AtomicBool::new(false),
            is_stale: AtomicBool::new(false),
            state: Mutex::new(State { scratch: Vec::new(), image: read.image, status }),
            // 4 µs to 4 s.
            figures: DiskFigures {
                write_seconds: Histogram::new(exponential_buckets(4e-6, 4.0, 11)),
            },
            log_bytes_min,
            image_is_due: Notify::new(),
        }
    }

    /// Current state.
    #[must_use]
    pub fn status(&self) -> DiskStatus {
        self.state.lock().status.clone()
    }

    /// Metrics of the writes.
    #[must_use]
    pub const fn figures(&self) -> &DiskFigures {
        &self.figures
    }

    /// Whether writing has stopped.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Writes published batches, with the source's position and holdings. On return, the operating system has the
    /// write, or the folder no longer counts.
    pub fn write<'a>(&self, batches: &[Arc<Batch>], change: impl Into<DiskChange<'a>>) {
        let change: DiskChange<'_> = change.into();
        if !batches.is_empty() || !change.is_none() {
            self.write_all(WriteBatch::default(), batches, change);
        }
    }

    /// Begins an incarnation with its first batches, in one write. A killed process leaves either the old or the new
    /// incarnation.
    pub fn republish(&self, incarnation: Incarnation, first: u64, batches: &[Arc<Batch>]) {
        let mut changes = WriteBatch::default();
        format::begin_incarnation(incarnation, first, &mut changes);
        self.write_all(changes, batches, SourceChange::None.into());
    }

    /// Writes batches, holdings, a source's position and meanings in one write. If the write fails, gives the disk up:
    /// later calls then return immediately. Requests an image once the log is large.
    fn write_all(&self, mut changes: WriteBatch, batches: &[Arc<Batch>], change: DiskChange<'_>) {
        if self.is_given_up() {
            return;
        }
        let began = Instant::now();
        let begins = !changes.is_empty();
        let mut state = self.state.lock();
        let mut bytes = 0;
        for batch in batches {
            let value = put_batch(batch, &mut state.scratch, &mut changes);
            bytes += value as u64 + BATCH_BYTES;
        }
        for holdings in change.holdings {
            put_holdings(holdings, &mut state.scratch, &mut changes);
        }
        match change.position {
            SourceChange::None => {}
            SourceChange::Put(source) => put_source(source, &mut state.scratch, &mut changes),
            SourceChange::PutEmpty(source) => {
                remove_meanings(&source.name, &mut changes);
                put_source(source, &mut state.scratch, &mut changes);
            }
            SourceChange::Forget(name) => {
                remove_meanings(name, &mut changes);
                changes.delete(source_key(name));
            }
        }
        put_meanings(&change.names, &mut changes);
        let size = changes.size_in_bytes() as u64;
        if let Err(error) = self.database.write(changes) {
            drop(state);
            self.give_up(&DiskError::of_rocksdb(&self.folder, &error).to_string());
            return;
        }
        if begins {
            state.forget_image();
        }
        state.status.written_bytes += size;
        state.status.log_bytes += bytes;
        let log_bytes = state.status.log_bytes;
        // Limits the bytes written to twice the bytes of batches.
        if log_bytes >= self.log_bytes_min.max(state.status.image_bytes) {
            self.image_is_due.notify_one();
        }
        drop(state);
        self.figures.write_seconds.observe(began.elapsed().as_secs_f64());
        if log_bytes > LOG_BYTES_MAX {
            self.give_up("no image could be completed for too long");
        }
    }

    /// Begins an incarnation on disk, and removes the previous one. Returns immediately if the disk was given up.
    pub fn begin_incarnation(&self, incarnation: Incarnation, first: u64) {
        if self.is_given_up() {
            return;
        }
        let mut changes = WriteBatch::default();
        format::begin_incarnation(incarnation, first, &mut changes);
        let mut state = self.state.lock();
        if let Err(error) = self.database.write(changes) {
            drop(state);
            self.give_up(&DiskError::of_rocksdb(&self.folder, &error).to_string());
            return;
        }
        state.forget_image();
    }

    /// Records and logs whether the incarnation on disk continues.
    pub fn decide(&self, verdict: Verdict) {
        match &verdict {
            Verdict::Pending => {}
            Verdict::Continued => {
                tracing::info!("the incarnation on disk continues")
            }
            Verdict::NewIncarnation(NewIncarnation::First) => {
                tracing::info!("the journal on disk begins")
            }
            Verdict::NewIncarnation(why) => tracing::warn!(%why, "a new incarnation begins"),
        }
        self.state.lock().status.verdict = verdict;
    }

    /// Stops writing to the disk, which is then behind the published stream: the next start begins a new incarnation.
    /// Has no effect if the disk was given up before.
    pub(super) fn give_up(&self, error: &str) {
        if self.given_up.swap(true, Ordering::AcqRel) {
            return;
        }
        match folder::unmark(&self.folder) {
            Ok(()) => tracing::error!(
                error,
                "the journal is no longer written to disk: the next start begins a new incarnation"
            ),
            Err(unmarked) => {
                self.is_stale.store(true, Ordering::Release);
                tracing::error!(
                    error, %unmarked,
                    "the journal is not written to disk any more, and a new incarnation begins: what is on disk is \
                     older than what was published; remove the folder"
                );
            }
        }
        self.state.lock().status.error = Some(error.into());
    }

    /// Whether the next start would find an incarnation that continued without the disk. Returns true once: the caller
    /// must then end that incarnation.
    pub(crate) fn revokes_incarnation(&self) -> bool {
        self.is_stale.swap(false, Ordering::AcqRel)
    }

    /// Waits until an image is due.
    pub async fn image_is_due(&self) {
        self.image_is_due.notified().await;
    }

    pub(super) fn with_state<T>(&self, read: impl FnOnce(&mut State) -> T) -> T {
        read(&mut self.state.lock())
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk")
            .field("folder", &self.folder)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
