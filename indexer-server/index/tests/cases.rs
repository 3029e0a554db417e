//! Hand-written cases of the index, one per guarantee of the design.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use kvasir_index::{Index, Limits, Prompt, Query, QueryKey, Scratch, SharedBlocks, SourceId};
use kvasir_proto::types::{
    BlockName, CopyMode, Group, GroupKind, KvEvent, LocalHash, PromptReuse, Reason, SourceState,
    SourceStatus, StoredBlock, Tier, TierSet, WorkerId,
};
use std::cell::Cell;

fn stored(parent: Option<u64>, blocks: &[(u64, u64)]) -> KvEvent {
    let blocks = blocks
        .iter()
        .map(|&(name, local)| StoredBlock { name: BlockName(name), local: LocalHash(local) });
    KvEvent::Stored { parent: parent.map(BlockName), tier: Tier::Device, blocks: blocks.collect() }
}

fn removed(names: &[u64]) -> KvEvent {
    KvEvent::Removed { tier: Tier::Device, names: names.iter().copied().map(BlockName).collect() }
}

struct Bench {
    index: Index,
    scratch: Scratch,
}

impl Bench {
    fn new() -> Self {
        Self { index: Index::new(Limits::default()), scratch: Scratch::default() }
    }

    fn worker(&mut self, id: &str, mode: CopyMode) -> SourceId {
        let worker = WorkerId::new(id).expect("a name");
        self.index.add_source(&worker, "events", 0, mode).expect("a source")
    }

    fn apply(&mut self, source: SourceId, event: &KvEvent) {
        self.index.apply(source, 0, event).expect("applied");
        if let Err(fault) = self.index.validate() {
            panic!("{fault} after {event:?}");
        }
    }

