use super::{ObjectStorage, Put, Volume, VolumeDescriptor, VolumeError, Volumes};
use crate::block::{Fingerprint, Sealed};
use crate::cancel::Cancel;
use crate::checksum::Checksum;
use crate::error::TransferError;
use crate::storage::{Place, Storage};
use crate::testing::{arena, block, bytes, filled, holds};
use futures::{StreamExt, TryStreamExt};
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

const BYTES: usize = 70_000;

fn descriptor(name: &str, url: &str) -> VolumeDescriptor {
    VolumeDescriptor {
        name: name.to_owned(),
        url: url.to_owned(),
        options: Vec::new(),
        fingerprint: Fingerprint([5; 32]),
        block_bytes: BYTES,
    }
}

fn storage(volume: &Arc<Volume>, runtime: &Runtime) -> ObjectStorage {
    let timeout = Duration::from_secs(60);
    ObjectStorage::new(Arc::clone(volume), runtime.handle().clone(), timeout)
}

/// Requirements of every store; also run against S3.
pub(crate) fn a_volume_keeps_blocks(volume: &Arc<Volume>, runtime: &Runtime) {
    let memory = arena(BYTES, 2);
    let cancel = Cancel::new();
    let storage = storage(volume, runtime);
    let mut stored = Vec::new();
    for number in 0..3 {
        let source = filled(&memory, 0, number, BYTES);
        let block = block(number, BYTES - 1);
        stored.push(storage.store(Place::Named, &block, &source, &cancel).expect("stored"));
    }
    for sealed in &stored {
        let mut target = memory.write(1).expect("a free slot");
        storage.load(Place::Named, sealed, &mut target, &cancel).expect("loaded");
        assert!(holds(target, sealed.identity.position, BYTES - 1));
        let (found, bytes_found) =
            runtime.block_on(volume.get(sealed.identity.sequence_hash)).expect("a block");
        assert_eq!((found, bytes_found.len()), (*sealed, BYTES - 1));
    }

    // A second writer finds the existing block.
    let name = stored[1].identity.sequence_hash;
    let other = bytes(99, BYTES - 1);
    let second = Sealed { checksum: Checksum::of(name, &other), ..stored[1] };
    let put = runtime.block_on(volume.put(&second, other.into())).expect("an answer");
    assert_eq!(put, Put::Existing(stored[1]));

    // Different bytes are not accepted as the block.
    let mut target = memory.write(1).expect("a free slot");
    let outcome = storage.load(Place::Named, &second, &mut target, &cancel);
    assert!(matches!(outcome, Err(TransferError::Corrupt { .. })), "{outcome:?}");

    let names = || -> Vec<u64> {
        let mut names: Vec<u64> =
            runtime.block_on(volume.list().try_collect()).expect("a list of names");
        names.sort_unstable();
        names
    };
    let mut expected: Vec<u64> = stored.iter().map(|at| at.identity.sequence_hash).collect();
    expected.sort_unstable();
    assert_eq!(names(), expected);
    storage.erase(Place::Named, name, &cancel).expect("deleted");
    storage.erase(Place::Named, name, &cancel).expect("still deleted");
    assert_eq!(names().len(), 2);
    let outcome = storage.load(Place::Named, &stored[1], &mut target, &cancel);
    assert_eq!(outcome, Err(TransferError::Missing));
}

#[test]
fn memory_keeps_blocks() {
    let runtime = Runtime::new().expect("a runtime");
    let volume = Volumes::new().register_volume(&descriptor("a", "memory:///")).expect("a volume");
    a_volume_keeps_blocks(&volume, &runtime);
}

