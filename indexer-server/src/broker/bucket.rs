//! A shard's snapshot in the object store, and the lease (lock) under which one replica uploads it.

use super::coverage::Posted;
use crate::snapshot::StreamPosition;
use async_nats::jetstream::context::{GetStreamError, GetStreamErrorKind};
use async_nats::jetstream::kv::Store;
use async_nats::jetstream::object_store::{
    self, InfoErrorKind, Object, ObjectInfo, ObjectMetadata, ObjectStore,
};
use async_nats::jetstream::{Context, ErrorCode};
use futures::TryStreamExt;
use kvasir_proto::broker::{Namespace, SNAPSHOTS};
use std::time::Duration;
use tokio::io::AsyncRead;
use tokio::time::Instant;

/// Error of a request to the broker.
pub(super) type Fault = async_nats::Error;

/// Name of the only object of a bucket.
const OBJECT: &str = "index";
/// The upload lease expires if its holder does not renew it for this time.
const TURN_AGE: Duration = Duration::from_secs(180);

/// Bucket of one shard's snapshots. Each shard has its own bucket, so that remains of an unfinished upload are
/// recognisable.
pub(super) struct Bucket {
    objects: ObjectStore,
    context: Context,
    name: String,
}

impl Bucket {
    /// Opens the object-store bucket of a shard. Returns `None` if the bucket is missing.
    pub(super) async fn find(
        context: &Context,
        namespace: &Namespace,
        shard: &str,
    ) -> Result<Option<Self>, Fault> {
        let name = bucket_name(namespace, shard);
        match context.get_stream(format!("OBJ_{name}")).await {
            Ok(_there) => {}
            Err(error) if is_not_found(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let objects = context.get_object_store(&name).await?;
        Ok(Some(Self { objects, context: context.clone(), name }))
    }

    /// Opens the object-store bucket of a shard. Creates the bucket if it is missing.
    pub(super) async fn open_or_create(
        context: &Context,
        namespace: &Namespace,
        shard: &str,
    ) -> Result<Self, Fault> {
        let there = Self::find(context, namespace, shard).await?;
        if let Some(bucket) = there {
            return Ok(bucket);
        }
        let name = bucket_name(namespace, shard);
        let config = object_store::Config { bucket: name.clone(), ..Default::default() };
        let objects = context.create_object_store(config).await?;
        Ok(Self { objects, context: context.clone(), name })
    }

    /// Stream position of the stored snapshot, if there is one.
    pub(super) async fn position(&self) -> Result<Option<StreamPosition>, Fault> {
        let posted = self.info().await?.and_then(|info| info.description);
        Ok(posted.and_then(|text| text.parse().ok()).map(|Posted(position)| position))
    }

    /// Metadata of the stored snapshot. `None` if there is no snapshot.
    async fn info(&self) -> Result<Option<ObjectInfo>, Fault> {
        match self.objects.info(OBJECT).await {
            Ok(info) => Ok(Some(info).filter(|info| !info.deleted)),
            Err(error) if error.kind() == InfoErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the snapshot for reading.
    pub(super) async fn get(&self) -> Result<Object, Fault> {
        Ok(self.objects.get(OBJECT).await?)
    }

    /// Replaces the snapshot in the bucket by the bytes of `source`. Returns the snapshot's size in bytes.
    pub(super) async fn put_snapshot(
        &self,
        position: StreamPosition,
        source: &mut (impl AsyncRead + Unpin),
    ) -> Result<usize, Fault> {
        let metadata = ObjectMetadata {
            name: OBJECT.to_owned(),
            description: Some(Posted(position).to_string()),
            ..ObjectMetadata::default()
        };
        Ok(self.objects.put(metadata, source).await?.size)
    }

    /// Removes the remains of unfinished uploads. Only the holder of the shard's upload lease may call this: the pieces
    /// of a running upload look the same.
    pub(super) async fn tidy(&self) -> Result<(), Fault> {
        // Without a finished upload, all pieces are remains.
        let finished = self.info().await?.map(|info| info.nuid).unwrap_or_default();
        let stream = self.context.get_stream(format!("OBJ_{}", self.name)).await?;
        let pieces = format!("$O.{}.C.", self.name);
        let found = stream.info_with_subjects(format!("{pieces}*")).await?;
        let found: Vec<(String, usize)> = found.try_collect().await?;
        for (subject, count) in found {
            if subject.strip_prefix(&pieces) != Some(&*finished) {
                tracing::info!(
                    bucket = self.name,
                    pieces = count,
                    "removed pieces of an unfinished upload"
                );
                stream.purge().filter(&subject).await?;
            }
        }
        Ok(())
    }
}

fn is_not_found(error: &GetStreamError) -> bool {
    match error.kind() {
        GetStreamErrorKind::JetStream(error) => error.error_code() == ErrorCode::STREAM_NOT_FOUND,
        GetStreamErrorKind::EmptyName
        | GetStreamErrorKind::InvalidStreamName
        | GetStreamErrorKind::Request => false,
    }
}

fn bucket_name(namespace: &Namespace, shard: &str) -> String {
    namespace.stored(format_args!("{SNAPSHOTS}-{shard}"))
}

/// Whether `stream` stores a bucket of a shard of this namespace. The name of another namespace may begin with this
/// namespace's complete prefix.
fn is_of(namespace: &Namespace, stream: &str) -> bool {
    let shard = stream.strip_prefix(&format!("OBJ_{}", bucket_name(namespace, "shard-")));
    let numbers = shard.and_then(|shard| shard.split_once("-of-"));
    let is_number = |text: &str| text.parse::<u16>().is_ok_and(|of| of.to_string() == text);
    numbers.is_some_and(|(shard, count)| is_number(shard) && is_number(count))
}

/// Removes the buckets of all shards.
pub(super) async fn remove_all(context: &Context, namespace: &Namespace) -> Result<(), Fault> {
    let streams: Vec<String> = context.stream_names().try_collect().await?;
    for stream in streams.into_iter().filter(|name| is_of(namespace, name)) {
        context.delete_stream(&stream).await?;
    }
    Ok(())
}

/// The last seen holder of a shard's upload lease.
#[derive(Debug, Default)]
pub(super) struct Turns {
    seen: Option<(u64, Instant)>,
}

/// Lease to upload a shard's snapshot. The holder must renew it, and release it at the end.
pub(super) struct Turn {
    key: String,
    holder: String,
    revision: u64,
}

impl Turns {
    /// Acquires the upload lease of a shard. Returns `None` while another replica holds it. Takes over a lease that was
    /// not renewed for [`TURN_AGE`], because its holder has crashed.
    pub(super) async fn acquire_lease(
        &mut self,
        coverage: &Store,
        shard: &str,
        holder: &str,
    ) -> Result<Option<Turn>, Fault> {
        let key = turn_key(shard);
        let holder = holder.to_owned();
        if let Ok(revision) = coverage.create(&key, holder.clone().into()).await {
            self.seen = None;
            return Ok(Some(Turn { key, holder, revision }));
        }
        let Some(entry) = coverage.entry(&key).await? else { return Ok(None) };
        let (seen, since) = self.seen.unwrap_or((entry.revision, Instant::now()));
        if seen != entry.revision || since.elapsed() < TURN_AGE {
            let since = if seen == entry.revision { since } else { Instant::now() };
            self.seen = Some((entry.revision, since));
            return Ok(None);
        }
        self.seen = None;
        let revision = coverage.update(&key, holder.clone().into(), entry.revision).await?;
        Ok(Some(Turn { key, holder, revision }))
    }
}

impl Turn {
    /// Renews the lease.
    ///
    /// # Errors
    /// If the lease has expired or was taken over.
    pub(super) async fn renew(&mut self, coverage: &Store) -> Result<(), Fault> {
        let holder = self.holder.clone().into();
        self.revision = coverage.update(&self.key, holder, self.revision).await?;
        Ok(())
    }

    /// Releases the lease.
    pub(super) async fn give_back(self, coverage: &Store) -> Result<(), Fault> {
        Ok(coverage.purge_expect_revision(&self.key, Some(self.revision)).await?)
    }
}

/// Key of a shard's lease, in the same store as the replicas' positions.
fn turn_key(shard: &str) -> String {
    format!("{shard}.snapshot")
}

/// Whether a key is the key of a lease.
pub(super) fn is_turn(key: &str) -> bool {
    key.ends_with(".snapshot")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_namespace_removes_the_buckets_of_another() {
        let read = |name: &str| name.parse::<Namespace>().expect(name);
        let names = ["a", "a-kvasir-snapshots-b", "kvasir-snapshots-shard-0", "kvasir"];
        let mut all: Vec<_> = names.into_iter().map(read).collect();
        all.push(Namespace::default());
        for one in &all {
            let stream = format!("OBJ_{}", bucket_name(one, "shard-0-of-16"));
            let owners: Vec<_> = all.iter().filter(|of| is_of(of, &stream)).collect();
            assert_eq!(owners, [one], "{stream}");
        }
    }
}
