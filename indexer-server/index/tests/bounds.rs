//! Tests the cost of single calls for any input: counted, not timed.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use kvasir_index::{Index, IndexError, Limits, Query, QueryKey, Scratch, SourceId};
use kvasir_proto::types::{
    BlockCounts, BlockName, CopyMode, KvEvent, LocalHash, SourceState, SourceStatus, StoredBlock,
    Tier, TierSet, WorkerId,
};

struct Rank {
    index: Index,
    limits: Limits,
}

impl Rank {
    fn new() -> Self {
        let limits = Limits { block_names_max: 10, ..Limits::default() };
        Self { index: Index::new(limits), limits }
    }

    fn source(&mut self, name: &str) -> SourceId {
        let worker = WorkerId::new("a").expect("a name");
        let source = self.index.add_source(&worker, name, 0, CopyMode::Set).expect("a source");
        let exact = SourceStatus { state: SourceState::Exact, ..SourceStatus::default() };
        self.index.set_status(source, exact);
        source
    }

    fn store(&mut self, by: SourceId, parent: Option<u64>, blocks: &[(u64, u64)]) -> BlockCounts {
        let block = |&(name, local)| StoredBlock { name: BlockName(name), local: LocalHash(local) };
        let parent = parent.map(BlockName);
        let blocks = blocks.iter().map(block).collect();
        let event = KvEvent::Stored { parent, tier: Tier::Device, blocks };
        let counts = self.index.apply(by, 0, &event).expect("a known source");
        self.index.validate().expect("sound");
        counts
    }

    fn remove(&mut self, by: SourceId, names: impl Iterator<Item = u64>) {
        let names = names.map(BlockName).collect();
        let event = KvEvent::Removed { tier: Tier::Device, names };
        self.index.apply(by, 0, &event).expect("a known source");
        self.index.validate().expect("sound");
    }

    fn overlap(&self, locals: &[u64]) -> u32 {
        let locals: Vec<LocalHash> = locals.iter().copied().map(LocalHash).collect();
        let key = QueryKey::Locals(&locals);
        let tiers = TierSet::ALL;
        let mut scratch = Scratch::default();
        self.index.find(
            Query { key, tiers, workers: None, minimum_overlap: 0, shared: None, prompt: None },
            &mut scratch,
        );
        scratch.matches().first().map_or(0, |best| best.blocks)
    }

    fn state(&self, source: SourceId) -> SourceState {
        self.index.status(source).expect("known").state
    }
}

/// Accessing a block means reading all its names at a rank, so their number is limited.
#[test]
fn a_block_has_so_many_names_at_a_rank() {
    let mut rank = Rank::new();
    let a = rank.source("s");
    let most = rank.limits.block_names_max as u64;
    for name in 0..most {
        assert_eq!(rank.store(a, None, &[(name, 7)]).applied, 1);
    }
    assert_eq!(rank.state(a), SourceState::Exact);
    // An existing name does not count as a further one, nor does one that means another block.
    assert_eq!(rank.store(a, None, &[(0, 7)]).noop, 1);
    assert_eq!(rank.store(a, None, &[(500, 8)]).applied, 1);
    assert_eq!(rank.store(a, None, &[(500, 7)]).conflict, 1);
    rank.remove(a, [500].into_iter());
    assert_eq!(rank.state(a), SourceState::Exact);
    assert_eq!(rank.store(a, None, &[(501, 7)]).rejected, 1);
    assert_eq!(rank.state(a), SourceState::Partial);
    // Each removed name makes room for another, and the block is held while it has one name.
    rank.remove(a, 1..most);
    assert_eq!((rank.overlap(&[7]), rank.index.stats().pairs), (1, 1));
    assert_eq!(rank.store(a, None, &[(501, 7)]).applied, 1);
    rank.remove(a, [0, 501].into_iter());
    assert_eq!((rank.overlap(&[7]), rank.index.stats().blocks), (0, 0));
    while !rank.index.clear_source(a, None, 10).expect("known").done {}
    assert_eq!(rank.state(a), SourceState::Exact);
}

#[test]
fn what_waited_for_a_parent_gets_no_more_names_either() {
    let mut rank = Rank::new();
    let a = rank.source("s");
    let most = rank.limits.block_names_max as u64;
    for name in 1..=3 * most {
        rank.store(a, Some(0), &[(name, 7)]);
    }
    assert_eq!((rank.index.stats().parked, rank.state(a)), (3 * most, SourceState::Exact));
    rank.store(a, None, &[(0, 6)]);
    assert_eq!((rank.index.stats().parked, rank.state(a)), (0, SourceState::Partial));
    assert_eq!(rank.overlap(&[6, 7]), 2);
    // The block has the maximum number of names, whichever they are.
    let scan = &mut rank.index.begin_dump(&WorkerId::new("a").expect("a name"), None);
    let scan = scan.as_mut().expect("a dump");
    let mut records = Vec::new();
    while rank.index.dump_chunk(scan, 100, &mut records).expect("undisturbed") {}
    assert_eq!(records.len() as u64, 1 + most);
}

/// A slice of a sweep drops at most its budget of records, and checks a bounded number of others.
#[test]
fn sweeps_of_records_go_in_steps() {
    const BLOCKS: u64 = 20_000;
    const BUDGET: usize = 10;
    let mut rank = Rank::new();
    let a = rank.source("s");
    let b = rank.source("t");
    let c = rank.source("u");
    let blocks: Vec<(u64, u64)> = (0..BLOCKS).map(|at| (at, at)).collect();
    rank.store(a, None, &blocks);
    // Names of two sources have records.
    rank.store(b, None, &blocks);
    let mut steps = 0;
    loop {
        let step = rank.index.clear_source(c, None, 1).expect("known");
        assert_eq!(step.removed, 0, "it holds nothing");
        steps += 1;
        if step.done {
            break;
        }
    }
    assert!(steps > 8, "{BLOCKS} records of others in {steps} steps");
    let mut removed = 0;
    loop {
        let step = rank.index.clear_source(b, None, BUDGET).expect("known");
        assert!(step.removed <= BUDGET as u64, "{step:?}");
        removed += step.removed;
        if step.done {
            break;
        }
    }
    assert_eq!(removed, BLOCKS);
    rank.index.validate().expect("sound");
}

