//! Tests connectors that load only complete chunks: which individually announced blocks count.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use kvasir_index::{Index, Limits, Query, QueryKey, Scratch, SourceId};
use kvasir_proto::types::{
    BlockName, CopyMode, KvEvent, LocalHash, StoredBlock, Tier, TierSet, WorkerId,
};
use std::ops::Range;

struct Bench {
    index: Index,
    scratch: Scratch,
}

/// Number of matched blocks, and how many are in each tier.
type Counted = (u32, [u32; Tier::COUNT]);

fn id(worker: &str) -> WorkerId {
    WorkerId::new(worker).expect("a name")
}

impl Bench {
    fn new() -> Self {
        Self { index: Index::new(Limits::default()), scratch: Scratch::default() }
    }

    fn worker(&mut self, worker: &str, host: u32) -> SourceId {
        self.index.set_chunks(&id(worker), [0, host, 0]);
        self.index.add_source(&id(worker), "events", 0, CopyMode::Set).expect("a source")
    }

    /// Stores these blocks of one long prompt, each in a separate event.
    fn store(&mut self, source: SourceId, tier: Tier, blocks: Range<u64>) {
        for at in blocks {
            let block = StoredBlock { name: BlockName(at + 1), local: LocalHash(at + 100) };
            let parent = Some(BlockName(at)).filter(|_| at > 0);
            let event = KvEvent::Stored { parent, tier, blocks: vec![block] };
            self.index.apply(source, 0, &event).expect("applied");
        }
        self.index.validate().expect("a sound index");
    }

    /// Answers for the first `blocks` of the prompt by content and by name, which must be equal.
    fn find(&mut self, blocks: u64, tiers: TierSet) -> Vec<(String, Counted)> {
        let locals: Vec<_> = (0..blocks).map(|at| LocalHash(at + 100)).collect();
        let names: Vec<_> = (0..blocks).map(|at| BlockName(at + 1)).collect();
        let [by_content, by_name] =
            [QueryKey::Locals(&locals), QueryKey::Names(&names)].map(|key| {
                let query = Query {
                    key,
                    tiers,
                    workers: None,
                    minimum_overlap: 1,
                    shared: None,
                    prompt: None,
                };
                self.index.find(query, &mut self.scratch);
                let answers = self.scratch.matches().iter().map(|at| {
                    assert_eq!(at.by_best_tier.iter().sum::<u32>(), at.blocks);
                    let holder = self.index.holder(at.holder).expect("a holder");
                    (holder.worker().to_string(), (at.blocks, at.by_tier))
                });
                answers.collect::<Vec<_>>()
            });
        assert_eq!(by_content, by_name);
        by_content
    }

    fn one(&mut self, blocks: u64, tiers: TierSet) -> Counted {
        let found = self.find(blocks, tiers);
        found.first().map_or((0, [0; Tier::COUNT]), |(_, counted)| *counted)
    }
}

const HOST: TierSet = TierSet::EMPTY.with(Tier::Host);

/// A worker with the blocks `device` on the device and `host` in host memory, in chunks of `size`.
fn holding(size: u32, device: Range<u64>, host: Range<u64>) -> Bench {
    let mut bench = Bench::new();
    let source = bench.worker("w", size);
    // The intermediate blocks give all blocks a position, and are removed again.
    bench.store(source, Tier::Disk, 0..host.end.max(device.end));
    bench.store(source, Tier::Device, device);
    bench.store(source, Tier::Host, host);
    bench.index.apply(source, 0, &KvEvent::ClearedTier(Tier::Disk)).expect("applied");
    bench
}

#[test]
fn only_complete_chunks_count() {
    for size in [2, 4] {
        let n = u64::from(size);
        let mut bench = holding(size, 0..0, 0..2 * n + 1);
        // The third chunk is incomplete for every prompt.
        assert_eq!(bench.one(3 * n, TierSet::ALL), (2 * size, [0, 2 * size, 0]));
        assert_eq!(bench.one(2 * n + 1, TierSet::ALL), (2 * size, [0, 2 * size, 0]));
        // A prompt that ends within a chunk cannot use the chunk.
        assert_eq!(bench.one(2 * n - 1, TierSet::ALL), (size, [0, size, 0]));
        assert_eq!(bench.one(n - 1, TierSet::ALL), (0, [0; 3]));
        assert_eq!(bench.one(3 * n, HOST), (2 * size, [0, 2 * size, 0]));
    }
    // Without chunks, each block counts.
    assert_eq!(holding(0, 0..0, 0..5).one(8, TierSet::ALL), (5, [0, 5, 0]));
    assert_eq!(holding(1, 0..0, 0..5).one(3, TierSet::ALL), (3, [0, 3, 0]));
}

