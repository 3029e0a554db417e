//! Compares a pool with a model, and tests special cases.

use super::*;
use crate::events::{BlockEvent, Change};
use crate::identity::{BlockIdentity, Priority};
use crate::inactive::EvictionPolicy;
use crate::lifecycle::{Block, CompleteBlock, Registration};
use crate::store::{DuplicatePolicy, RestoreError};
use crate::tier::Host;
use kvasir_proto::types::LocalHash;
use proptest::prelude::*;
use std::collections::BTreeMap;

const BLOCK_TOKENS: u32 = 4;

fn config(blocks: u32, eviction: EvictionPolicy) -> PoolConfig {
    PoolConfig { eviction, pins_max: 3, ..PoolConfig::new(blocks, BLOCK_TOKENS) }
}

fn pool(config: PoolConfig) -> (BlockPool<Host>, Arc<EventManager>) {
    let events = EventManager::new(100_000);
    (BlockPool::new(config, Arc::clone(&events)).expect("a pool"), events)
}

fn chain(blocks: u64) -> Vec<BlockIdentity> {
    let locals: Vec<_> = (1..=blocks).map(LocalHash).collect();
    BlockIdentity::chain(&locals).collect()
}

fn register(pool: &BlockPool<Host>, identity: BlockIdentity) -> RegisteredBlock<Host> {
    let block = pool.get_mutable_block().expect("a block");
    let complete = block.complete(identity).expect("it is consistent");
    complete.register().expect("it registers").into_block()
}

fn names(blocks: &[BlockIdentity]) -> Vec<SequenceHash> {
    blocks.iter().map(|block| block.sequence).collect()
}

#[test]
fn sizes_are_checked() {
    let events = EventManager::new(1);
    for (blocks, tokens, field) in
        [(0, 4, "blocks"), (4, 0, "block_tokens"), (4, 5_000, "block_tokens")]
    {
        let refused = BlockPool::<Host>::new(PoolConfig::new(blocks, tokens), Arc::clone(&events));
        assert_eq!(refused.expect_err("a bad size").field, field);
    }
}

#[test]
fn free_blocks_go_first_and_then_the_policy_decides() {
    let (pool, _) = pool(config(4, EvictionPolicy::Lineage));
    let blocks = chain(3);
    for block in &blocks {
        drop(register(&pool, *block));
    }
    let allocation = pool.get_mutable_blocks(2).expect("two blocks");
    let evicted: Vec<_> = allocation.evicted.iter().map(|block| block.identity).collect();
    assert_eq!(evicted, [blocks[2]], "one was free; the leaf goes");
    assert_eq!(pool.match_prefix(&names(&blocks)).len(), 2, "the prefix stays whole");
}

/// All or nothing: a refused allocation changes no state, not even the eviction order.
#[test]
fn an_allocation_that_fails_changes_nothing() {
    let (pool, events) = pool(config(4, EvictionPolicy::Lineage));
    let blocks = chain(4);
    let mut handles: Vec<_> = blocks.iter().map(|block| register(&pool, *block)).collect();
    let last = handles.pop().expect("four");
    handles.clear();
    let mut read = Vec::new();
    events.read(100, &mut read).expect("no overflow");
    let before = pool.stats();
    let refused = pool.get_mutable_blocks(1).expect_err("all are ancestors of the last");
    assert_eq!((refused.wanted, refused.free, refused.inactive), (1, 0, 3));
    assert_eq!(PoolStats { allocations_refused: 1, ..before }, pool.stats());
    read.clear();
    events.read(100, &mut read).expect("no overflow");
    assert_eq!(read, []);
    drop(last);
    let evicted = pool.get_mutable_blocks(4).expect("all").evicted;
    let order: Vec<_> = evicted.iter().map(|block| block.identity.position).collect();
    assert_eq!(order, [3, 2, 1, 0]);
}

