//! The store: writes images of workers to RocksDB and reads workers back.
//!
//! Every image, or group of small images, is one atomic write, synced to disk before it returns. A complete image is
//! written under a new generation, in several writes if it is large. The last write contains the worker's record: it
//! makes the new generation current and deletes the previous one. A failed write leaves earlier data intact. The next
//! write reopens the database first.

mod directory;
mod export;
mod folder;
mod frames;
mod import;
mod marks;
mod position;
mod read;
mod write;

pub use export::Export;
pub use import::Imported;
pub use read::{Pieces, Restored};
pub use write::{Change, Unwritten};

use super::format::{
    ManifestRecord, WorkerRecord, contents_bounds, generation_bounds, generation_of, manifest_key,
    worker_bounds, worker_of,
};
use super::{FORMAT_VERSION, SnapshotConfig, StoreError, StreamPosition};
use directory::{Directory, Entry};
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::shard::ShardPlace;
use kvasir_store::options;
use prost::Message;
use rocksdb::statistics::Ticker;
use rocksdb::{DB, IteratorMode, Options, WriteBatch};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Weak;

/// Snapshots of workers, on disk. Calls block. Only one thread writes.
pub struct SnapshotStore {
    config: SnapshotConfig,
    folder: PathBuf,
    options: Options,
    /// `None` only if it could not be reopened after a failure.
    database: Option<DB>,
    /// Whether the database accepts writes. Otherwise it is reopened before the next write.
    is_writable: bool,
    directory: Directory,
    /// Position of the broker's stream in the store.
    position: Option<StreamPosition>,
    /// Number of the next write.
    next_write: u64,
    /// Earlier writes that were on disk and are lost.
    lost_writes: u64,
    encoded_bytes: u64,
    /// Whether tables of another process exist that were not rewritten since.
    is_inherited: bool,
    /// Alive while an export is alive.
    export: Weak<()>,
}

/// Result of opening a store, with any damage found.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: SnapshotStore,
    /// The damaged database that was moved aside. The new database is empty.
    pub set_aside: Option<SetAside>,
    /// Why the store is read-only for now. Every write retries.
    pub read_only: Option<StoreError>,
    /// Number of writes that were on disk and are lost: the log is damaged, and the data after the damage is outdated.
    pub lost_writes: u64,
}

/// A damaged database that was moved aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// New path of the database.
    pub folder: PathBuf,
    /// Symptom of the damage.
    pub reason: StoreError,
}

/// Size of the store, and bytes written since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Number of stored workers.
    pub workers: usize,
    /// Number of the workers' blocks, as counted by their writers.
    pub held_blocks: u64,
    /// Bytes of all files.
    pub disk_bytes: u64,
    /// Bytes of keys and values handed to RocksDB.
    pub encoded_bytes: u64,
    /// Bytes that RocksDB wrote to its log.
    pub logged_bytes: u64,
    /// Number of syncs of RocksDB's log to disk.
    pub log_syncs: u64,
    /// Bytes that RocksDB flushed from memory to tables.
    pub flushed_bytes: u64,
    /// Bytes that RocksDB wrote to tables by compaction.
    pub compacted_bytes: u64,
    /// Whether the last write succeeded, or the store has just been opened for writing.
    pub is_writable: bool,
}

impl Figures {
    /// Bytes that RocksDB wrote.
    #[must_use]
    pub const fn written_bytes(&self) -> u64 {
        self.logged_bytes + self.flushed_bytes + self.compacted_bytes
    }
}

impl SnapshotStore {
    /// Opens the snapshots of a folder. Creates the folder if it is missing.
    ///
    /// With a full disk, the snapshots are read-only. A damaged database is moved aside if the configuration allows it.
    ///
    /// # Errors
    /// If the folder cannot be used. The reaction depends on [`StoreError::is_misconfigured`].
    pub fn open(config: &SnapshotConfig) -> Result<Opened, StoreError> {
        let mut options = options::database();
        options.set_disable_auto_compactions(!config.compacts);
        let mut store = Self {
            config: config.clone(),
            folder: folder::database(&config.folder),
            options,
            database: None,
            is_writable: false,
            directory: Directory::default(),
            position: None,
            next_write: 0,
            lost_writes: 0,
            encoded_bytes: 0,
            is_inherited: false,
            export: Weak::new(),
        };
        let mut set_aside = None;
        let mut read_only = None;
        match store.connect() {
            // Only this process uses the database now, so a view of an earlier export is unused.
            Ok(()) => drop(folder::export(&store.folder)?),
            Err(reason @ StoreError::Corrupt { .. }) if config.set_aside => {
                set_aside = Some(store.set_aside(reason)?);
            }
            Err(reason @ StoreError::DiskFull { .. }) => {
                store.connect_read_only().map_err(|_error| reason.clone())?;
                read_only = Some(reason);
            }
            Err(error) => return Err(error),
        }
        store.is_inherited = !store.directory.is_empty();
        let lost_writes = store.lost_writes;
        Ok(Opened { store, set_aside, read_only, lost_writes })
    }