    fn check(&mut self, locals: &[u64], expected: &[(&str, u32)]) {
        let locals: Vec<LocalHash> = locals.iter().copied().map(LocalHash).collect();
        let query = Query {
            key: QueryKey::Locals(&locals),
            tiers: TierSet::ALL,
            workers: None,
            minimum_overlap: 1,
            shared: None,
            prompt: None,
        };
        self.index.find(query, &mut self.scratch);
        let found: Vec<(String, u32)> = self
            .scratch
            .matches()
            .iter()
            .map(|at| {
                let holder = self.index.holder(at.holder).expect("a holder");
                (holder.worker().to_string(), at.blocks)
            })
            .collect();
        let expected: Vec<(String, u32)> =
            expected.iter().map(|&(id, blocks)| (id.to_owned(), blocks)).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn holes_are_exact_and_heal() {
    let mut bench = Bench::new();
    let a = bench.worker("a", CopyMode::Set);
    bench.apply(a, &stored(None, &[(1, 10), (2, 20), (3, 30), (4, 40)]));
    bench.check(&[10, 20, 30, 40, 50], &[("a", 4)]);
    bench.apply(a, &removed(&[2]));
    bench.check(&[10, 20, 30, 40], &[("a", 1)]);
    bench.apply(a, &stored(Some(1), &[(2, 20)]));
    bench.check(&[10, 20, 30, 40], &[("a", 4)]);
    bench.apply(a, &removed(&[1, 2, 3, 4]));
    assert_eq!(bench.index.stats().blocks, 0);
}

#[test]
fn names_are_per_worker() {
    let mut bench = Bench::new();
    let a = bench.worker("a", CopyMode::Counted);
    let b = bench.worker("b", CopyMode::Counted);
    // Name 5 is X on A and Y on B; B calls A's block 7.
    bench.apply(a, &stored(None, &[(5, 100)]));
    bench.apply(b, &stored(None, &[(5, 200)]));
    bench.apply(b, &stored(None, &[(7, 100)]));
    bench.check(&[100], &[("a", 1), ("b", 1)]);
    bench.check(&[200], &[("b", 1)]);
    bench.apply(b, &removed(&[5]));
    bench.check(&[200], &[]);
    bench.check(&[100], &[("a", 1), ("b", 1)]);
    // Two names for one content: held while either name is.
    bench.apply(b, &stored(None, &[(8, 100)]));
    bench.apply(b, &removed(&[7]));
    bench.check(&[100], &[("a", 1), ("b", 1)]);
    // A held name keeps its meaning. After its removal, it may have another.
    bench.apply(b, &stored(None, &[(8, 300)]));
    bench.check(&[100], &[("a", 1), ("b", 1)]);
    bench.check(&[300], &[]);
    bench.apply(b, &removed(&[8, 8]));
    bench.apply(b, &stored(None, &[(8, 300)]));
    bench.check(&[100], &[("a", 1)]);
    bench.check(&[300], &[("b", 1)]);
}

#[test]
fn orphans_wait_for_their_parent_and_long_chains_branch() {
    let mut bench = Bench::new();
    let a = bench.worker("a", CopyMode::Set);
    let b = bench.worker("b", CopyMode::Set);
    let chain = |from: u64, to: u64| -> Vec<(u64, u64)> { (from..to).map(|at| (at, at)).collect() };
    let locals: Vec<u64> = (1..201).collect();
    bench.apply(a, &stored(Some(100), &chain(101, 201)));
    bench.check(&locals, &[]);
    bench.apply(a, &stored(None, &chain(1, 101)));
    bench.check(&locals, &[("a", 200)]);
    bench.apply(b, &stored(None, &chain(1, 151)));
    bench.check(&locals, &[("a", 200), ("b", 150)]);
    bench.apply(b, &stored(Some(70), &[(1000, 1000)]));
    let mut branch: Vec<u64> = (1..71).collect();
    branch.push(1000);
    bench.check(&branch, &[("b", 71), ("a", 70)]);
    let all = bench.index.clear_source(a, None, 16).expect("a source");
    assert!(!all.done);
    while !bench.index.clear_source(a, None, 16).expect("a source").done {}
    bench.check(&locals, &[("b", 150)]);
    while !bench.index.clear_source(b, None, 1_000).expect("a source").done {}
    bench.index.remove_source(a).expect("cleared");
    bench.index.remove_source(b).expect("cleared");
    let stats = bench.index.stats();
    assert_eq!((stats.blocks, stats.pairs, stats.segments, stats.workers), (0, 0, 0, 0));
    assert_eq!(stats.bytes, 0);
}

#[test]
fn a_clear_takes_both_names_of_one_position() {
    let mut bench = Bench::new();
    let a = bench.worker("a", CopyMode::Set);
    bench.apply(a, &stored(Some(6), &[(7, 2), (8, 1)]));
    let disk = KvEvent::Stored {
        parent: Some(BlockName(6)),
        tier: Tier::Disk,
        blocks: vec![StoredBlock { name: BlockName(1), local: LocalHash(2) }],
    };
    bench.apply(a, &disk);
    bench.apply(a, &stored(None, &[(6, 1)]));
    bench.check(&[1, 2, 1], &[("a", 3)]);
    bench.apply(a, &KvEvent::Cleared);
    let stats = bench.index.stats();
    assert_eq!((stats.blocks, stats.pairs, stats.parked), (0, 0, 0));
}

#[test]
fn a_refused_block_is_not_credited_under_its_old_content() {
    let limits = Limits { chain_blocks_max: 2, rank_parked_max: 1, ..Limits::default() };
    let mut bench = Bench { index: Index::new(limits), scratch: Scratch::default() };
    let a = bench.worker("a", CopyMode::Set);
    let state = |bench: &Bench| bench.index.status(a).expect("a source").state;
    let exact = SourceStatus { state: SourceState::Exact, ..SourceStatus::default() };
    bench.index.set_status(a, exact.clone());
    bench.apply(a, &stored(None, &[(1, 11), (2, 12)]));
    bench.apply(a, &stored(Some(77), &[(3, 13)]));
    assert_eq!(state(&bench), SourceState::Exact);
    // There is no room to park name 1 with its new content. Its old content, uncertain after a loss, is
    // dropped nevertheless.
    bench.index.mark_suspect(a);
    bench.apply(a, &stored(Some(78), &[(1, 99)]));
    bench.check(&[11, 12], &[]);
    assert_eq!(state(&bench), SourceState::Partial);
    // Nor for name 2 as a third block.
    bench.apply(a, &stored(None, &[(4, 14), (5, 15), (2, 16)]));
    bench.check(&[14, 15, 16], &[("a", 2)]);
    bench.apply(a, &stored(None, &[(6, 11)]));
    bench.check(&[11, 12], &[("a", 1)]);
    // Reports do not hide it. A clear ends it.
    bench.index.set_status(a, exact);
    assert_eq!(state(&bench), SourceState::Partial);
    bench.apply(a, &KvEvent::Cleared);
    assert_eq!(state(&bench), SourceState::Exact);
}

#[test]
fn a_source_is_not_exact_in_mid_change() {
    let mut bench = Bench::new();
    let a = bench.worker("a", CopyMode::Set);
    let exact = SourceStatus { state: SourceState::Exact, ..SourceStatus::default() };
    bench.index.set_status(a, exact.clone());
    bench.index.begin_change(a);
    assert_eq!(bench.index.status(a).map(|at| at.state), Some(SourceState::CatchingUp));
    bench.index.end_change(a);
    assert_eq!(bench.index.status(a), Some(&exact));
}

#[test]
fn a_query_that_nobody_wants_any_more_stops_before_the_next_rank_with_names_of_its_own() {
    let mut bench = Bench::new();
    for worker in ["a", "b", "c"] {
        // Its own name for content that another worker has named: a record.
        let source = bench.worker(worker, CopyMode::Counted);
        for name in [1, 2] {
            bench.apply(source, &stored(None, &[(name, 100)]));
        }
    }
    let key = QueryKey::Names(&[BlockName(2)]);
    let query = Query {
        key,
        tiers: TierSet::ALL,
        workers: None,
        minimum_overlap: 1,
        shared: None,
        prompt: None,
    };
    let asked = Cell::new(0);
    let is_wanted = |most: u32| {
        asked.set(asked.get() + 1);
        asked.get() <= most
    };
    assert!(bench.index.find_while(query, &mut bench.scratch, || is_wanted(3)));
    assert_eq!((asked.take(), bench.scratch.matches().len()), (3, 3));
    assert!(!bench.index.find_while(query, &mut bench.scratch, || is_wanted(1)));
    assert_eq!(asked.take(), 2);
    bench.index.find(query, &mut bench.scratch);
    assert_eq!(bench.scratch.matches().len(), 3, "the next query is answered in full");
}

/// A worker, its matched blocks including pools, and how many of them are only in pools.
type Shared = (&'static str, u32, u32);

fn check_shared(bench: &mut Bench, key: QueryKey<'_>, tiers: TierSet, expected: &[Shared]) {
    let blocks = match key {
        QueryKey::Locals(locals) => locals.len(),
        QueryKey::Names(names) => names.len(),
    };
    let mut shared = SharedBlocks::default();
    shared.begin(blocks);
    assert!(bench.index.add_shared(key, &mut shared, || true));
    let query = Query {
        key,
        tiers,
        workers: None,
        minimum_overlap: 1,
        shared: Some(&shared),
        prompt: None,
    };
    bench.index.find(query, &mut bench.scratch);
    let matches = bench.scratch.matches().iter().map(|at| {
        let holder = bench.index.holder(at.holder).expect("a holder");
        let own = at.by_best_tier.iter().sum::<u32>();
        assert_eq!(own + at.pool_blocks, at.blocks);
        (holder.worker().to_string(), at.blocks, at.pool_blocks)
    });
    let expected = expected.iter().map(|&(id, blocks, pool)| (id.to_owned(), blocks, pool));
    assert_eq!(matches.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[test]
fn a_worker_holds_what_its_pools_hold_where_a_query_asks_for_that() {
    let id = |name: &str| WorkerId::new(name).expect("a name");
    let mut bench = Bench::new();
    bench.index.set_pool(&id("pool"));
    bench.index.set_reads(&id("reader"), &[id("nobody"), id("pool")]);
    let [reader, other, pool] =
        ["reader", "other", "pool"].map(|at| bench.worker(at, CopyMode::Set));
    bench.apply(reader, &stored(None, &[(1, 10), (2, 20)]));
    bench.apply(other, &stored(None, &[(1, 10)]));
    bench.apply(pool, &stored(None, &[(1, 10), (2, 20), (3, 30), (4, 40)]));
    bench.apply(reader, &stored(Some(2), &[(3, 30), (4, 40), (5, 50)]));
    bench.apply(reader, &removed(&[3, 4]));
    let prompt = [10, 20, 30, 40, 50, 60];
    bench.check(&prompt, &[("reader", 2), ("other", 1)]);
    let locals = prompt.map(LocalHash);
    let key = QueryKey::Locals(&locals);
    // The pool fills the hole, and the reader continues after it.
    check_shared(&mut bench, key, TierSet::ALL, &[("reader", 5, 2), ("other", 1, 0)]);
    let names = [1, 2, 3, 4, 5].map(BlockName);
    let by_name = QueryKey::Names(&names);
    check_shared(&mut bench, by_name, TierSet::ALL, &[("reader", 5, 2), ("other", 1, 0)]);
    // Tiers apply to workers. Pools have none.
    let disk = TierSet::EMPTY.with(Tier::Disk);
    check_shared(&mut bench, key, disk, &[("reader", 4, 4)]);
    bench.apply(pool, &removed(&[3]));
    check_shared(&mut bench, key, TierSet::ALL, &[("reader", 2, 0), ("other", 1, 0)]);
    assert_eq!(bench.index.pool_pairs(), 3);
    bench.index.set_reads(&id("reader"), &[]);
    check_shared(&mut bench, key, disk, &[]);
    bench.index.forget_roles(&id("pool"));
    bench.check(&prompt, &[("pool", 2), ("reader", 2), ("other", 1)]);
}

/// A worker that reuses the index of a removed reader does not read its pools.
#[test]
fn readers_of_a_pool_come_and_go_with_their_ranks() {
    let id = |name: &str| WorkerId::new(name).expect("a name");
    let mut bench = Bench::new();
    let pool = id("pool");
    bench.index.set_pool(&pool);
    let in_pool = bench.worker("pool", CopyMode::Set);
    bench.apply(in_pool, &stored(None, &[(1, 10), (2, 20)]));
    let locals = [10, 20].map(LocalHash);
    let key = QueryKey::Locals(&locals);
    // More than one word of the bitmap, with empty words between.
    let names: Vec<_> = (0..200).map(|number| format!("w{number:03}")).collect();
    let is_reader = |number: usize| number.is_multiple_of(150);
    let mut sources = Vec::new();
    for (number, name) in names.iter().enumerate() {
        if is_reader(number) {
            bench.index.set_reads(&id(name), &[pool.clone(), id("another")]);
        }
        sources.push(bench.worker(name, CopyMode::Set));
    }
    check_shared(&mut bench, key, TierSet::ALL, &[("w000", 2, 2), ("w150", 2, 2)]);
    assert!(bench.index.has_readers(&id("another")));
    // Roles are forgotten after the last source, or before.
    bench.index.remove_source(sources[0]).expect("it holds nothing");
    bench.index.forget_roles(&id("w000"));
    let _same_place = bench.worker("x", CopyMode::Set);
    check_shared(&mut bench, key, TierSet::ALL, &[("w150", 2, 2)]);
    bench.index.set_reads(&id("x"), std::slice::from_ref(&pool));
    check_shared(&mut bench, key, TierSet::ALL, &[("w150", 2, 2), ("x", 2, 2)]);
    for worker in ["w150", "x"] {
        assert!(bench.index.has_readers(&pool), "{worker}");
        bench.index.forget_roles(&id(worker));
    }
    assert!(!bench.index.has_readers(&pool) && !bench.index.has_readers(&id("another")));
    check_shared(&mut bench, key, TierSet::ALL, &[]);
}

/// With index shards, the walk of the reader's index finds no holder, and stops where the pool's blocks end.
#[test]
fn a_pool_of_another_index_counts_as_far_as_it_holds() {
    let id = |name: &str| WorkerId::new(name).expect("a name");
    let mut pools = Bench::new();
    let mut workers = Bench::new();
    pools.index.set_pool(&id("pool"));
    let pool = pools.worker("pool", CopyMode::Set);
    pools.apply(pool, &stored(None, &[(1, 10), (2, 20), (3, 30)]));
    workers.index.set_reads(&id("reader"), &[id("pool")]);
    let _reader = workers.worker("reader", CopyMode::Set);
    let locals = [10, 20, 30, 40, 50].map(LocalHash);
    let names = [1, 2, 3, 4, 5].map(BlockName);
    for key in [QueryKey::Locals(&locals), QueryKey::Names(&names)] {
        let mut shared = SharedBlocks::default();
        shared.begin(5);
        assert!(pools.index.add_shared(key, &mut shared, || true));
        let tiers = TierSet::ALL;
        let query = Query {
            key,
            tiers,
            workers: None,
            minimum_overlap: 1,
            shared: Some(&shared),
            prompt: None,
        };
        workers.index.find(query, &mut workers.scratch);
        let [found] = workers.scratch.matches() else { panic!("one reader") };
        assert_eq!((found.blocks, found.pool_blocks, found.by_best_tier), (3, 3, [0; 3]));
    }
}

/// A long prompt with every second block in a pool.
#[test]
fn a_pool_with_holes_and_a_reader_with_the_rest_make_one_prefix() {
    let id = |name: &str| WorkerId::new(name).expect("a name");
    let mut bench = Bench::new();
    bench.index.set_pool(&id("pool"));
    bench.index.set_reads(&id("reader"), &[id("pool")]);
    let [reader, pool] = ["reader", "pool"].map(|at| bench.worker(at, CopyMode::Set));
    let blocks: Vec<_> = (1..=101).map(|name| (name, name * 10)).collect();
    bench.apply(reader, &stored(None, &blocks));
    bench.apply(pool, &stored(None, &blocks));
    let every = |from: u64| (from..=101).step_by(2).collect::<Vec<_>>();
    bench.apply(reader, &removed(&every(1)));
    bench.apply(pool, &removed(&every(2)));
    let locals: Vec<_> = blocks.iter().map(|&(_, local)| LocalHash(local)).collect();
    let names: Vec<_> = blocks.iter().map(|&(name, _)| BlockName(name)).collect();
    for key in [QueryKey::Locals(&locals), QueryKey::Names(&names)] {
        check_shared(&mut bench, key, TierSet::ALL, &[("reader", 101, 51)]);
    }
}

/// Ranks of a worker, with the number of sources of each.
fn fed_ranks(index: &Index, worker: &WorkerId) -> Vec<(u32, usize)> {
    let worker = index.worker(worker).expect("a worker");
    worker.holders().map(|holder| (holder.rank(), holder.sources().count())).collect()
}

#[test]
fn a_presumed_rank_goes_with_the_first_batch_of_another() {
    let Bench { mut index, .. } = Bench::new();
    let worker = WorkerId::new("w").expect("a name");
    let pool = WorkerId::new("pool").expect("a name");
    index.set_reads(&worker, &[pool]);
    let mut add = |name: &str| {
        let source = index.add_source(&worker, name, 0, CopyMode::Set).expect("a source");
        index.presume_rank(source, 0);
        source
    };
    let [first, second, third] = ["a", "b", "c"].map(&mut add);
    let mut name = |source, rank, expected: &[(u32, usize)]| {
        index.name_rank(source, rank).expect("a rank");
        assert_eq!(fed_ranks(&index, &worker), expected, "{source} names {rank}");
        index.validate().expect("a sound index");
    };
    name(first, 3, &[(0, 2), (3, 1)]);
    name(second, 4, &[(0, 1), (3, 1), (4, 1)]);
    // The rank is confirmed as the source's: further ranks do not change it.
    name(third, 0, &[(0, 1), (3, 1), (4, 1)]);
    name(third, 5, &[(0, 1), (3, 1), (4, 1)]);
    index.apply(third, 3, &stored(None, &[(1, 1)])).expect("applied");
    assert_eq!(fed_ranks(&index, &worker), [(0, 1), (3, 2), (4, 1)]);
    index.validate().expect("a sound index");
}

#[test]
fn a_removed_rank_ends_dumps_and_may_come_back() {
    let Bench { mut index, .. } = Bench::new();
    let worker = WorkerId::new("w").expect("a name");
    let source = index.add_source(&worker, "a", 0, CopyMode::Set).expect("a source");
    index.presume_rank(source, 0);
    let scan = index.begin_dump(&worker, None).expect("a dump");
    index.name_rank(source, 3).expect("a rank");
    assert!(index.finish_dump(scan).is_err(), "one of its ranks is gone");
    assert_eq!(fed_ranks(&index, &worker), [(3, 1)]);
    assert!(index.worker(&worker).expect("a worker").has_changed(), "the next image shows it");
    index.apply(source, 0, &stored(None, &[(1, 1)])).expect("applied");
    assert_eq!(fed_ranks(&index, &worker), [(0, 1), (3, 1)]);
    // A rank with blocks was stated, whatever the caller presumes.
    index.presume_rank(source, 0);
    index.name_rank(source, 5).expect("a rank");
    assert_eq!(fed_ranks(&index, &worker), [(0, 1), (3, 1)]);
    index.validate().expect("a sound index");
}

/// Prompts never match a block with unknown content or parent, so the state and reasons must show it.
#[test]
fn a_rank_with_parked_blocks_is_not_exact() {
    let mut bench = Bench::new();
    let a = bench.worker("a", CopyMode::Set);
    bench
        .index
        .set_status(a, SourceStatus { state: SourceState::Exact, ..SourceStatus::default() });
    let names_only =
        KvEvent::StoredNames { tier: Tier::Host, names: vec![BlockName(8), BlockName(9)] };
    let orphan = stored(Some(7), &[(8, 80)]);
    let seen = |bench: &Bench| {
        let worker = bench.index.workers().next().expect("a worker");
        let holder = worker.holders().next().expect("a rank");
        let reasons = holder.reasons().into_iter().map(|at| (at.reason, at.count));
        let reasons: Vec<_> = reasons.collect();
        assert_eq!(worker.own_reasons(a).len(), reasons.len());
        (holder.is_partial(), reasons)
    };
    bench.apply(a, &stored(None, &[(1, 10)]));
    assert_eq!(seen(&bench), (false, Vec::new()));
    bench.apply(a, &names_only);
    assert_eq!(seen(&bench), (true, vec![(Reason::UnknownContent, 2)]));
    bench.apply(a, &removed(&[8, 9]));
    let gone = KvEvent::Removed { tier: Tier::Host, names: vec![BlockName(8), BlockName(9)] };
    bench.apply(a, &gone);
    bench.apply(a, &orphan);
    assert_eq!(seen(&bench), (true, vec![(Reason::UnknownContent, 1)]));
    bench.apply(a, &stored(Some(1), &[(7, 70)]));
    assert_eq!(seen(&bench), (false, Vec::new()), "its parent came");
}

/// A rank that is not exact for another reason predicts nothing, so an engine cannot contradict it. A clear removes the
/// blocks that the engine met.
#[test]
fn only_exact_ranks_are_compared_with_their_engine_and_a_clear_forgets() {
    const BLOCK_SIZE: u32 = 16;
    let mut bench = Bench::new();
    let a = bench.worker("a", CopyMode::Set);
    bench.apply(a, &stored(None, &[(1, 10)]));
    let worker = WorkerId::new("a").expect("a name");
    let exact =
        SourceStatus { state: SourceState::Exact, connected: true, ..SourceStatus::default() };
    let report = |bench: &mut Bench, status: &SourceStatus| {
        bench.index.set_status(a, status.clone());
        let reused = PromptReuse { prompt: 100, expected: 16, cached: 0 };
        bench.index.compare_reuse(&worker, 0, &[reused; 64], BLOCK_SIZE);
        bench.index.set_status(a, exact.clone());
        let view = bench.index.workers().next().expect("a worker");
        let holder = view.holders().next().expect("a rank");
        let reasons = holder.reasons().into_iter().map(|at| at.reason).collect::<Vec<_>>();
        assert_eq!(holder.may_be_high(), holder.is_partial());
        reasons
    };
    for other in [
        SourceStatus { state: SourceState::Gap, ..exact.clone() },
        SourceStatus { state: SourceState::Partial, ..exact.clone() },
        SourceStatus { connected: false, ..exact.clone() },
    ] {
        assert_eq!(report(&mut bench, &other), [], "{other:?}");
    }
    assert_eq!(report(&mut bench, &exact), [Reason::ContradictedByEngine]);
    bench.apply(a, &KvEvent::Cleared);
    let view = bench.index.workers().next().expect("a worker");
    let holder = view.holders().next().expect("a rank");
    assert_eq!((holder.is_partial(), holder.may_be_high()), (false, false));
}

/// A publisher that mixes both in one event is faulty.
#[test]
fn blocks_of_further_groups_after_others_in_one_event_are_rejected() {
    let mut bench = Bench::new();
    let a = bench.worker("a", CopyMode::Set);
    let marked = Group::block(1, BlockName(7));
    let others = [(1, 10), (marked.name.0, marked.local.0), (2, 20)];
    for parent in [None, Some(99)] {
        bench.apply(a, &stored(parent, &others));
    }
    bench.apply(a, &stored(None, &[(marked.name.0, marked.local.0)]));
    bench.apply(a, &stored(None, &others));
    bench.check(&[10, 20], &[("a", 1)]);
    bench.apply(a, &removed(&[marked.name.0, 1]));
    bench.check(&[10], &[]);
}

/// With several groups, each rank takes time: nobody waits for the answer any more, so the query ends.
#[test]
fn queries_of_ranks_with_several_groups_can_be_cancelled() {
    let mut bench = Bench::new();
    for id in ["a", "b", "c"] {
        let source = bench.worker(id, CopyMode::Set);
        let group =
            Group { number: 1, kind: GroupKind::Mamba, block_size: 16, unit: 16, window: 0 };
        for block in [group.declaration(), Group::block(1, BlockName(1))] {
            bench.apply(source, &stored(None, &[(block.name.0, block.local.0)]));
        }
        bench.apply(source, &stored(None, &[(1, 10)]));
    }
    let locals = [LocalHash(10)];
    let query = Query {
        key: QueryKey::Locals(&locals),
        tiers: TierSet::ALL,
        workers: None,
        minimum_overlap: 1,
        shared: None,
        prompt: Some(Prompt { block_size: 16, tokens: Some(17) }),
    };
    let asked = Cell::new(0);
    let is_wanted = || {
        asked.set(asked.get() + 1);
        asked.get() < 3
    };
    assert!(!bench.index.find_while(query, &mut bench.scratch, is_wanted));
    assert_eq!(asked.get(), 3, "asked before each rank");
    assert!(bench.index.find_while(query, &mut bench.scratch, || true));
    assert_eq!(bench.scratch.matches().len(), 3);
}
