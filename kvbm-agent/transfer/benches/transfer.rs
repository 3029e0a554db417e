//! `transfer-bench`: fetches blocks from a peer over loopback with checksums, over TCP and by NIXL. For comparison,
//! copies the same bytes over plain TCP in the same run. The ratios matter. `cargo bench -p kvasir-transfer -- [BLOCKS]
//! [KIB] [TRIALS]`; 10,000 blocks of 64 KiB by default.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_types,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    unreachable_pub,
    reason = "a tool for people, which may fail"
)]

#[path = "../../memory/tests/nixl/found.rs"]
mod found;
#[path = "../tests/peers/place.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod place;

use kvasir_blocks::{BlockIdentity, Priority};
use kvasir_process::access::Guard;
use kvasir_tiers::manager::{Commit, KvBlockManager};
use kvasir_transfer::limits::UNTAKEN_TIMEOUT;
use kvasir_transfer::{Fetched, NixlOptions};
use place::{Fetching, Memory, Serving, description, manager, prompt};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Blocks per fetch when the first block's latency is measured.
const SHORT: usize = 50;

struct Sizes {
    blocks: usize,
    block_bytes: usize,
    trials: usize,
}

fn fill(manager: &KvBlockManager, blocks: &[BlockIdentity]) {
    let session = manager.open_session("fills").expect("a session");
    let mut bytes = vec![0_u8; manager.block_bytes()];
    for block in blocks {
        let words = bytes.chunks_exact_mut(8).zip(0_u64..);
        words.for_each(|(word, at)| word.copy_from_slice(&(at ^ block.sequence.0).to_le_bytes()));
        let mut slot = session.fill(1).expect("a slot").pop().expect("a slot");
        slot.write(0, &bytes).expect("room");
        let commit = Commit { identity: *block, checksum: None, priority: Priority::default() };
        drop(slot.commit(&commit).expect("a block"));
    }
    session.end();
}

/// A manager whose slots' pages are already present in memory.
fn warm(memory: Memory, sizes: &Sizes) -> Arc<KvBlockManager> {
    let manager = manager(memory, sizes.block_bytes, sizes.blocks as u32);
    let ones = vec![1; sizes.block_bytes];
    for slot in 0..sizes.blocks as u32 {
        manager.arena().write(slot).expect("a free slot").write(0, &ones).expect("room");
    }
    manager
}

/// Seconds for sending all bytes, block by block, into memory that is already present.
fn plain(sizes: &Sizes) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let source = vec![7_u8; sizes.blocks * sizes.block_bytes];
    let mut target = vec![1_u8; source.len()];
    let block_bytes = sizes.block_bytes;
    let sender = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a caller");
        stream.set_nodelay(true).expect("a socket");
        for block in source.chunks(block_bytes) {
            stream.write_all(block).expect("a connection");
        }
    });
    let mut stream = TcpStream::connect(address).expect("a connection");
    let began = Instant::now();
    for block in target.chunks_mut(block_bytes) {
        stream.read_exact(block).expect("a connection");
    }
    let seconds = began.elapsed().as_secs_f64();
    sender.join().expect("a thread");
    assert!(target.iter().all(|byte| *byte == 7));
    seconds
}

