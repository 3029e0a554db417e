//! A volume in S3, simulated by moto's server: `tests/s3/serve`.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use futures::TryStreamExt;
use kvasir_memory::{Arena, SlotLayout, StorageAllocator, SystemAllocator};
use kvasir_tiers::objects::Put;
use kvasir_tiers::{
    Cancel, Checksum, Fingerprint, Identity, ObjectStorage, Place, Sealed, Storage, TransferError,
    VolumeDescriptor, Volumes,
};
use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

const BYTES: usize = 1 << 20;

/// The server. It ends when this value, which owns its standard input, is dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Self {
        let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/kvasir"));
        let cache = env::var_os("KVASIR_CACHE").map(PathBuf::from).or_else(home);
        let folder = cache.unwrap_or_else(env::temp_dir).join("moto");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/s3/serve");
        let mut child = Command::new(script)
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let port = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("serving ").and_then(|port| port.parse().ok()));
        Self { child, port: port.expect("a port") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().expect("a server that has ended");
    }
}

/// Creates a bucket with an unsigned request, which moto accepts.
async fn make_bucket(port: u16, name: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    let request = format!(
        "PUT /{name} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn block(name: u64, seed: u8) -> (Sealed, Bytes) {
    let bytes: Vec<u8> = (0..=250).cycle().map(|at: u8| at ^ seed).take(BYTES).collect();
    let identity = Identity { sequence_hash: name, parent: None, local_hash: 1, position: 0 };
    (Sealed { identity, bytes: BYTES, checksum: Checksum::of(name, &bytes) }, bytes.into())
}

#[test]
fn s3_keeps_blocks_and_the_first_writer_wins() {
    let server = Server::start();
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(make_bucket(server.port, "blocks"));
    let options = [
        ("aws_endpoint", format!("http://127.0.0.1:{}", server.port)),
        ("aws_allow_http", "true".to_owned()),
        ("aws_region", "us-east-1".to_owned()),
        ("aws_access_key_id", "test".to_owned()),
        ("aws_secret_access_key", "test".to_owned()),
    ];
    let descriptor = VolumeDescriptor {
        name: "shared".to_owned(),
        url: "s3://blocks/some/prefix".to_owned(),
        options: options.map(|(key, value)| (key.to_owned(), value)).to_vec(),
        fingerprint: Fingerprint([7; 32]),
        block_bytes: BYTES,
    };
    let volumes = Volumes::new();
    let volume = volumes.register_volume(&descriptor).expect("a volume");

    // Two writers of one name: the condition admits only the first. They run one after the other, because moto, unlike
    // S3, looks for the object and creates it in two steps.
    let (kept, first_bytes) = block(1, 0);
    let (lost, second_bytes) = block(1, 9);
    assert_eq!(runtime.block_on(volume.put(&kept, first_bytes)), Ok(Put::Created));
    assert_eq!(runtime.block_on(volume.put(&lost, second_bytes)), Ok(Put::Existing(kept)));

    let timeout = Duration::from_secs(60);
    let storage = ObjectStorage::new(Arc::clone(&volume), runtime.handle().clone(), timeout);
    let layout = SlotLayout::aligned(BYTES, 4096, 1).expect("a layout");
    let region = SystemAllocator.allocate(BYTES, 4096).expect("memory");
    let memory = Arena::new(region, layout).expect("an arena");
    let mut target = memory.write(0).expect("a free slot");
    let load =
        |target: &mut _, block: &Sealed| storage.load(Place::Named, block, target, &Cancel::new());
    assert_eq!(load(&mut target, &kept), Ok(()));
    let found = Checksum::of(1, target.as_slice().expect("private memory"));
    assert_eq!(found, kept.checksum);
    let outcome = load(&mut target, &lost);
    assert!(matches!(outcome, Err(TransferError::Corrupt { .. })), "{outcome:?}");

    let (third, bytes) = block(2, 3);
    assert_eq!(runtime.block_on(volume.put(&third, bytes)), Ok(Put::Created));
    assert_eq!(runtime.block_on(volume.find(2)), Ok(third));
    let mut names: Vec<u64> = runtime.block_on(volume.list().try_collect()).expect("names");
    names.sort_unstable();
    assert_eq!(names, [1, 2]);
    runtime.block_on(volume.delete(1)).expect("deleted");
    assert_eq!(load(&mut target, &kept), Err(TransferError::Missing));

    volumes.unregister_volume("shared").expect("a volume");
    let gone = Err(TransferError::Unregistered("shared".to_owned()));
    assert_eq!(load(&mut target, &third), gone);
}