#[test]
fn matches_stop_at_the_first_hole_unless_scattered() {
    let (pool, _) = pool(config(4, EvictionPolicy::Lru));
    let blocks = chain(4);
    let _kept: Vec<_> = [0, 1, 3].map(|at| register(&pool, blocks[at])).into();
    assert_eq!(pool.match_prefix(&names(&blocks)).len(), 2);
    let scattered = pool.match_scattered(&names(&blocks));
    let found: Vec<_> = scattered.iter().map(Option::is_some).collect();
    assert_eq!(found, [true, true, false, true]);
    let stats = pool.stats();
    assert_eq!((stats.match_requests, stats.match_hits), (3 + 4, 2 + 3));
}

#[test]
fn priorities_outlast_age() {
    for eviction in [EvictionPolicy::Lru, EvictionPolicy::TinyLfu, EvictionPolicy::Lineage] {
        let (pool, _) = pool(config(3, eviction));
        for (local, priority) in [(1, 1), (2, 0), (3, 0)] {
            let block = register(&pool, BlockIdentity::first(LocalHash(local)));
            block.set_priority(Priority(priority));
        }
        let evicted = pool.get_mutable_blocks(3).expect("all").evicted;
        let order: Vec<_> = evicted.iter().map(|block| block.identity.local.0).collect();
        assert_eq!(order, [2, 3, 1], "{eviction:?}");
    }
}

#[test]
fn pins_keep_a_block_until_their_time_is_over() {
    let (pool, _) = pool(config(1, EvictionPolicy::Lru));
    let block = register(&pool, BlockIdentity::first(LocalHash(1)));
    let seconds = Duration::from_secs;
    let early = pool.pin(&block, seconds(5)).expect("a pin");
    let late = pool.pin(&block, seconds(9)).expect("a pin");
    assert_eq!(late.deadline(), seconds(9));
    drop(block);
    assert!(pool.get_mutable_block().is_err());
    assert_eq!(pool.expire_pins(seconds(4)), 0);
    assert!(pool.unpin(early));
    assert!(!pool.unpin(early), "once");
    assert_eq!(pool.expire_pins(seconds(9)), 1);
    assert_eq!(pool.stats().pins_expired, 1);
    assert!(pool.get_mutable_block().is_ok());
}

#[test]
fn the_number_of_pins_is_limited() {
    let (pool, _) = pool(config(1, EvictionPolicy::Lru));
    let block = register(&pool, BlockIdentity::first(LocalHash(1)));
    for _ in 0..3 {
        pool.pin(&block, Duration::MAX).expect("a pin");
    }
    assert_eq!(pool.pin(&block, Duration::MAX), Err(PinsExhausted { max: 3 }));
    assert_eq!(pool.stats().pins, 3);
}

#[test]
fn resetting_takes_what_nobody_needs() {
    let (pool, events) = pool(config(5, EvictionPolicy::Lineage));
    let blocks = chain(4);
    let mut handles: Vec<_> = blocks.iter().map(|block| register(&pool, *block)).collect();
    let used = handles.remove(1);
    handles.clear();
    let gone: Vec<_> = pool.reset_inactive().iter().map(|at| at.identity.position).collect();
    assert_eq!(gone, [3, 2], "the block in use and its parent stay");
    assert_eq!(events.image().registrations.len(), 2);
    drop(used);
    assert_eq!(pool.reset_inactive().len(), 2);
    assert_eq!(pool.stats().free, 5);
}

