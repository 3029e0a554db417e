use super::{
    Connection,
    core::RETRY_PAUSE,
    coverage::{Posted, purge_through, wants_snapshot},
};
use crate::snapshot::{Export, Imported, Keeper, StoreError, StreamPosition};
use async_nats::jetstream::{
    self, Context,
    kv::{self, Store},
    object_store::{self, ObjectMetadata, ObjectStore},
    stream::Stream,
};
use futures::TryStreamExt;
use kvasir_proto::{
    broker::{COVERAGE, SNAPSHOTS, STREAM},
    shard::ShardPlace,
};
use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    io::{self, Write},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    join, select,
    sync::watch,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::{io::SyncIoBridge, sync::CancellationToken};

/// Who has posted nothing for so long is not waited for.
const COVERAGE_AGE: Duration = Duration::from_secs(600);
/// How often a replica posts what it covers, also if that has not changed.
const POST_INTERVAL: Duration = Duration::from_secs(60);
/// Longest wait for the broker before the server starts without a snapshot.
const BROKER_TIMEOUT: Duration = Duration::from_secs(30);
/// A snapshot of which nothing comes for so long is given up.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a snapshot between the disk and the broker.
const BYTES_BETWEEN: usize = 1 << 20;

/// What went wrong between the broker and us.
type Fault = async_nats::Error;

/// Keeps snapshots of the index in the object store, and the stream no longer than they allow.
#[derive(Debug)]
pub struct Snapshots {
    connection: Connection,
    keeper: Keeper,
    /// `shard-I-of-N` for each shard, and which of them this is.
    shards: Vec<String>,
    own: String,
    /// Tells replicas of a shard apart.
    replica: String,
    threshold: u64,
}

impl Snapshots {
    /// Of the index whose checkpoints `keeper` has.
    pub(super) fn new(
        connection: Connection,
        keeper: Keeper,
        place: Option<ShardPlace>,
        threshold: u64,
    ) -> Self {
        let count = place.map_or(1, |place| place.shards().get());
        let name = |shard: u16| format!("shard-{shard}-of-{count}");
        let own = name(place.map_or(0, |place| u16::from(place.shard())));
        let replica = format!("{own}.{:016x}", RandomState::new().hash_one(0));
        let shards = (0..count).map(name).collect();
        Self { connection, keeper, shards, own, replica, threshold }
    }

    /// Begins with the shard's snapshot, where the local store has nothing. None if there is none, or it
    /// cannot be had.
    pub async fn fetch(&self) -> Option<Imported> {
        let is_empty = self.keeper.call(|store| store.is_empty()).await;
        if !matches!(is_empty, Ok(true)) || !self.wait_for_broker().await {
            return None;
        }
        match self.import().await {
            Ok(imported) => {
                tracing::info!(?imported, "begun with a snapshot of the object store");
                Some(imported)
            }
            Err(error) => {
                tracing::warn!(%error, object = self.own, "no snapshot to begin with");
                None
            }
        }
    }

    async fn wait_for_broker(&self) -> bool {
        let mut link = self.connection.link.clone();
        let up = timeout(BROKER_TIMEOUT, link.wait_for(|link| link.up)).await;
        if !matches!(up, Ok(Ok(_))) {
            tracing::warn!("the broker is not there: {BROKER_TIMEOUT:?} were waited");
            return false;
        }
        true
    }

    async fn import(&self) -> Result<Imported, Fault> {
        let objects = objects(&self.context()).await?;
        let mut object = objects.get(&self.own).await?;
        let (mut sink, source) = duplex(BYTES_BETWEEN);
        let source = SyncIoBridge::new(source);
        let copied = async move {
            let mut piece = vec![0; BYTES_BETWEEN];
            // An object that is replaced meanwhile comes to no end: what is cut off is not taken over.
            while let Ok(read) = timeout(STALL_TIMEOUT, object.read(&mut piece)).await {
                let Some(read) = piece.get(..read?).filter(|read| !read.is_empty()) else { break };
                sink.write_all(read).await?;
            }
            Ok::<_, io::Error>(())
        };
        let (copied, imported) = join!(copied, self.keeper.call(move |store| store.import(source)));
        let imported = imported??;
        copied?;
        Ok(imported)
    }

    /// Empties the stream, the object store, and the local store: every index begins anew.
    ///
    /// # Errors
    /// If the broker is not there, or one of them cannot be emptied; then some may be.
    pub async fn reset(&self) -> Result<(), Fault> {
        if !self.wait_for_broker().await {
            return Err("reset-states: the broker is not there".into());
        }
        let context = self.context();
        tracing::warn!("reset-states: stream, snapshots and checkpoint are emptied");
        for stream in [STREAM.to_owned(), format!("OBJ_{SNAPSHOTS}"), format!("KV_{COVERAGE}")] {
            if context.get_stream(&stream).await.is_ok() {
                context.delete_stream(&stream).await?;
            }
        }
        self.keeper.call(|store| store.clear()).await??;
        Ok(())
    }