/// If one source's announcement drops another source's name, the other source lacks it as well.
#[test]
fn a_parked_name_that_is_refused_is_missing_from_all_that_stored_it() {
    let mut rank = Rank::new();
    let a = rank.source("s");
    let b = rank.source("t");
    for name in 0..rank.limits.block_names_max as u64 {
        rank.store(a, None, &[(name, 7)]);
    }
    // Without tokens, and therefore without a position.
    let event = KvEvent::StoredNames { tier: Tier::Device, names: vec![BlockName(501)] };
    for source in [a, b] {
        assert_eq!(rank.index.apply(source, 0, &event).expect("a known source").applied, 1);
    }
    assert_eq!((rank.index.stats().parked, rank.state(b)), (1, SourceState::Exact));
    assert_eq!(rank.store(a, None, &[(501, 7)]).rejected, 1);
    assert_eq!((rank.state(a), rank.state(b)), (SourceState::Partial, SourceState::Partial));
}

/// Workers that all hold one chain of 4 blocks. Their ids descend in order of creation.
fn sharing(workers: u32) -> (Index, Vec<LocalHash>) {
    let mut index = Index::new(Limits::default());
    let locals: Vec<LocalHash> = (0..4).map(LocalHash).collect();
    for number in 0..workers {
        let worker = WorkerId::new(&format!("w{:05}", workers - number)).expect("a name");
        let source = index.add_source(&worker, "s", 0, CopyMode::Set).expect("a source");
        let block = |&local: &LocalHash| StoredBlock { name: BlockName(local.0), local };
        let blocks = locals.iter().map(block).collect();
        let event = KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
        assert_eq!(index.apply(source, 0, &event).expect("a known source").applied, 4);
    }
    (index, locals)
}

/// For any number of holders, a slice evicts at most its budget.
#[test]
fn a_step_of_shedding_keeps_its_budget_where_many_ranks_share() {
    const WORKERS: u32 = 200;
    let (mut index, _) = sharing(WORKERS);
    let mut shed = 0;
    while index.stats().pairs > 0 {
        let step = index.shed(3);
        assert!(step.pairs <= 3, "{step:?}");
        shed += step.pairs;
        index.validate().expect("sound");
    }
    assert_eq!(shed, u64::from(WORKERS) * 4);
}

/// Equal matches are listed in order of worker, few or most of the ranks, for any order of creation.
#[test]
fn equals_are_listed_in_order_of_worker() {
    let (index, locals) = sharing(200);
    let all: Vec<WorkerId> = index.workers().map(|worker| worker.id().clone()).collect();
    let mut scratch = Scratch::default();
    for every in [1, 2, 3, 7, 90, 150] {
        let asked: Vec<WorkerId> = all.iter().step_by(every).cloned().collect();
        let key = QueryKey::Locals(&locals);
        let workers = Some(&asked[..]);
        let query = Query {
            key,
            tiers: TierSet::ALL,
            workers,
            minimum_overlap: 1,
            shared: None,
            prompt: None,
        };
        index.find(query, &mut scratch);
        let worker = |holder| index.holder(holder).expect("there").worker().clone();
        let listed: Vec<WorkerId> = scratch.matches().iter().map(|at| worker(at.holder)).collect();
        assert_eq!(listed, asked, "one in {every}");
    }
}

#[test]
fn ranks_without_room_are_refused_and_their_source_is_partial_until_all_is_cleared() {
    let mut rank = Rank::new();
    let source = rank.source("s");
    let state = |rank: &Rank| rank.index.status(source).expect("a source").state;
    let stored = |name: u64| KvEvent::Stored {
        parent: None,
        tier: Tier::Device,
        blocks: vec![StoredBlock { name: BlockName(name), local: LocalHash(name) }],
    };
    let fixed = rank.index.fixed_bytes();
    rank.index.apply(source, 1, &stored(1)).expect("any number without a bound");
    let bytes = rank.index.fixed_bytes() - fixed;
    rank.index.set_room_bytes(Some(bytes + bytes / 2));
    rank.index.apply(source, 2, &stored(1)).expect("room for one");
    let refused = rank.index.apply(source, 3, &stored(1)).expect_err("no room for two");
    assert_eq!(refused, IndexError::NoRoom { worker: WorkerId::new("a").expect("a name") });
    let other = WorkerId::new("b").expect("a name");
    let refused = rank.index.add_source(&other, "s", 0, CopyMode::Set);
    assert_eq!(refused, Err(IndexError::NoRoom { worker: other.clone() }));
    assert!(rank.index.worker(&other).is_none(), "it leaves nothing");
    rank.index.apply(source, 2, &stored(2)).expect("a rank that is there");
    assert_eq!(state(&rank), SourceState::Partial);
    // The source has no blocks, but still lacks the rejected rank.
    for at in 0..3 {
        rank.index.clear_source(source, Some(at), usize::MAX).expect("a source");
    }
    assert_eq!(state(&rank), SourceState::Partial);
    rank.index.clear_source(source, None, usize::MAX).expect("a source");
    assert_eq!(state(&rank), SourceState::Exact);
    rank.index.validate().expect("sound");
}