/// Requirements of a restored block, and refused cases.
#[test]
fn blocks_come_back_to_their_slots() {
    let (pool, events) = pool(config(3, EvictionPolicy::Lineage));
    let blocks = chain(2);
    let info = |slot, identity| BlockInfo {
        slot: SlotId(slot),
        identity,
        checksum: Some(crate::identity::Checksum(5)),
        priority: Priority(0),
    };
    pool.restore(info(2, blocks[1])).expect("a free slot");
    pool.restore(info(0, blocks[0])).expect("a free slot");
    let found = pool.match_prefix(&names(&blocks));
    assert_eq!(found.iter().map(Block::slot).collect::<Vec<_>>(), [SlotId(0), SlotId(2)]);
    assert_eq!(found[1].checksum(), Some(crate::identity::Checksum(5)));
    assert_eq!(events.image().registrations.len(), 2);
    let other = BlockIdentity::first(LocalHash(9));
    assert_eq!(pool.restore(info(3, other)), Err(RestoreError::NoSlot(SlotId(3))));
    assert_eq!(pool.restore(info(2, other)), Err(RestoreError::NotFree(SlotId(2))));
    assert_eq!(pool.restore(info(1, blocks[0])), Err(RestoreError::Duplicate(SlotId(0))));
    let rootless = BlockIdentity { position: 3, ..other };
    assert_eq!(pool.restore(info(1, rootless)), Err(RestoreError::BadIdentity));
    assert_eq!(pool.get_mutable_block().expect("a block").slot(), SlotId(1));
}

/// The complete lifecycle of a block.
fn live(pool: &BlockPool<Host>, blocks: &[BlockIdentity], at: usize) {
    if let Ok(mutable) = pool.get_mutable_block() {
        let complete = mutable.complete(blocks[at]).expect("it is consistent");
        let registered = complete.register().expect("no conflict").into_block();
        let weak = registered.downgrade();
        drop((registered.clone(), registered));
        drop(weak.upgrade());
    }
    drop(pool.match_prefix(&names(blocks)));
}

/// Any thread may drop handles; the statistics are correct in the end.
#[test]
fn threads_share_a_pool() {
    let (pool, events) = pool(config(8, EvictionPolicy::Lineage));
    let blocks = chain(6);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pool = pool.clone();
            let blocks = &blocks;
            scope.spawn(move || {
                (0..500).for_each(|round| live(&pool, blocks, (thread + round) % 6))
            });
        }
    });
    let stats = pool.stats();
    assert_eq!(stats.free + stats.inactive, 8, "{stats:?}");
    assert_eq!(events.image().registrations.len() as u64, stats.inactive);
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Allocate(usize),
    Register(usize, u64),
    DropOwned(usize),
    DropUsed(usize),
    Clone(usize),
    Match(u64),
    Withdraw(usize),
    Quarantine(usize),
    Stop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = any::<usize>;
    let step = prop_oneof![
        4 => (1..4usize).prop_map(Step::Allocate),
        6 => (at(), 1..8u64).prop_map(|(at, local)| Step::Register(at, local)),
        1 => at().prop_map(Step::DropOwned),
        4 => at().prop_map(Step::DropUsed),
        1 => at().prop_map(Step::Clone),
        2 => (1..8u64).prop_map(Step::Match),
        1 => at().prop_map(Step::Withdraw),
        1 => at().prop_map(Step::Quarantine),
        1 => at().prop_map(Step::Stop),
    ];
    prop::collection::vec(step, 1..120)
}

/// Model: the content of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Free,
    Owned,
    Quarantined,
    Primary { local: u64, users: usize },
    Duplicate { primary: usize, users: usize },
    Withdrawn { users: usize },
}

/// Model: a pool with LRU, without duplicates.
#[derive(Debug)]
struct Model {
    slots: Vec<Content>,
    /// Inactive slots, oldest first.
    unused: Vec<usize>,
    told: BTreeMap<u64, bool>,
}

impl Model {
    fn primary_of(&self, local: u64) -> Option<usize> {
        self.slots
            .iter()
            .position(|at| matches!(at, Content::Primary { local: of, .. } if *of == local))
    }

    fn take(&mut self, slot: usize) {
        match &mut self.slots[slot] {
            Content::Primary { users, .. } => {
                if *users == 0 {
                    self.unused.retain(|at| *at != slot);
                }
                *users += 1;
            }
            Content::Duplicate { users, .. } | Content::Withdrawn { users } => *users += 1,
            Content::Free | Content::Owned | Content::Quarantined => panic!("{slot} is not shared"),
        }
    }