    /// Moves the database aside and starts an empty one, for damage that is detected only when workers are read or
    /// written. All workers then need complete images.
    ///
    /// # Errors
    /// If there are already [`SET_ASIDE_MAX`](super::SET_ASIDE_MAX) damaged databases, or a new one cannot be created.
    pub fn set_aside(&mut self, reason: StoreError) -> Result<SetAside, StoreError> {
        self.database = None;
        self.is_writable = false;
        let folder = folder::set_aside(&self.folder)?;
        self.directory = Directory::default();
        self.position = None;
        self.is_inherited = false;
        self.connect()?;
        Ok(SetAside { folder, reason })
    }

    /// The stored workers, in order.
    pub fn workers(&self) -> impl Iterator<Item = &WorkerAddress> {
        self.directory.addresses()
    }

    /// Reopens a store that failed to write, so that [`needs_whole`](Self::needs_whole) reflects the data on disk. No
    /// effect on a writable store.
    ///
    /// # Errors
    /// If the store is still not writable.
    pub fn ensure_writable(&mut self) -> Result<(), StoreError> {
        if self.is_writable { Ok(()) } else { self.reconnect() }
    }

    /// Whether the next image of a worker must be complete. True if the worker is not stored, or was stored by another
    /// process, whose slot numbers are invalid here.
    #[must_use]
    pub fn needs_whole(&self, worker: &WorkerAddress) -> bool {
        self.directory.get(worker).is_none_or(|entry| entry.needs_whole)
    }

