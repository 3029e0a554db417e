//! Owners in separate processes, which are stopped and killed while NIXL reads their memory. They offer UCX only over
//! TCP: a read then needs their processor, so a read from a stopped owner is certainly running.

use crate::cases::until;
use crate::fetching::{fetching, options, serving};
use crate::place::{
    Fetching, Memory, PATIENCE, free_and_active, manager, names, prompt, save, verified,
};
use kvasir_blocks::BlockIdentity;
use kvasir_transfer::limits::REQUEST_BLOCKS_MAX;
use kvasir_transfer::wire::{FrameReader, Message};
use kvasir_transfer::{FetchFault, FetchRequest, Fetched};
use rustix::process::{Pid, Signal, kill_process};
use std::env;
use std::fs::{self, DirEntry, File};
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

const BLOCK_BYTES: usize = 3_000;
/// Blocks of a complete first request, and some of a second one.
const BLOCKS: usize = REQUEST_BLOCKS_MAX + REST;
const REST: usize = 60;

fn blocks() -> Vec<BlockIdentity> {
    prompt(1, BLOCKS as u64)
}

/// As a child: `OwnerProcess` starts it with a file for its address, and it serves until its standard input ends. Run
/// directly: tests that its first blocks can be fetched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_serves() {
    let owned = manager(Memory::Shared, BLOCK_BYTES, BLOCKS as u32);
    save(&owned, &blocks());
    let owner = serving(&owned).await;
    if let Some(file) = env::var_os("KVASIR_NIXL_OWNER").map(PathBuf::from) {
        let fresh = file.with_extension("fresh");
        fs::write(&fresh, owner.address.to_string()).expect("a file");
        fs::rename(fresh, file).expect("a file");
        let ended = spawn_blocking(|| std::io::stdin().read(&mut [0])).await.expect("no panic");
        assert_eq!(ended.expect("standard input"), 0);
    } else {
        let fetching = fetching(manager(Memory::Private, BLOCK_BYTES, 8));
        let fetched = fetching.fetch(owner.address, &blocks()[..8]).await;
        assert_eq!((fetched.blocks.len(), fetched.stopped), (8, None));
    }
    owner.stop().await;
}

struct OwnerProcess {
    child: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl OwnerProcess {
    async fn start() -> Self {
        // Downloads the library before the process needs it.
        let _here = options();
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("address");
        let log = folder.path().join("log");
        let log = File::create(log).expect("a file");
        let child = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "killed::an_owner_serves", "--nocapture"])
            .env("KVASIR_NIXL_OWNER", &file)
            .env("UCX_TLS", "tcp,self")
            .env("UCX_NET_DEVICES", "lo")
            .stdin(Stdio::piped())
            // The test runner must not read the child's result as its own.
            .stdout(log.try_clone().expect("the same file"))
            .stderr(log)
            .spawn()
            .expect("a process");
        let read = || fs::read_to_string(&file).ok().and_then(|text| text.parse().ok());
        until("the owner did not start", || read().is_some()).await;
        let address = read().expect("an address");
        Self { child, address, folder }
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(id.expect("an id"), signal).expect("a process");
    }

    /// Stops the process, and returns when all its threads have stopped.
    async fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        let is_stopped = |task: std::io::Result<DirEntry>| {
            let stat = fs::read_to_string(task.expect("a thread").path().join("stat"));
            // The state comes after the name, which is in parentheses.
            stat.expect("a thread").rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
        };
        let are_stopped = || fs::read_dir(&tasks).expect("threads").all(is_stopped);
        until("the owner does not stop", are_stopped).await;
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for OwnerProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Fetches all blocks through a port that stops the owner once it has lent the blocks of the second request, before the
/// client receives the loan. Returns when NIXL reads them, which can't end.
async fn stopped_in_the_middle(
    owner: &OwnerProcess,
    fetching: &Arc<Fetching>,
    within: Duration,
) -> JoinHandle<(Fetched, Instant)> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let peer = format!("http://{}", listener.local_addr().expect("an address"));
    let fetch = {
        let fetching = Arc::clone(fetching);
        // The test awaits the task.
        #[expect(clippy::disallowed_methods, reason = "its handle is awaited")]
        tokio::spawn(async move {
            let wanted = names(&blocks());
            let deadline = Instant::now() + within;
            let peer = peer.as_str();
            let into = &fetching.session;
            let request = FetchRequest { peer, wanted: &wanted, into, deadline };
            (fetching.backend.fetch(request).await, Instant::now())
        })
    };
    let (client, _) = listener.accept().await.expect("the client");
    let stream = TcpStream::connect(owner.address).await.expect("the owner");
    let (from_client, mut to_client) = client.into_split();
    let (from_owner, mut to_owner) = stream.into_split();
    #[expect(clippy::disallowed_methods, reason = "it ends with its connections")]
    tokio::spawn(async move {
        let mut from_client = from_client;
        copy(&mut from_client, &mut to_owner).await
    });
    let mut answers = FrameReader::new(from_owner, BLOCK_BYTES as u64);
    let mut answers_of_loans = 0;
    while answers_of_loans < 2 {
        let message = answers.frame().await.expect("a frame").expect("a frame");
        answers_of_loans += u32::from(matches!(message, Message::Lent(_)));
        if answers_of_loans == 2 {
            let manager = &fetching.manager;
            let has_first = || free_and_active(manager).1 == REQUEST_BLOCKS_MAX as u64;
            until("the blocks of the first request did not come", has_first).await;
            owner.stop().await;
        }
        to_client.write_all(&message.frame(0)).await.expect("the client");
    }
    let is_reading = || free_and_active(&fetching.manager).0 < REST as u64;
    until("nothing is read", is_reading).await;
    // The connections stay open until the client closes its own.
    #[expect(clippy::disallowed_methods, reason = "it ends with its connections")]
    tokio::spawn(async move {
        let mut from_owner = answers;
        copy(from_owner.io(), &mut to_client).await
    });
    fetch
}