    fn release(&mut self, slot: usize) {
        match &mut self.slots[slot] {
            Content::Primary { users, .. } => {
                *users -= 1;
                if *users == 0 {
                    self.unused.push(slot);
                }
            }
            Content::Duplicate { primary, users } => {
                *users -= 1;
                if *users == 0 {
                    let primary = *primary;
                    self.slots[slot] = Content::Free;
                    self.release(primary);
                }
            }
            Content::Withdrawn { users } => {
                *users -= 1;
                if *users == 0 {
                    self.slots[slot] = Content::Free;
                }
            }
            Content::Free | Content::Owned | Content::Quarantined => panic!("{slot} is not shared"),
        }
    }

    fn withdraw(&mut self, slot: usize) {
        match self.slots[slot] {
            Content::Primary { local, users } => {
                self.slots[slot] = Content::Withdrawn { users };
                self.told.insert(local, false);
            }
            Content::Duplicate { primary, users } => {
                self.slots[slot] = Content::Withdrawn { users };
                self.release(primary);
            }
            Content::Free | Content::Owned | Content::Quarantined | Content::Withdrawn { .. } => {}
        }
    }

    fn count(&self, is: impl Fn(&Content) -> bool) -> u64 {
        self.slots.iter().filter(|at| is(at)).count() as u64
    }
}

/// Pool and model, with the existing handles.
struct Pair {
    pool: BlockPool<Host>,
    events: Arc<EventManager>,
    model: Model,
    duplicates: DuplicatePolicy,
    owned: Vec<MutableBlock<Host>>,
    quarantined: Vec<crate::lifecycle::QuarantinedBlock<Host>>,
    used: Vec<RegisteredBlock<Host>>,
}

fn pick<B>(blocks: &mut Vec<B>, at: usize) -> Option<B> {
    (!blocks.is_empty()).then(|| blocks.swap_remove(at % blocks.len()))
}

impl Pair {
    fn step(&mut self, step: Step) {
        match step {
            Step::Allocate(count) => self.allocate(count),
            Step::Register(at, local) => {
                if let Some(block) = pick(&mut self.owned, at) {
                    let identity = BlockIdentity::first(LocalHash(local));
                    self.register(block.complete(identity).expect("it is consistent"), local);
                }
            }
            Step::DropOwned(at) => {
                if let Some(block) = pick(&mut self.owned, at) {
                    self.model.slots[block.slot().index()] = Content::Free;
                }
            }
            Step::DropUsed(at) => {
                if let Some(block) = pick(&mut self.used, at) {
                    self.model.release(block.slot().index());
                }
            }
            Step::Clone(at) => {
                if let Some(block) = pick(&mut self.used, at) {
                    self.model.take(block.slot().index());
                    self.used.extend([block.clone(), block]);
                }
            }
            Step::Match(local) => {
                let found =
                    self.pool.match_prefix(&[BlockIdentity::first(LocalHash(local)).sequence]);
                let slot = self.model.primary_of(local);
                assert_eq!(found.first().map(|block| block.slot().index()), slot);
                slot.into_iter().for_each(|slot| self.model.take(slot));
                self.used.extend(found);
            }
            Step::Withdraw(at) => {
                if let Some(block) = pick(&mut self.used, at) {
                    block.withdraw();
                    self.model.withdraw(block.slot().index());
                    self.used.push(block);
                }
            }
            Step::Quarantine(at) => {
                if let Some(block) = pick(&mut self.owned, at) {
                    self.model.slots[block.slot().index()] = Content::Quarantined;
                    self.quarantined.push(block.quarantine());
                }
            }
            Step::Stop(at) => {
                if let Some(block) = pick(&mut self.quarantined, at) {
                    self.model.slots[block.slot().index()] = Content::Owned;
                    self.owned.push(block.stopped());
                }
            }
        }
    }