/// Fetches in a task, like an agent.
fn fetch(
    runtime: &Runtime,
    fetching: &Arc<Fetching>,
    owner: SocketAddr,
    blocks: &[BlockIdentity],
) -> (Fetched, tokio::time::Instant) {
    let fetching = Arc::clone(fetching);
    let blocks = blocks.to_vec();
    let task = runtime.spawn(async move {
        let began = tokio::time::Instant::now();
        (fetching.fetch(owner, &blocks).await, began)
    });
    runtime.block_on(task).expect("no panic")
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The fetching side, with memory that is already present.
fn fetcher(memory: Memory, sizes: &Sizes, nixl: Option<&NixlOptions>) -> Arc<Fetching> {
    let blocks = description(sizes.block_bytes);
    Arc::new(Fetching::over(warm(memory, sizes), blocks, nixl))
}

fn measure(memory: Memory, sizes: &Sizes, nixl: Option<&NixlOptions>) {
    let runtime = Runtime::new().expect("a runtime");
    let _runtime = runtime.enter();
    let blocks = prompt(1, sizes.blocks as u64);
    let owned = warm(memory, sizes);
    fill(&owned, &blocks);
    let described = description(sizes.block_bytes);
    let port = (UNTAKEN_TIMEOUT, Guard::default());
    let owner = runtime.block_on(Serving::described(&owned, described, port, nixl));
    let bytes = (sizes.blocks * sizes.block_bytes) as f64;
    let mut ratios = Vec::new();
    let mut speeds = Vec::new();
    let mut copies = Vec::new();
    let mut firsts: Vec<Duration> = Vec::new();
    let mut short_speeds = Vec::new();
    for _ in 0..sizes.trials {
        let plain = plain(sizes);
        let fetching = fetcher(memory, sizes, nixl);
        // An open connection, as between agents that have fetched before.
        let (none, _) = fetch(&runtime, &fetching, owner.address, &prompt(2, 1));
        assert!(none.blocks.is_empty());
        let began = Instant::now();
        let (fetched, _) = fetch(&runtime, &fetching, owner.address, &blocks);
        let seconds = began.elapsed().as_secs_f64();
        assert_eq!((fetched.blocks.len(), &fetched.stopped), (sizes.blocks, &None));
        ratios.push(plain / seconds);
        speeds.push(bytes / seconds);
        copies.push(bytes / plain);
        drop((fetched, fetching));
        let fetching = fetcher(memory, sizes, nixl);
        let (none, _) = fetch(&runtime, &fetching, owner.address, &prompt(2, 1));
        assert!(none.blocks.is_empty());
        let began = Instant::now();
        let mut kept = Vec::new();
        for part in blocks.chunks(SHORT) {
            let (fetched, began) = fetch(&runtime, &fetching, owner.address, part);
            assert_eq!((fetched.blocks.len(), &fetched.stopped), (part.len(), &None));
            firsts.push(fetched.first_at.expect("a block") - began);
            kept.push(fetched.blocks);
        }
        short_speeds.push(bytes / began.elapsed().as_secs_f64());
    }
    runtime.block_on(owner.stop());
    firsts.sort_unstable();
    let at = |part: f64| firsts[((firsts.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    let way = if nixl.is_some() { "NIXL" } else { "TCP" };
    let mib = |speed: f64| speed / f64::from(1 << 20);
    println!(
        "{memory:?} memory over {way}: one fetch {:.0} MiB/s, plain copy {:.0} MiB/s, ratio {:.2} ({:.2} to {:.2})",
        mib(median(&speeds)),
        mib(median(&copies)),
        median(&ratios),
        ratios.iter().copied().fold(f64::MAX, f64::min),
        ratios.iter().copied().fold(0.0, f64::max),
    );
    println!(
        "  fetches of {SHORT}: {:.0} MiB/s; first block p50 {:.2} ms, p99 {:.2} ms, most {:.2} ms of {} fetches",
        mib(median(&short_speeds)),
        at(0.5),
        at(0.99),
        at(1.0),
        firsts.len(),
    );
}

fn main() {
    let mut numbers = std::env::args().filter_map(|text| text.parse().ok());
    let sizes = Sizes {
        blocks: numbers.next().unwrap_or(10_000),
        block_bytes: numbers.next().unwrap_or(64) << 10,
        trials: numbers.next().unwrap_or(5),
    };
    let Sizes { blocks, block_bytes, trials } = sizes;
    let library = found::library("../memory/tests/nixl/library");
    let nixl = NixlOptions { library, ..NixlOptions::default() };
    println!("{blocks} blocks of {} KiB, {trials} trials, medians", block_bytes >> 10);
    for memory in [Memory::Private, Memory::Shared] {
        for nixl in [None, Some(&nixl)] {
            measure(memory, &sizes, nixl);
        }
    }
}