    /// Whether complete images have replaced all data of another process, and [`compact`](Self::compact) was not called
    /// since. Then about half of the disk space is wasted, and no write would make RocksDB compact soon.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.is_inherited && !self.directory.needs_whole()
    }

    /// Starts RocksDB's compaction. Has no effect on a read-only store until it is reopened.
    ///
    /// # Errors
    /// If RocksDB refuses.
    pub fn begin_compacting(&mut self) -> Result<(), StoreError> {
        self.options.set_disable_auto_compactions(false);
        match &self.database {
            Some(database) if self.is_writable => {
                let begun = database.set_options(&[("disable_auto_compactions", "false")]);
                begun.map_err(|error| StoreError::of_rocksdb(&self.folder, &error))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Compacts all tables. Takes about as long as reading and writing all data.
    ///
    /// # Errors
    /// If the latest writes cannot be flushed into tables.
    pub fn compact(&mut self) -> Result<(), StoreError> {
        self.flush()?;
        self.is_inherited &= self.directory.needs_whole();
        if let Some(database) = &self.database {
            database.compact_range(None::<&[u8]>, None::<&[u8]>);
        }
        Ok(())
    }

    /// Flushes the latest writes into tables, so that the next start does not read them from the log.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn flush(&self) -> Result<(), StoreError> {
        match &self.database {
            Some(database) if self.is_writable => {
                database.flush().map_err(|error| StoreError::of_rocksdb(&self.folder, &error))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the store's current size and written bytes.
    ///
    /// # Errors
    /// If the files cannot be listed.
    pub fn figures(&self) -> Result<Figures, StoreError> {
        let count = |ticker| self.options.get_ticker_count(ticker);
        Ok(Figures {
            workers: self.directory.len(),
            held_blocks: self.directory.held_blocks(),
            disk_bytes: folder::bytes(&self.folder)?,
            encoded_bytes: self.encoded_bytes,
            logged_bytes: count(Ticker::WalFileBytes),
            log_syncs: count(Ticker::WalFileSynced),
            flushed_bytes: count(Ticker::FlushWriteBytes),
            compacted_bytes: count(Ticker::CompactWriteBytes),
            is_writable: self.is_writable,
        })
    }

    /// Reopens the database after a failed write. Workers with all acknowledged images accept increments; other workers
    /// need complete images.
    fn reconnect(&mut self) -> Result<(), StoreError> {
        // RocksDB opens a folder only once at a time.
        self.database = None;
        let before = std::mem::take(&mut self.directory);
        let outcome = self.connect();
        if outcome.is_err() && self.connect_read_only().is_err() {
            self.directory = before;
            return outcome;
        }
        self.directory.adopt_state(&before);
        outcome
    }

    /// Opens the database, and repairs what a crash left: counts lost writes, undoes an incomplete import, and
    /// deletes records of no worker.
    fn connect(&mut self) -> Result<(), StoreError> {
        folder::prepare(&self.folder)?;
        let database = DB::open(&self.options, &self.folder);
        let database = database.map_err(|error| StoreError::of_rocksdb(&self.folder, &error))?;
        if read_manifest(&database, &self.folder, self.config.shard)?.is_none() {
            write_manifest(&database, &self.folder, self.config.shard)?;
        }
        self.next_write = marks::next(&database, &self.folder)?;
        self.lost_writes = marks::lost(&self.folder, self.next_write);
        self.next_write = import::undo(&database, &self.folder, self.next_write)?;
        self.directory = read_directory(&database, &self.folder)?;
        self.position = position::read_position(&database, &self.folder)?;
        let orphans = find_orphans(&database, &self.folder, &self.directory)?;
        if !orphans.is_empty() {
            let written = marks::write(&database, orphans, self.next_write, &options::synced());
            self.next_write =
                written.map_err(|error| StoreError::of_rocksdb(&self.folder, &error))?;
        }
        self.database = Some(database);
        self.is_writable = true;
        Ok(())
    }

    /// Opens the database read-only, without a log.
    fn connect_read_only(&mut self) -> Result<(), StoreError> {
        let database = DB::open_for_read_only(&self.options, &self.folder, false);
        let database = database.map_err(|error| StoreError::of_rocksdb(&self.folder, &error))?;
        read_manifest(&database, &self.folder, self.config.shard)?;
        marks::next(&database, &self.folder)?;
        if !import::is_under_way(&database, &self.folder)? {
            self.directory = read_directory(&database, &self.folder)?;
            self.position = position::read_position(&database, &self.folder)?;
        }
        self.database = Some(database);
        self.is_writable = false;
        Ok(())
    }
}

impl fmt::Debug for SnapshotStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotStore")
            .field("folder", &self.folder)
            .field("is_writable", &self.is_writable)
            .field("workers", &self.directory.len())
            .finish_non_exhaustive()
    }
}

/// Reads the manifest, and checks its version and shard. Returns `None` in an empty database.
fn read_manifest(
    database: &DB,
    folder: &Path,
    shard: Option<ShardPlace>,
) -> Result<Option<ManifestRecord>, StoreError> {
    let failed = |error: rocksdb::Error| StoreError::of_rocksdb(folder, &error);
    let Some(value) = database.get_pinned(manifest_key()).map_err(failed)? else {
        let first = database.iterator(IteratorMode::Start).next().transpose().map_err(failed)?;
        if first.is_none() {
            return Ok(None);
        }
        let folder = folder.to_owned();
        let reason = "it has no manifest".to_owned();
        return Err(StoreError::Foreign { folder, reason });
    };
    let manifest = ManifestRecord::read(&value);
    let unreadable = |error| StoreError::unreadable(folder, &error);
    let manifest = manifest.map_err(unreadable)?;
    if manifest.format_version != FORMAT_VERSION {
        return Err(StoreError::Version {
            folder: folder.to_owned(),
            found: manifest.format_version,
            supported: FORMAT_VERSION,
            writer: manifest.writer_version,
        });
    }
    let found = manifest.shard().map_err(unreadable)?;
    if found != shard {
        return Err(StoreError::Shard { folder: folder.to_owned(), found, requested: shard });
    }
    Ok(Some(manifest))
}

/// Writes the manifest: format version, version of this server, and shard.
fn write_manifest(
    database: &DB,
    folder: &Path,
    shard: Option<ShardPlace>,
) -> Result<(), StoreError> {
    let manifest = ManifestRecord {
        format_version: FORMAT_VERSION,
        writer_version: env!("CARGO_PKG_VERSION").to_owned(),
        shard: shard.map(|place| place.to_string()).unwrap_or_default(),
    };
    let written = database.put_opt(manifest_key(), manifest.encode_to_vec(), &options::synced());
    written.map_err(|error| StoreError::of_rocksdb(folder, &error))
}

/// Reads all workers into a directory. Each worker needs a complete image next.
fn read_directory(database: &DB, folder: &Path) -> Result<Directory, StoreError> {
    let unreadable = |error| StoreError::unreadable(folder, &error);
    let mut directory = Directory::default();
    let mut records = database.raw_iterator_opt(options::sweep(worker_bounds()));
    records.seek_to_first();
    while let Some((key, value)) = records.item() {
        let number = worker_of(key).map_err(unreadable)?;
        let record = WorkerRecord::read(value).map_err(unreadable)?;
        let entry = Entry { number, head: record.head(), needs_whole: true };
        let address = record.address().map_err(unreadable)?;
        let name = address.to_string();
        if !directory.put_worker(address, entry) {
            let folder = folder.to_owned();
            let reason = format!("worker {name} is stored twice");
            return Err(StoreError::Corrupt { folder, reason });
        }
        records.next();
    }
    records.status().map_err(|error| StoreError::of_rocksdb(folder, &error))?;
    Ok(directory)
}

/// Builds a batch that deletes unfinished generations, left by a crash during a complete image.
fn find_orphans(
    database: &DB,
    folder: &Path,
    directory: &Directory,
) -> Result<WriteBatch, StoreError> {
    let counting = directory.generations();
    let mut batch = WriteBatch::default();
    let mut contents = database.raw_iterator_opt(options::sweep(contents_bounds(None)));
    contents.seek_to_first();
    while let Some(key) = contents.key() {
        let unreadable = |error| StoreError::unreadable(folder, &error);
        let (worker, generation) = generation_of(key).map_err(unreadable)?;
        let (first, behind) = generation_bounds(worker, generation);
        contents.seek(&behind);
        if counting.get(&worker) != Some(&generation) {
            batch.delete_range(first, behind);
        }
    }
    contents.status().map_err(|error| StoreError::of_rocksdb(folder, &error))?;
    Ok(batch)
}
