use super::Connection;
use super::bucket::{Bucket, Fault, Turn, Turns, is_turn, remove_all};
use super::core::RETRY_PAUSE;
use super::coverage::{Posted, purge_through, wants_snapshot};
use crate::snapshot::{Export, Imported, SharedStore, StoreError, StreamPosition};
use async_nats::jetstream;
use async_nats::jetstream::context::Context as Jetstream;
use async_nats::jetstream::kv::{self, Store};
use async_nats::jetstream::stream::Stream;
use futures::TryStreamExt;
use kvasir_proto::broker::{COVERAGE, STREAM};
use kvasir_proto::shard::ShardPlace;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf, duplex};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio::{join, select};
use tokio_util::io::SyncIoBridge;
use tokio_util::sync::CancellationToken;

/// A replica that has not published its position for this time is ignored.
const COVERAGE_AGE: Duration = Duration::from_secs(600);
/// Interval at which a replica publishes its position, even if it has not changed.
const POST_INTERVAL: Duration = Duration::from_secs(60);
/// Longest wait for the broker before the server starts without a snapshot.
const BROKER_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout between two pieces of a download.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum attempts to download a snapshot that is replaced during the download, or is too old for the stream.
const DOWNLOADS_MAX: u32 = 3;
/// Buffer size between the disk and the broker.
const BYTES_BETWEEN: usize = 1 << 20;

/// Uploads snapshots of the index to the object store, and purges the covered messages from the stream.
#[derive(Debug)]
pub struct Snapshots {
    connection: Connection,
    shared_store: SharedStore,
    /// `shard-I-of-N` for each shard; `own` is the name of this shard.
    shards: Vec<String>,
    own: String,
    /// Id of this replica.
    replica: String,
    threshold: u64,
    turns: Turns,
}

impl Snapshots {
    /// Creates the handler of the snapshots of one shard, whose checkpoints are in `shared_store`.
    pub(super) fn new(
        connection: Connection,
        shared_store: SharedStore,
        place: Option<ShardPlace>,
        threshold: u64,
    ) -> Self {
        let count = place.map_or(1, |place| place.shards().get());
        let name = |shard: u16| format!("shard-{shard}-of-{count}");
        let own = name(place.map_or(0, |place| u16::from(place.shard())));
        let replica = format!("{own}.{:016x}", RandomState::new().hash_one(0));
        let shards = (0..count).map(name).collect();
        Self { connection, shared_store, shards, own, replica, threshold, turns: Turns::default() }
    }

    /// Imports the shard's snapshot into the local store. Returns `None` if the store has workers already, NATS cannot
    /// be reached, the snapshot is missing, or all downloads fail. A failed download is retried only if a newer
    /// snapshot has replaced the old one.
    pub async fn fetch(&self) -> Option<Imported> {
        let is_empty = self.shared_store.call(|store| store.is_empty()).await;
        if !matches!(is_empty, Ok(true)) {
            return None;
        }
        if !self.wait_for_broker().await {
            tracing::warn!("NATS was unreachable for {BROKER_TIMEOUT:?}: no snapshot is restored");
            return None;
        }
        let context = self.context();
        let mut attempts = 0;
        let deadline = Instant::now() + BROKER_TIMEOUT;
        loop {
            let announced = self.stored_position(&context).await;
            let is_unknown = announced.is_err() && Instant::now() < deadline;
            if is_unknown {
                // JetStream becomes available later than the broker.
                sleep(RETRY_PAUSE).await;
                continue;
            }
            attempts += 1;
            match self.import(attempts < DOWNLOADS_MAX).await {
                Ok(None) => {
                    tracing::info!(shard = self.own, "the object store has no snapshot");
                    return None;
                }
                Ok(Some(imported)) => {
                    let Imported { workers, held_blocks, .. } = imported;
                    tracing::info!(workers, held_blocks, "snapshot restored");
                    return Some(imported);
                }
                Err(error) => {
                    let shard = &self.own;
                    tracing::warn!(%error, shard, attempts, "the snapshot could not be fetched");
                    let replaced = self.stored_position(&context).await.ok() != announced.ok();
                    if attempts >= DOWNLOADS_MAX || !replaced {
                        return None;
                    }
                }
            }
        }
    }

    /// Waits for the broker. Returns false after [`BROKER_TIMEOUT`].
    async fn wait_for_broker(&self) -> bool {
        let mut link = self.connection.link.clone();
        let up = timeout(BROKER_TIMEOUT, link.wait_for(|link| link.up)).await;
        matches!(up, Ok(Ok(_)))
    }

    /// Imports the shard's snapshot, if there is one. If `another` is true, a further attempt may follow: then refuses
    /// a snapshot that is too old for the stream, because a newer one may be uploaded meanwhile.
    async fn import(&self, another: bool) -> Result<Option<Imported>, Fault> {
        let context = self.context();
        let Some(bucket) = Bucket::find(&context, &self.connection.namespace, &self.own).await?
        else {
            return Ok(None);
        };
        let Some(position) = bucket.position().await? else { return Ok(None) };
        // From now on no replica purges messages after this position.
        self.publish_position(&self.coverage(&context).await?, position).await?;
        let imported = self.download(&bucket).await?;
        if let (Some(position), Ok(stream)) =
            (imported.position, context.get_stream(self.stored(STREAM)).await)
            && position.sequence + 1 < stream.cached_info().state.first_sequence
            && another
        {
            self.shared_store.call(|store| store.clear()).await??;
            return Err("the stream has purged messages after it".into());
        }
        Ok(Some(imported))
    }

