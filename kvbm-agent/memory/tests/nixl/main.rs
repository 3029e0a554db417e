//! Tests the real NIXL: PyPI's library, memory over UCX on loopback, and files over POSIX.
#![expect(
    clippy::expect_used,
    clippy::disallowed_types,
    clippy::cast_possible_truncation,
    unreachable_pub,
    reason = "tests, which may fail"
)]

mod ending;
mod found;

use found::library;
use kvasir_memory::nixl::{
    Agent, Direction, Far, Library, NixlError, PIECES_MAX, Piece, Plugin, Progress, TransferId,
};
use kvasir_memory::{
    Arena, Backing, Region, SharedStorage, SlotLayout, StorageAllocator, SystemAllocator,
};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
/// A block that is shorter than its slot.
const LAYOUT: SlotLayout = SlotLayout { block_bytes: 70_000, stride_bytes: 73_728, slots: 8 };

fn loaded() -> Library {
    Library::load(&library("tests/nixl/library")).expect("NIXL")
}

fn private() -> Arc<Arena> {
    let bytes = LAYOUT.bytes().expect("bytes");
    Arena::new(SystemAllocator.allocate(bytes, 4096).expect("memory"), LAYOUT).expect("an arena")
}

fn shared() -> Arc<Arena> {
    let region = SharedStorage::create(&Backing::Memfd, LAYOUT).expect("memory");
    let region: Box<dyn Region> = Box::new(region);
    Arena::new(region, LAYOUT).expect("an arena")
}

fn bytes_of(slot: u32) -> Vec<u8> {
    (0..=250)
        .cycle()
        .map(|at: u8| at.wrapping_mul(slot as u8 + 3))
        .take(LAYOUT.block_bytes)
        .collect()
}

fn fill(arena: &Arc<Arena>) {
    for slot in 0..LAYOUT.slots {
        arena.write(slot).expect("a free slot").write(0, &bytes_of(slot)).expect("room");
    }
}

fn piece(arena: &Arc<Arena>, slot: u32, at: u64) -> Piece<u32> {
    Piece { slot: arena.write(slot).expect("a free slot"), at, with: slot }
}

fn ended(agent: &mut Agent<u32>, id: TransferId) -> Result<Vec<Piece<u32>>, NixlError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match agent.poll(id) {
            Progress::Running => assert!(Instant::now() < deadline, "it does not end"),
            Progress::Done(pieces) => return Ok(pieces),
            Progress::Failed(error) => return Err(error),
        }
        thread::yield_now();
    }
}

#[test]
fn blocks_of_a_peer_are_read_byte_for_byte() {
    let library = loaded();
    let mut plugin = Plugin::new("UCX");
    // NIXL's default, to test that parameters are passed.
    plugin.parameters = vec![("ucx_error_handling_mode".to_owned(), "peer".to_owned())];
    for (theirs, ours) in [(private(), shared()), (shared(), private())] {
        fill(&theirs);
        let mut owner = Agent::<()>::new(&library, "owner", &plugin).expect("an agent");
        let first = owner.register(&theirs).expect("registered");
        let mut reader = Agent::new(&library, "reader", &plugin).expect("an agent");
        reader.register(&ours).expect("registered");
        let peer = reader.connect(&owner.metadata().expect("metadata")).expect("a peer");
        // Transfers each block into a slot with a different number.
        let at = |slot| first + u64::from(slot) * LAYOUT.stride_bytes as u64;
        let last = LAYOUT.slots - 1;
        let pieces: Vec<_> =
            (0..LAYOUT.slots).map(|slot| piece(&ours, last - slot, at(slot))).collect();
        let id = reader.start(Direction::Read, Far::Peer(&peer), pieces).expect("started");
        assert!(ours.read(0).is_err(), "nobody else has the slots meanwhile");
        let mut pieces = ended(&mut reader, id).expect("all bytes");
        for piece in pieces.drain(..) {
            let mut found = vec![0; LAYOUT.block_bytes];
            piece.slot.read(0, &mut found).expect("a block");
            assert!(found == bytes_of(last - piece.with), "block {}", piece.with);
        }
        assert!(ours.read(0).is_ok() && !reader.keeps_slots());
    }
}