    fn allocate(&mut self, count: usize) {
        let free = self.model.count(|at| *at == Content::Free);
        let free = usize::try_from(free).expect("few");
        let missing = count.saturating_sub(free);
        match self.pool.get_mutable_blocks(count) {
            Err(_) => assert!(missing > self.model.unused.len()),
            Ok(allocation) => {
                let evicted: Vec<_> = self.model.unused.drain(..missing).collect();
                let told: Vec<_> = allocation.evicted.iter().map(|at| at.slot.index()).collect();
                assert_eq!(told, evicted);
                for slot in evicted {
                    if let Content::Primary { local, .. } = self.model.slots[slot] {
                        self.model.told.insert(local, false);
                    }
                    self.model.slots[slot] = Content::Free;
                }
                for block in &allocation.blocks {
                    let at = &mut self.model.slots[block.slot().index()];
                    assert_eq!(*at, Content::Free);
                    *at = Content::Owned;
                }
                self.owned.extend(allocation.blocks);
            }
        }
    }

    fn register(&mut self, block: CompleteBlock<Host>, local: u64) {
        let slot = block.slot().index();
        let registered = block.register().expect("no conflict");
        match (&registered, self.model.primary_of(local)) {
            (Registration::New(_), None) => {
                self.model.slots[slot] = Content::Primary { local, users: 1 };
                self.model.told.insert(local, true);
            }
            (Registration::Duplicate(_), Some(primary)) => {
                assert_eq!(self.duplicates, DuplicatePolicy::Allow);
                self.model.take(primary);
                self.model.slots[slot] = Content::Duplicate { primary, users: 1 };
            }
            (Registration::Existing(block), Some(primary)) => {
                assert_eq!(self.duplicates, DuplicatePolicy::Reject);
                assert_eq!(block.slot().index(), primary);
                self.model.take(primary);
                self.model.slots[slot] = Content::Free;
            }
            other => panic!("{other:?}"),
        }
        self.used.push(registered.into_block());
    }

    fn compare(&self) {
        let stats = self.pool.stats();
        let model = &self.model;
        assert_eq!(stats.free, model.count(|at| *at == Content::Free));
        assert_eq!(stats.mutable, model.count(|at| *at == Content::Owned));
        assert_eq!(stats.quarantined, model.count(|at| *at == Content::Quarantined));
        assert_eq!(stats.inactive, model.unused.len() as u64);
        let active = model.count(|at| matches!(at, Content::Primary { users: 1.., .. }));
        assert_eq!(stats.active, active);
        assert_eq!(stats.duplicates, model.count(|at| matches!(at, Content::Duplicate { .. })));
        assert_eq!(stats.withdrawn, model.count(|at| matches!(at, Content::Withdrawn { .. })));
    }

    /// Events and model agree for each content; register and remove events alternate.
    fn compare_events(&self) {
        let mut events: Vec<BlockEvent> = Vec::new();
        self.events.read(usize::MAX, &mut events).expect("no overflow");
        let mut told: BTreeMap<u64, bool> = BTreeMap::new();
        for event in events {
            let is_held = event.change == Change::Register;
            let before = told.insert(event.registration.identity.local.0, is_held);
            assert_ne!(before.unwrap_or(false), is_held, "a change changes something");
        }
        assert_eq!(told, self.model.told);
    }
}

proptest! {
    #[test]
    fn a_pool_equals_its_model(blocks in 1u32..7, is_allowed: bool, steps in steps()) {
        let duplicates =
            if is_allowed { DuplicatePolicy::Allow } else { DuplicatePolicy::Reject };
        let (pool, events) = pool(PoolConfig { duplicates, ..config(blocks, EvictionPolicy::Lru) });
        let slots = vec![Content::Free; blocks as usize];
        let model = Model { slots, unused: Vec::new(), told: BTreeMap::new() };
        let owned = Vec::new();
        let quarantined = Vec::new();
        let used = Vec::new();
        let mut pair = Pair { pool, events, model, duplicates, owned, quarantined, used };
        for step in steps {
            pair.step(step);
            pair.compare();
        }
        pair.compare_events();
    }
}