    /// Downloads the snapshot and imports it meanwhile. Fails if the download stalls.
    async fn download(&self, bucket: &Bucket) -> Result<Imported, Fault> {
        let mut object = bucket.get().await?;
        let (mut sink, source) = duplex(BYTES_BETWEEN);
        let source = SyncIoBridge::new(source);
        let copied = async move {
            let mut piece = vec![0; BYTES_BETWEEN];
            // A download does not finish if the object is replaced meanwhile: the truncated data is not imported.
            while let Ok(read) = timeout(STALL_TIMEOUT, object.read(&mut piece)).await {
                let Some(read) = piece.get(..read?).filter(|read| !read.is_empty()) else { break };
                sink.write_all(read).await?;
            }
            Ok::<_, io::Error>(())
        };
        let (copied, imported) =
            join!(copied, self.shared_store.call(move |store| store.import(source)));
        let imported = imported??;
        copied?;
        Ok(imported)
    }

    /// Purges the stream, the object store, and the local store: every index starts empty.
    ///
    /// # Errors
    /// If the broker is unreachable, or a part cannot be purged. Some parts may be purged then.
    pub async fn reset(&self) -> Result<(), Fault> {
        if !self.wait_for_broker().await {
            return Err("reset-states: the broker is unreachable".into());
        }
        let context = self.context();
        tracing::warn!("reset-states: purging stream, snapshots and checkpoint");
        for stream in [self.stored(STREAM), format!("KV_{}", self.stored(COVERAGE))] {
            if context.get_stream(&stream).await.is_ok() {
                context.delete_stream(&stream).await?;
            }
        }
        remove_all(&context, &self.connection.namespace).await?;
        self.shared_store.call(|store| store.clear()).await??;
        Ok(())
    }