/// The first blocks stay. All other slots are freed, and the owner's set is in use until then.
async fn only_the_first_blocks_are_there(fetching: &Fetching, fetched: Fetched) {
    assert_eq!(fetched.blocks.len(), REQUEST_BLOCKS_MAX);
    drop(fetched.blocks);
    assert_eq!(verified(&fetching.manager, &blocks()), REQUEST_BLOCKS_MAX);
    let are_free = || {
        // In this order: slots are freed before the set's transfers end.
        let is_unused = fetching.registry.stats().transfers == 0;
        let are_free = free_and_active(&fetching.manager).0 == REST as u64;
        assert!(
            are_free || !is_unused,
            "NIXL may still write the slots, and the owner's set has no transfer"
        );
        are_free
    };
    until("slots do not come back", are_free).await;
    let is_unused = || fetching.registry.stats().transfers == 0;
    until("the owner's set is in use", is_unused).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_killed_in_the_middle_leaves_nothing_wrong() {
    let owner = OwnerProcess::start().await;
    let fetching = Arc::new(fetching(manager(Memory::Private, BLOCK_BYTES, BLOCKS as u32)));
    let fetch = stopped_in_the_middle(&owner, &fetching, PATIENCE).await;
    assert!(!fetch.is_finished(), "{}", owner.log());
    owner.signal(Signal::KILL);
    let killed_at = Instant::now();
    let (fetched, ended_at) = fetch.await.expect("no panic");
    let Some(FetchFault::Lost(_)) = &fetched.stopped else { panic!("{:?}", fetched.stopped) };
    assert!(ended_at - killed_at < PATIENCE / 2, "not before its deadline was near");
    only_the_first_blocks_are_there(&fetching, fetched).await;

    // The reader continues with another owner.
    let owned = manager(Memory::Private, BLOCK_BYTES, BLOCKS as u32);
    save(&owned, &blocks());
    let another = serving(&owned).await;
    let rest = &blocks()[REQUEST_BLOCKS_MAX..];
    let fetched = fetching.fetch(another.address, rest).await;
    assert_eq!((fetched.blocks.len(), fetched.stopped), (REST, None));
    drop(fetched.blocks);
    assert_eq!(verified(&fetching.manager, &blocks()), BLOCKS);
    another.stop().await;
}

/// NIXL continues an abandoned read: when the owner continues, its bytes must not reach slots with other blocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_continues_late_writes_nothing() {
    let owner = OwnerProcess::start().await;
    let fetching = Arc::new(fetching(manager(Memory::Private, BLOCK_BYTES, BLOCKS as u32)));
    let within = Duration::from_secs(4);
    let fetch = stopped_in_the_middle(&owner, &fetching, within).await;
    let (fetched, _) = fetch.await.expect("no panic");
    assert_eq!(fetched.stopped, Some(FetchFault::TimedOut));
    only_the_first_blocks_are_there(&fetching, fetched).await;
    let others = prompt(2, REST as u64);
    save(&fetching.manager, &others);
    owner.signal(Signal::CONT);
    // Once it has served another request, or is gone, its earlier bytes were sent.
    let late = Fetching::new(manager(Memory::Private, BLOCK_BYTES, BLOCKS as u32));
    drop(late.fetch(owner.address, &blocks()).await);
    assert_eq!(verified(&fetching.manager, &others), REST);
}