#[test]
fn blocks_go_to_a_file_and_come_back() {
    let library = loaded();
    let plugin = Plugin::new("POSIX");
    let memory = private();
    fill(&memory);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("blocks");
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path);
    let file = Arc::new(file.expect("a file"));
    let bytes = 4 * LAYOUT.block_bytes as u64;
    file.set_len(bytes).expect("room");
    let mut agent = Agent::new(&library, "files", &plugin).expect("an agent");
    agent.register(&memory).expect("registered");
    let id = agent.register_file(file, bytes).expect("registered");
    let at = |block: u32| u64::from(block) * LAYOUT.block_bytes as u64;
    let pieces = (0..4).map(|slot| piece(&memory, slot, at(slot))).collect();
    let written = agent.start(Direction::Write, Far::File(id), pieces).expect("started");
    drop(ended(&mut agent, written).expect("written"));
    let found = std::fs::read(&path).expect("the file");
    assert!(found == (0..4).flat_map(bytes_of).collect::<Vec<_>>(), "the file has other bytes");
    let pieces = (0..4).map(|slot| piece(&memory, 4 + slot, at(slot))).collect();
    let read = agent.start(Direction::Read, Far::File(id), pieces).expect("started");
    for piece in ended(&mut agent, read).expect("read") {
        assert!(piece.slot.as_slice().expect("memory") == bytes_of(piece.with - 4));
    }
    let outside = vec![piece(&memory, 0, at(4) - 1)];
    let refused = agent.start(Direction::Read, Far::File(id), outside).expect_err("an error");
    assert_eq!(refused, NixlError::Unregistered("a range of the file"));
}

#[test]
fn what_is_wrong_is_named() {
    let none = Library::load(Path::new("/nowhere/libnixl_capi.so")).map(drop).expect_err("none");
    let none = none.to_string();
    assert!(none.contains("/nowhere/libnixl_capi.so can't be loaded"), "{none}");
    assert!(none.contains("pip install nixl-cu12"), "{none}");
    let other = Library::load(Path::new("libm.so.6")).map(drop).expect_err("another library");
    assert!(other.to_string().contains("nixl_capi_create_configured_agent"), "{other}");
    let library = loaded();
    let refusal = |name: &str, plugin: &str| {
        Agent::<u32>::new(&library, name, &Plugin::new(plugin)).map(drop).expect_err("refused")
    };
    assert_eq!(refusal("", "UCX"), NixlError::Text { field: "the agent's name", max: 512 });
    assert!(matches!(refusal("a", "NONE"), NixlError::Call { call: "create_backend", .. }));

    let parameter = |value: &str| {
        let parameters = vec![("ucx_error_handling_mode".to_owned(), value.to_owned())];
        let plugin = Plugin { parameters, ..Plugin::new("UCX") };
        Agent::<u32>::new(&library, "a", &plugin).map(drop).expect_err("refused")
    };
    assert!(matches!(parameter("a\0b"), NixlError::Text { field: "a parameter's value", .. }));
    assert!(matches!(parameter("other"), NixlError::Call { call: "create_backend", .. }));
}

#[test]
fn what_is_not_registered_is_refused() {
    let library = loaded();
    let mine = private();
    let other = private();
    let mut agent = Agent::new(&library, "a", &Plugin::new("UCX")).expect("an agent");
    let first = agent.register(&mine).expect("registered");
    for bytes in [&[][..], &[7; (16 << 10) + 1]] {
        let error = agent.connect(bytes).expect_err("refused");
        assert!(matches!(error, NixlError::Count { field: "bytes of metadata", .. }), "{error}");
    }
    assert!(matches!(
        agent.connect(&[7; 100]),
        Err(NixlError::Call { call: "load_remote_md", .. })
    ));
    let mut peer = Agent::<()>::new(&library, "b", &Plugin::new("UCX")).expect("an agent");
    peer.register(&other).expect("registered");
    let peer = agent.connect(&peer.metadata().expect("metadata")).expect("a peer");
    let mut refused =
        |pieces| agent.start(Direction::Read, Far::Peer(&peer), pieces).expect_err("x");
    assert_eq!(
        refused(Vec::new()),
        NixlError::Count { field: "pieces", count: 0, max: PIECES_MAX }
    );
    let foreign = vec![piece(&other, 0, first)];
    assert_eq!(refused(foreign), NixlError::Unregistered("a slot's arena"));
    // NIXL refuses an address that the peer has not registered, before any byte moves.
    let outside = refused(vec![piece(&mine, 0, 4096)]);
    assert!(matches!(outside, NixlError::Call { call: "create_xfer_req", .. }), "{outside}");
    assert!(mine.is_free(0).expect("a slot") && !agent.keeps_slots());
}

/// If the peer is gone, its transfer fails, and the slots stay with the agent until its end.
#[test]
fn slots_of_a_failed_transfer_are_free_once_the_agent_is_gone() {
    let library = loaded();
    let plugin = Plugin::new("UCX");
    let theirs = private();
    let ours = private();
    let mut owner = Agent::<()>::new(&library, "owner", &plugin).expect("an agent");
    let first = owner.register(&theirs).expect("registered");
    let mut reader = Agent::new(&library, "reader", &plugin).expect("an agent");
    reader.register(&ours).expect("registered");
    let peer = reader.connect(&owner.metadata().expect("metadata")).expect("a peer");
    drop(owner);
    reader.disconnect(&peer);
    let pieces = vec![piece(&ours, 0, first)];
    let started = reader.start(Direction::Read, Far::Peer(&peer), pieces);
    let error = started.and_then(|id| ended(&mut reader, id)).expect_err("a lost peer");
    assert!(matches!(error, NixlError::Call { .. }), "{error}");
    drop(reader);
    assert!(ours.is_free(0).expect("a slot"));
}