    /// Publishes the position on disk, uploads snapshots, and purges the stream, until `stop`.
    pub async fn run(
        mut self,
        mut on_disk: watch::Receiver<Option<StreamPosition>>,
        stop: CancellationToken,
    ) {
        let mut ticks = interval(POST_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
                changed = on_disk.changed() => if changed.is_err() { return },
            }
            let position = *on_disk.borrow_and_update();
            let Some(position) = position else { continue };
            let done = select! {
                () = stop.cancelled() => return,
                done = self.run_once(position) => done,
            };
            if let Err(error) = done {
                tracing::warn!(%error, "snapshots and coverage were not updated: retrying");
                select! {
                    () = stop.cancelled() => return,
                    () = sleep(RETRY_PAUSE) => {}
                }
            }
        }
    }

    /// Publishes the replica's position. If the stream needs a newer snapshot and no other replica has the lease,
    /// uploads one and purges messages. Does nothing while the broker is unreachable.
    async fn run_once(&mut self, position: StreamPosition) -> Result<(), Fault> {
        if !self.connection.link.borrow().up {
            return Ok(());
        }
        let context = self.context();
        let coverage = self.coverage(&context).await?;
        self.publish_position(&coverage, position).await?;
        let stream = context.get_stream(self.stored(STREAM)).await?;
        let first = stream.cached_info().state.first_sequence;
        let stored_position = self.stored_position(&context).await?;
        if wants_snapshot(position, stored_position, first, self.threshold)
            && let Some(turn) =
                self.turns.acquire_lease(&coverage, &self.own, &self.replica).await?
        {
            self.upload_and_release(turn, &coverage).await?;
            self.purge(&stream, &coverage).await?;
        }
        Ok(())
    }

    /// Publishes this replica's position in the stream.
    async fn publish_position(
        &self,
        coverage: &Store,
        position: StreamPosition,
    ) -> Result<(), Fault> {
        coverage.put(&self.replica, Posted(position).to_string().into()).await?;
        Ok(())
    }

    /// Stream position of the shard's stored snapshot.
    async fn stored_position(&self, context: &Jetstream) -> Result<Option<StreamPosition>, Fault> {
        let bucket = Bucket::find(context, &self.connection.namespace, &self.own).await?;
        match bucket {
            Some(bucket) => bucket.position().await,
            None => Ok(None),
        }
    }

    /// Uploads a snapshot under this replica's lease, then releases the lease.
    async fn upload_and_release(&self, mut turn: Turn, coverage: &Store) -> Result<(), Fault> {
        let taken = self.upload(&mut turn, coverage).await;
        turn.give_back(coverage).await?;
        taken
    }

    /// Exports the local store and uploads it as the shard's snapshot. Fails if the lease is lost meanwhile. Does
    /// nothing if the store lacks a stream position.
    async fn upload(&self, turn: &mut Turn, coverage: &Store) -> Result<(), Fault> {
        let bucket =
            Bucket::open_or_create(&self.context(), &self.connection.namespace, &self.own).await?;
        bucket.tidy().await?;
        let export = self.shared_store.call(|store| store.export()).await??;
        let Some(position) = export.position() else { return Ok(()) };
        let (sink, source) = duplex(BYTES_BETWEEN);
        let sink = SyncIoBridge::new(sink);
        let is_complete = Arc::new(AtomicBool::new(false));
        let mut source = CompleteUpload { source, is_complete: Arc::clone(&is_complete) };
        let written = spawn_blocking(move || write_out(export, sink, &is_complete));
        let put = select! {
            put = bucket.put_snapshot(position, &mut source) => put,
            Err(fault) = self.stay(position, turn, coverage) => Err(fault),
        };
        drop(source);
        written.await??;
        let bytes = put?;
        tracing::info!(shard = self.own, sequence = position.sequence, bytes, "snapshot taken");
        Ok(())
    }

    /// Renews the lease and the published position at an interval. Returns only with an error.
    async fn stay(
        &self,
        position: StreamPosition,
        turn: &mut Turn,
        coverage: &Store,
    ) -> Result<(), Fault> {
        loop {
            sleep(POST_INTERVAL).await;
            turn.renew(coverage).await?;
            self.publish_position(coverage, position).await?;
        }
    }

    /// Purges the messages that all shards' snapshots and all replicas' disks include.
    async fn purge(&self, stream: &Stream, coverage: &Store) -> Result<(), Fault> {
        let context = self.context();
        let mut snapshots = Vec::with_capacity(self.shards.len());
        for shard in &self.shards {
            let bucket = Bucket::find(&context, &self.connection.namespace, shard).await?;
            snapshots.push(match bucket {
                Some(bucket) => bucket.position().await?,
                None => None,
            });
        }
        let mut replicas = Vec::new();
        let keys: Vec<String> = coverage.keys().await?.try_collect().await?;
        for key in keys.into_iter().filter(|key| !is_turn(key)) {
            let value = coverage.get(key).await?;
            let posted = value.and_then(|value| str::from_utf8(&value).ok()?.parse().ok());
            replicas.extend(posted.map(|Posted(position)| position));
        }
        let created = stream.cached_info().created.unix_timestamp_nanos();
        let created = i64::try_from(created).unwrap_or(i64::MAX);
        if let Some(through) = purge_through(created, &snapshots, &replicas) {
            let purged = stream.purge().sequence(through + 1).await?;
            tracing::info!(
                through,
                messages = purged.purged,
                "purged messages that all replicas have on disk"
            );
        }
        Ok(())
    }

    fn context(&self) -> Jetstream {
        jetstream::new(self.connection.client.clone())
    }

    fn stored(&self, name: &str) -> String {
        self.connection.namespace.stored(name)
    }

    /// The bucket of the replicas' positions, created if it is missing.
    async fn coverage(&self, context: &Jetstream) -> Result<Store, Fault> {
        let bucket = self.stored(COVERAGE);
        if let Ok(coverage) = context.get_key_value(&bucket).await {
            return Ok(coverage);
        }
        let config = kv::Config { bucket, max_age: COVERAGE_AGE, ..kv::Config::default() };
        Ok(context.create_key_value(config).await?)
    }
}

/// Source of an upload. Its end is valid only if the complete export was written.
struct CompleteUpload<R> {
    source: R,
    is_complete: Arc<AtomicBool>,
}

impl<R: AsyncRead + Unpin> AsyncRead for CompleteUpload<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.source).poll_read(context, buffer))?;
        if buffer.filled().len() == before && !self.is_complete.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::Error::other("the export ended early")));
        }
        Poll::Ready(Ok(()))
    }
}

/// Writes an export into `sink`, and sets `is_complete` at the end. Returns early without error if the reader of `sink`
/// has failed.
fn write_out(
    mut export: Export,
    mut sink: impl Write,
    is_complete: &AtomicBool,
) -> Result<(), StoreError> {
    while let Some(chunk) = export.next_chunk()? {
        if sink.write_all(&chunk).is_err() {
            // The reader has failed, and reports the reason.
            return Ok(());
        }
    }
    is_complete.store(true, Ordering::Release);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an upload whose export wrote some bytes, and was then complete or not.
    async fn read_upload(is_complete: bool) -> io::Result<Vec<u8>> {
        let (mut sink, source) = duplex(BYTES_BETWEEN);
        let is_complete = Arc::new(AtomicBool::new(is_complete));
        let mut source = CompleteUpload { source, is_complete };
        sink.write_all(b"a part").await?;
        drop(sink);
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes).await?;
        Ok(bytes)
    }

    #[tokio::test]
    async fn an_export_that_breaks_off_is_no_snapshot() {
        assert_eq!(read_upload(true).await.expect("all of it"), b"a part");
        let error = read_upload(false).await.expect_err("a part of it");
        assert_eq!(error.to_string(), "the export ended early");
    }
}