#[test]
fn chunks_continue_what_the_device_holds() {
    // The device's blocks are fewer than a chunk: the connector loads the first chunk.
    assert_eq!(holding(4, 0..2, 0..4).one(8, TierSet::ALL), (4, [2, 4, 0]));
    // The first chunk lacks a block that the device has.
    assert_eq!(holding(4, 0..2, 1..4).one(8, TierSet::ALL), (2, [2, 0, 0]));
    // More than a chunk: the second chunk begins before the device's blocks end, or where they end.
    assert_eq!(holding(4, 0..6, 4..8).one(12, TierSet::ALL), (8, [6, 4, 0]));
    assert_eq!(holding(4, 0..4, 4..10).one(12, TierSet::ALL), (8, [4, 4, 0]));
    // The second chunk has only blocks beyond the device's.
    assert_eq!(holding(4, 0..6, 6..8).one(12, TierSet::ALL), (6, [6, 0, 0]));
    assert_eq!(holding(4, 0..6, 6..12).one(12, TierSet::ALL), (6, [6, 0, 0]));
    assert_eq!(holding(2, 0..3, 2..6).one(12, TierSet::ALL), (6, [3, 4, 0]));
    // A query for host memory alone excludes blocks that only the device has.
    assert_eq!(holding(4, 0..6, 4..8).one(12, HOST), (0, [0; 3]));
    assert_eq!(holding(2, 0..6, 0..5).one(12, HOST), (4, [0, 4, 0]));
    // Device blocks in an incomplete chunk count individually.
    assert_eq!(holding(4, 0..7, 0..6).one(12, TierSet::ALL), (7, [7, 4, 0]));
}

#[test]
fn ranks_are_listed_by_what_counts() {
    let mut bench = Bench::new();
    let [a, b, c] = [("a", 4), ("b", 0), ("c", 2)].map(|(at, size)| bench.worker(at, size));
    for source in [a, b, c] {
        bench.store(source, Tier::Host, 0..7);
    }
    let count = |blocks| (blocks, [0, blocks, 0]);
    let expected = |counts: &[(&str, u32)]| {
        let counts = counts.iter().map(|&(at, blocks)| (at.to_owned(), count(blocks)));
        counts.collect::<Vec<_>>()
    };
    assert_eq!(bench.find(7, TierSet::ALL), expected(&[("b", 7), ("c", 6), ("a", 4)]));
    // Below the minimum, a rank is not listed.
    assert_eq!(bench.find(3, TierSet::ALL), expected(&[("b", 3), ("c", 2)]));
    // A rank with its own names has records.
    let other = |at: u64| StoredBlock { name: BlockName(at + 1_001), local: LocalHash(at + 100) };
    let event = KvEvent::Stored { parent: None, tier: Tier::Host, blocks: vec![other(0)] };
    bench.index.apply(a, 0, &event).expect("applied");
    assert_eq!(bench.find(7, TierSet::ALL), expected(&[("b", 7), ("c", 6), ("a", 4)]));
    // Sizes may be set after the blocks, and removed.
    bench.index.set_chunks(&id("b"), [0, 7, 0]);
    bench.index.forget_roles(&id("c"));
    assert_eq!(bench.find(7, TierSet::ALL), expected(&[("b", 7), ("c", 7), ("a", 4)]));
    bench.index.set_chunks(&id("b"), [0, 8, 0]);
    bench.index.set_chunks(&id("a"), [0; 3]);
    assert_eq!(bench.find(7, TierSet::ALL), expected(&[("a", 7), ("c", 7)]));
}

/// A worker that reuses the index of a removed one has no chunks.
#[test]
fn chunks_go_with_their_ranks() {
    let mut bench = Bench::new();
    let first = bench.worker("a", 4);
    let _second = bench.worker("b", 4);
    bench.index.remove_source(first).expect("it holds nothing");
    bench.index.forget_roles(&id("a"));
    let same_place =
        bench.index.add_source(&id("x"), "events", 0, CopyMode::Set).expect("a source");
    bench.store(same_place, Tier::Host, 0..3);
    assert_eq!(bench.one(3, TierSet::ALL), (3, [0, 3, 0]));
}