#[test]
fn a_folder_keeps_blocks_and_damage_is_found() {
    let runtime = Runtime::new().expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("file://{}", folder.path().display());
    let volumes = Volumes::new();
    let volume = volumes.register_volume(&descriptor("a", &url)).expect("a volume");
    a_volume_keeps_blocks(&volume, &runtime);

    let name = block(0, 1).identity.sequence_hash;
    let path = folder.path().join("05".repeat(32)).join(format!("{name:016x}"));
    let good = fs::read(&path).expect("the object");
    let get = || runtime.block_on(volume.get(name)).map(drop);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        fs::write(&path, bytes).expect("an object");
        get()
    };
    let flipped = with(&|bytes| bytes[200] ^= 1);
    assert!(matches!(flipped, Err(TransferError::Corrupt { .. })), "{flipped:?}");
    let cut = with(&|bytes| bytes.truncate(1_000));
    assert!(matches!(cut, Err(TransferError::Short { .. })), "{cut:?}");
    let long = with(&|bytes| bytes.resize(10 * BYTES, 0));
    assert!(matches!(long, Err(TransferError::Foreign(_))), "{long:?}");
    let header = with(&|bytes| bytes[20] ^= 1);
    assert!(matches!(header, Err(TransferError::Corrupt { .. })), "{header:?}");
    for bytes in [0, 1] {
        fs::write(&path, vec![0; bytes]).expect("an object");
        let found = runtime.block_on(volume.find(name));
        assert!(
            matches!(found, Err(TransferError::Short { done, .. }) if done == bytes),
            "{found:?}"
        );
    }
    // A block with a damaged header is replaced by a good one.
    let again = bytes(0, 500);
    let identity = block(0, 1).identity;
    let sealed = Sealed { identity, bytes: 500, checksum: Checksum::of(name, &again) };
    let put = runtime.block_on(volume.put(&sealed, again.into()));
    assert_eq!((put, get()), (Ok(Put::Created), Ok(())));
}

#[test]
fn volumes_come_and_go() {
    let runtime = Runtime::new().expect("a runtime");
    let volumes = Volumes::new();
    let volume = volumes.register_volume(&descriptor("a", "memory:///")).expect("a volume");
    let twice = volumes.register_volume(&descriptor("a", "memory:///")).map(drop);
    assert!(matches!(twice, Err(VolumeError::Registered(_))), "{twice:?}");
    let strange = volumes.register_volume(&descriptor("b", "gopher://there")).map(drop);
    assert!(matches!(strange, Err(VolumeError::Address { .. })), "{strange:?}");
    let secret = volumes.register_volume(&descriptor("c", "minio://KEY:SECRET@host/bucket"));
    let message = secret.map(drop).expect_err("no such store").to_string();
    assert!(!message.contains("SECRET"), "{message}");
    assert!(volumes.volume("a").is_some());
    volumes.unregister_volume("a").expect("a volume");
    assert!(volumes.volume("a").is_none());
    let outcome = runtime.block_on(volume.find(1));
    assert_eq!(outcome, Err(TransferError::Unregistered("a".to_owned())));
    assert!(matches!(volumes.unregister_volume("a"), Err(VolumeError::Unknown(_))));
}

/// A store that never answers.
#[test]
fn cancelled_and_late_transfers_end() {
    let runtime = Runtime::new().expect("a runtime");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let options = [
        ("aws_endpoint", format!("http://{address}")),
        ("aws_allow_http", "true".to_owned()),
        ("aws_access_key_id", "test".to_owned()),
        ("aws_secret_access_key", "test".to_owned()),
    ];
    let descriptor = VolumeDescriptor {
        options: options.map(|(key, value)| (key.to_owned(), value)).to_vec(),
        ..descriptor("silent", "s3://bucket/some/where")
    };
    let volume = Volumes::new().register_volume(&descriptor).expect("a volume");
    let memory = arena(BYTES, 1);
    let sealed = Sealed { identity: block(1, BYTES).identity, bytes: BYTES, checksum: Checksum(0) };
    let load = |timeout: Duration, cancel: &Cancel| {
        let storage = ObjectStorage::new(Arc::clone(&volume), runtime.handle().clone(), timeout);
        let mut target = memory.write(0).expect("the last transfer has stopped");
        storage.load(Place::Named, &sealed, &mut target, cancel)
    };
    let late = load(Duration::from_millis(20), &Cancel::new());
    assert_eq!(late, Err(TransferError::Late { seconds: 0 }));
    let cancel = Cancel::new();
    let other = cancel.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The request has arrived, so the call is running.
            drop(listener.accept().expect("a request"));
            other.cancel();
        });
        assert_eq!(load(Duration::from_secs(60), &cancel), Err(TransferError::Cancelled));
    });
    drop(volume.list().boxed());
}
