//! Real volumes: objects in memory and in files.

use crate::shelf::Shelf;
use crate::world::BLOCK_BYTES;
use futures::TryStreamExt;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::{
    Fingerprint, ObjectStorage, Sealed, Storage, Volume, VolumeDescriptor, Volumes,
};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Handle;

/// Bytes of an object before its block.
const HEADER_BYTES: usize = 128;
const FINGERPRINT: Fingerprint = Fingerprint([7; 32]);

#[derive(Debug)]
struct Objects {
    volume: Arc<Volume>,
    store: Arc<dyn ObjectStore>,
    _folder: Option<TempDir>,
}

pub(crate) fn all() -> [Arc<dyn Shelf>; 2] {
    let folder = tempfile::tempdir().expect("a folder");
    let files = LocalFileSystem::new_with_prefix(folder.path()).expect("a folder");
    [objects(Arc::new(InMemory::new()), None), objects(Arc::new(files), Some(folder))]
}

fn objects(store: Arc<dyn ObjectStore>, folder: Option<TempDir>) -> Arc<dyn Shelf> {
    let descriptor = VolumeDescriptor {
        name: "test".to_owned(),
        url: String::new(),
        options: Vec::new(),
        fingerprint: FINGERPRINT,
        block_bytes: BLOCK_BYTES,
    };
    let volume = Volumes::new().register_store(&descriptor, Arc::clone(&store), Path::default());
    Arc::new(Objects { volume: volume.expect("a volume"), store, _folder: folder })
}

fn path(sequence: SequenceHash) -> Path {
    Path::default().join(FINGERPRINT.to_string()).join(format!("{:016x}", sequence.0))
}

/// These stores answer immediately, on any thread. Within a tokio task whose budget is used up they would never answer,
/// because a budget is renewed only when the task returns.
fn now<T>(answer: impl Future<Output = T>) -> T {
    futures::executor::block_on(tokio::task::unconstrained(answer))
}

impl Shelf for Objects {
    fn storage(&self) -> Arc<dyn Storage> {
        let volume = Arc::clone(&self.volume);
        let runtime = Handle::current();
        Arc::new(ObjectStorage::new(volume, runtime, Duration::from_secs(10)))
    }

    fn blocks(&self) -> Vec<Sealed> {
        now(async {
            let names = self.volume.list().try_collect().await?;
            self.volume.blocks(names).try_collect().await
        })
        .expect("headers")
    }

    fn edit(&self, sequence: SequenceHash, change: &dyn Fn(&mut Vec<u8>)) {
        let path = path(sequence);
        now(async {
            let Ok(object) = self.store.get(&path).await else { return };
            let bytes = object.bytes().await.expect("bytes");
            let (header, block) = bytes.split_at(HEADER_BYTES);
            let mut block = block.to_vec();
            change(&mut block);
            let changed = PutPayload::from([header, &block].concat());
            self.store.put(&path, changed).await.expect("an object");
        });
    }

    fn replace(&self, sequence: SequenceHash, by: SequenceHash) {
        now(self.store.copy(&path(by), &path(sequence))).expect("an object");
    }
}