    /// Posts what is on disk, takes snapshots, and lets go of what nobody needs, until `stop`.
    pub async fn keep(
        self,
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
            let kept = select! {
                () = stop.cancelled() => return,
                kept = self.keep_once(position) => kept,
            };
            if let Err(error) = kept {
                tracing::warn!(%error, "snapshots and coverage are left for now");
                select! {
                    () = stop.cancelled() => return,
                    () = sleep(RETRY_PAUSE) => {}
                }
            }
        }
    }

    async fn keep_once(&self, position: StreamPosition) -> Result<(), Fault> {
        if !self.connection.link.borrow().up {
            return Ok(());
        }
        let context = self.context();
        let coverage = coverage(&context).await?;
        coverage.put(&self.replica, Posted(position).to_string().into()).await?;
        let objects = objects(&context).await?;
        let stream = context.get_stream(STREAM).await?;
        let first = stream.cached_info().state.first_sequence;
        let taken = snapshot_of(&objects, &self.own).await;
        if wants_snapshot(position, taken, first, self.threshold) {
            self.take(&objects, &coverage).await?;
            self.purge(&stream, &objects, &coverage).await?;
        }
        Ok(())
    }

    /// Puts a snapshot into the object store, unless another replica is about to.
    async fn take(&self, objects: &ObjectStore, coverage: &Store) -> Result<(), Fault> {
        // It goes with its bucket's age if we die.
        let turn = format!("{}.snapshot", self.own);
        if coverage.create(&turn, self.replica.clone().into()).await.is_err() {
            return Ok(());
        }
        let taken = self.upload(objects).await;
        coverage.purge(&turn).await?;
        taken
    }

    async fn upload(&self, objects: &ObjectStore) -> Result<(), Fault> {
        let export = self.keeper.call(|store| store.export()).await??;
        let Some(position) = export.position() else { return Ok(()) };
        let (sink, mut source) = duplex(BYTES_BETWEEN);
        let sink = SyncIoBridge::new(sink);
        let written = spawn_blocking(move || write_out(export, sink));
        let metadata = ObjectMetadata {
            name: self.own.clone(),
            description: Some(Posted(position).to_string()),
            ..ObjectMetadata::default()
        };
        let put = objects.put(metadata, &mut source).await;
        drop(source);
        written.await??;
        let bytes = put?.size;
        tracing::info!(object = self.own, sequence = position.sequence, bytes, "snapshot taken");
        Ok(())
    }

    async fn purge(
        &self,
        stream: &Stream,
        objects: &ObjectStore,
        coverage: &Store,
    ) -> Result<(), Fault> {
        let mut snapshots = Vec::with_capacity(self.shards.len());
        for shard in &self.shards {
            snapshots.push(snapshot_of(objects, shard).await);
        }
        let mut replicas = Vec::new();
        let keys: Vec<String> = coverage.keys().await?.try_collect().await?;
        for key in keys.into_iter().filter(|key| !key.ends_with(".snapshot")) {
            let value = coverage.get(key).await?;
            let posted = value.and_then(|value| str::from_utf8(&value).ok()?.parse().ok());
            replicas.extend(posted.map(|Posted(position)| position));
        }
        let created = stream.cached_info().created.unix_timestamp_nanos();
        let created = i64::try_from(created).unwrap_or(i64::MAX);
        if let Some(through) = purge_through(created, &snapshots, &replicas) {
            let purged = stream.purge().sequence(through + 1).await?;
            tracing::info!(through, messages = purged.purged, "let go of what all have on disk");
        }
        Ok(())
    }

    fn context(&self) -> Context {
        jetstream::new(self.connection.client.clone())
    }
}

fn write_out(mut export: Export, mut sink: impl Write) -> Result<(), StoreError> {
    while let Some(chunk) = export.next_chunk()? {
        if sink.write_all(&chunk).is_err() {
            // Who reads has failed, and says why.
            return Ok(());
        }
    }
    Ok(())
}

/// How far the snapshot of a shard goes, if there is one that can be read.
async fn snapshot_of(objects: &ObjectStore, shard: &str) -> Option<StreamPosition> {
    let info = objects.info(shard).await.ok().filter(|info| !info.deleted)?;
    info.description?.parse().ok().map(|Posted(position)| position)
}

async fn objects(context: &Context) -> Result<ObjectStore, Fault> {
    if let Ok(objects) = context.get_object_store(SNAPSHOTS).await {
        return Ok(objects);
    }
    let config = object_store::Config { bucket: SNAPSHOTS.to_owned(), ..Default::default() };
    Ok(context.create_object_store(config).await?)
}

async fn coverage(context: &Context) -> Result<Store, Fault> {
    if let Ok(coverage) = context.get_key_value(COVERAGE).await {
        return Ok(coverage);
    }
    let config =
        kv::Config { bucket: COVERAGE.to_owned(), max_age: COVERAGE_AGE, ..kv::Config::default() };
    Ok(context.create_key_value(config).await?)
}
