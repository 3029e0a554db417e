//! Consolidated sources whose journal is on disk: an engine and a block manager, with random events and kills, against
//! a model of each source's holdings.

use super::*;
use crate::disk::{DiskConfig, DiskError, NewIncarnation, SourceKind, Verdict, leave, open};
use crate::feed::{Feed, SourceConfig};
use crate::journal::{DumpStep, JournalConfig};
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::hash::sequence_hashes;
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, DpRank, Incarnation, KvEvent, LocalHash, PartitionKey,
    SourceState, SourceStatus, StoredBlock, Tier, WorkerId,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const MANAGER_RANK: DpRank = 0;

fn disk_config(folder: &Path, is_consolidated: bool) -> DiskConfig {
    let partition = PartitionKey::new("m", "").expect("a name");
    let address = WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") };
    let folder = folder.to_owned();
    let lora_names = BTreeMap::new();
    DiskConfig { folder, address, block_size: 4, lora_names, is_consolidated }
}

/// Starts an agent.
fn start(folder: &Path, life: Incarnation, consolidate: bool) -> Arc<Hub> {
    let disk = disk_config(folder, consolidate);
    let journal = JournalConfig { copy_mode: CopyMode::Set, ..JournalConfig::DEFAULT };
    let opened = open(&disk, journal, (life, 0)).expect("a folder of its own");
    let source = SourceConfig {
        address: disk.address,
        name: "agent".to_owned(),
        block_size: 4,
        incarnation: life,
        first_sequence: 0,
        journal,
    };
    let (feed, left) = Feed::open(source, Some(opened)).expect("a valid source");
    let config = HubConfig { sources_max: 3, consolidate, ..HubConfig::DEFAULT };
    Arc::new(Hub::resume(Arc::new(feed), config, left).expect("a valid hub"))
}

fn verdict(hub: &Hub) -> Verdict {
    hub.feed().disk().expect("it is on disk").status().verdict
}

/// Name of the block at the end of a chain, in the joined stream.
fn joined(chain: &[u64]) -> BlockName {
    let locals: Vec<_> = chain.iter().map(|local| LocalHash(*local)).collect();
    BlockName(sequence_hashes(&locals).last().expect("a chain").0)
}

/// The engine's name of the block.
fn own(chain: &[u64]) -> BlockName {
    BlockName(!joined(chain).0)
}

/// Stores the blocks of a chain, the first `known` of which were stored before.
fn stored(name: fn(&[u64]) -> BlockName, chain: &[u64], known: usize, tier: Tier) -> KvEvent {
    let block =
        |end: usize| StoredBlock { name: name(&chain[..=end]), local: LocalHash(chain[end]) };
    let parent = (known > 0).then(|| name(&chain[..known]));
    KvEvent::Stored { parent, tier, blocks: (known..chain.len()).map(block).collect() }
}

/// A block: its rank, its chain and its tier.
type Block = (DpRank, Vec<u64>, usize);

/// An index that reads the agent's stream.
#[derive(Default)]
struct Index {
    incarnation: Option<Incarnation>,
    next: u64,
    held: BTreeSet<(DpRank, BlockName, usize)>,
}

impl Index {
    /// Reads new batches; after a change of incarnation, all held blocks instead.
    fn read(&mut self, hub: &Hub) {
        assert!(hub.feed().is_settled(), "nothing is published before");
        let status = hub.feed().status();
        if self.incarnation.replace(status.incarnation) != Some(status.incarnation) {
            self.held = inventory(hub);
        } else {
            let range = (self.next..=u64::MAX, usize::MAX);
            let range = hub.feed().range(status.incarnation, range.0, range.1).expect("retained");
            for batch in range.batches {
                batch.events().iter().for_each(|event| self.apply(batch.rank(), event));
            }
        }
        self.next = status.head.map_or(0, |head| head + 1);
        assert_eq!(self.held, inventory(hub), "as a dump says");
    }

    fn apply(&mut self, rank: DpRank, event: &KvEvent) {
        match event {
            KvEvent::Stored { tier, blocks, .. } => {
                for block in blocks {
                    assert!(self.held.insert((rank, block.name, tier.index())), "it was held");
                }
            }
            KvEvent::Removed { tier, names } => {
                for name in names {
                    assert!(self.held.remove(&(rank, *name, tier.index())), "it was not held");
                }
            }
            KvEvent::Cleared => self.held.retain(|(at, ..)| *at != rank),
            KvEvent::StoredNames { .. } | KvEvent::Gone { .. } | KvEvent::ClearedTier(_) => {
                panic!("never published")
            }
        }
    }
}

fn inventory(hub: &Hub) -> BTreeSet<(DpRank, BlockName, usize)> {
    let mut held = BTreeSet::new();
    hub.feed().with_journal(|journal| {
        let dump = journal.begin_dump(None).expect("no other");
        while let Ok(DumpStep::Records { rank, records }) = journal.step_dump(dump, 100) {
            for record in records {
                let tiers = (0..Tier::COUNT).filter(|tier| record.copies[*tier] > 0);
                held.extend(tiers.map(|tier| (rank, record.name, tier)));
            }
        }
    });
    held
}

/// Fate of the engine while the agent is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Proves,
    Publishes,
    Restarts,
    Loses,
    Vanishes,
}

/// Fate of the block manager while the agent is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manager {
    Keeps,
    /// Keeps only the blocks of this tier.
    KeepsTier(usize),
    IsAbsent,
}

#[derive(Debug, Clone)]
enum Act {
    Store(DpRank, Vec<u64>, usize),
    Remove(DpRank, Vec<u64>, usize),
    Clear(DpRank),
    Lose,
    Restart,
    Save(Vec<u64>, usize),
    Evict(Vec<u64>, usize),
    Image,
    DiskImage,
    Kill(Fate, Manager),
}

fn act() -> impl Strategy<Value = Act> {
    let chain = || prop::collection::vec(0..2_u64, 1..4);
    let fates =
        [Fate::Proves, Fate::Publishes, Fate::Restarts, Fate::Loses, Fate::Vanishes].to_vec();
    let manager = prop_oneof![
        3 => Just(Manager::Keeps),
        3 => (0..Tier::COUNT).prop_map(Manager::KeepsTier),
        1 => Just(Manager::IsAbsent),
    ];
    prop_oneof![
        8 => (0..2_u32, chain(), 0..Tier::COUNT).prop_map(|(r, c, t)| Act::Store(r, c, t)),
        5 => (0..2_u32, chain(), 0..Tier::COUNT).prop_map(|(r, c, t)| Act::Remove(r, c, t)),
        1 => (0..2_u32).prop_map(Act::Clear),
        1 => Just(Act::Lose),
        1 => Just(Act::Restart),
        8 => (chain(), 0..Tier::COUNT).prop_map(|(chain, tier)| Act::Save(chain, tier)),
        5 => (chain(), 0..Tier::COUNT).prop_map(|(chain, tier)| Act::Evict(chain, tier)),
        1 => Just(Act::Image),
        1 => Just(Act::DiskImage),
        4 => (prop::sample::select(fates), manager).prop_map(|(fate, at)| Act::Kill(fate, at)),
    ]
}

/// A running agent with its sources.
struct Agent {
    hub: Arc<Hub>,
    engine: Inlet,
    manager: Option<Inlet>,
}

impl Agent {
    fn start(folder: &Path, life: u128, copy_mode: CopyMode, manager_rank: Option<DpRank>) -> Self {
        let hub = start(folder, Incarnation(life), true);
        let manager = manager_rank
            .map(|rank| hub.open_imaged("blocks", CopyMode::Set, rank).expect("a place"));
        let engine = hub.open_persisted("engine", copy_mode, SourceKind::Ingest).expect("a place");
        hub.begin();
        Self { hub, engine, manager }
    }
}

struct World {
    folder: TempDir,
    /// `None` while the agent is away.
    agent: Option<Agent>,
    copy_mode: CopyMode,
    lives: u128,
    /// The engine's incarnation, and the number of its next batch.
    cursor: (u128, u64),
    /// Copies that the engine holds.
    copies: BTreeMap<Block, u32>,
    saved: BTreeSet<Block>,
    index: Index,
}

impl World {
    fn new(copy_mode: CopyMode) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let agent = Some(Agent::start(folder.path(), 1, copy_mode, Some(MANAGER_RANK)));
        let copies = BTreeMap::new();
        let saved = BTreeSet::new();
        let index = Index::default();
        let lives = 1;
        let cursor = (100, 0);
        Self { folder, agent, copy_mode, lives, cursor, copies, saved, index }
    }

    fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("it runs")
    }

    fn hub(&self) -> &Arc<Hub> {
        &self.agent().hub
    }

    fn engine(&self) -> &Inlet {
        &self.agent().engine
    }

    fn manager(&self) -> Option<&Inlet> {
        self.agent().manager.as_ref()
    }

    /// Opens the engine as a source of another kind.
    fn open_engine(&mut self, hub: &Arc<Hub>, kind: SourceKind) {
        let engine = hub.open_persisted("engine", self.copy_mode, kind).expect("a place");
        self.agent.as_mut().expect("it runs").engine = engine;
    }

    fn check(&mut self) {
        let hub = Arc::clone(self.hub());
        self.index.read(&hub);
        let union = self.copies.keys().chain(&self.saved);
        let union: BTreeSet<_> =
            union.map(|(rank, chain, tier)| (*rank, joined(chain), *tier)).collect();
        assert_eq!(self.index.held, union);
    }

    fn publish(&mut self, rank: DpRank, events: Vec<KvEvent>) {
        let (incarnation, sequence) = self.cursor;
        let cursor = Cursor { incarnation: Incarnation(incarnation), sequence, fingerprint: None };
        self.cursor.1 += 1;
        self.engine().take_at(rank, events, cursor).expect("taken");
    }

    fn store(&mut self, rank: DpRank, chain: &[u64], tier: usize) {
        // From the root, or below a block held in some tier.
        let is_held = |end: usize| {
            (0..Tier::COUNT).any(|at| self.copies.contains_key(&(rank, chain[..end].to_vec(), at)))
        };
        let known = (0..chain.len()).rev().find(|end| *end == 0 || is_held(*end)).unwrap_or(0);
        for end in known + 1..=chain.len() {
            let copies = self.copies.entry((rank, chain[..end].to_vec(), tier)).or_default();
            *copies = if self.copy_mode == CopyMode::Counted { *copies + 1 } else { 1 };
        }
        self.publish(rank, vec![stored(own, chain, known, Tier::ALL[tier])]);
    }

    fn remove(&mut self, block: Block) {
        if let Some(copies) = self.copies.get_mut(&block) {
            *copies -= 1;
            self.copies.retain(|_, copies| *copies > 0);
        }
        let (rank, chain, tier) = block;
        let tier = Tier::ALL[tier];
        let names = vec![own(&chain)];
        self.publish(rank, vec![KvEvent::Removed { tier, names }]);
    }

    /// The manager reports one block, unless it has reported it before.
    fn save(&mut self, chain: Vec<u64>, tier: usize) {
        let (Some(manager), block) =
            (self.agent.as_ref().and_then(|at| at.manager.as_ref()), (MANAGER_RANK, chain, tier))
        else {
            return;
        };
        let (_, chain, _) = &block;
        let event = stored(joined, chain, chain.len() - 1, Tier::ALL[tier]);
        if self.saved.insert(block) {
            manager.take(MANAGER_RANK, vec![event]).expect("taken");
        }
    }

    fn evict(&mut self, chain: Vec<u64>, tier: usize) {
        let Some(manager) = self.agent.as_ref().and_then(|at| at.manager.as_ref()) else { return };
        let tier_at = Tier::ALL[tier];
        let names = vec![joined(&chain)];
        if self.saved.remove(&(MANAGER_RANK, chain, tier)) {
            let event = KvEvent::Removed { tier: tier_at, names };
            manager.take(MANAGER_RANK, vec![event]).expect("taken");
        }
    }

    fn image(&self) {
        let Some(manager) = self.manager() else { return };
        let blocks = self
            .saved
            .iter()
            .map(|(_, chain, tier)| stored(joined, chain, chain.len() - 1, Tier::ALL[*tier]));
        let events = [KvEvent::Cleared].into_iter().chain(blocks).collect();
        manager.take(MANAGER_RANK, events).expect("taken");
    }

    fn disk_image(&self) {
        let feed = self.hub().feed();
        let disk = self.hub().feed().disk().expect("it is on disk");
        let dump = feed.with_journal(|journal| journal.begin_dump(None)).expect("no other");
        let step = || feed.with_journal(|journal| journal.step_dump(dump, 2));
        let image = disk.write_image(|| Ok::<_, DiskError>(step().expect("not cut off")));
        feed.with_journal(|journal| disk.count(&image.expect("room"), journal));
    }

    fn start_again(&mut self, manager_rank: Option<DpRank>) {
        self.lives += 1;
        // Two agents cannot have the folder open.
        self.agent = None;
        let agent = Agent::start(self.folder.path(), self.lives, self.copy_mode, manager_rank);
        self.agent = Some(agent);
    }

    /// Kills and restarts the agent.
    fn kill(&mut self, fate: Fate, manager: Manager) {
        let before = self.hub().feed().status().incarnation;
        let manager_rank = (manager != Manager::IsAbsent).then_some(MANAGER_RANK);
        self.start_again(manager_rank);
        let life = Incarnation(self.lives);
        if manager == Manager::IsAbsent {
            self.saved.clear();
        }
        let is_pending = self.engine().pending().is_some();
        let survives = matches!(fate, Fate::Proves | Fate::Publishes);
        let is_kept = (is_pending && survives) || !self.saved.is_empty();
        assert_eq!(self.hub().feed().is_settled(), !is_pending);
        if is_pending {
            self.meet(fate);
        } else {
            assert!(self.copies.is_empty(), "it held something, and has no position");
        }
        let expected = if is_kept { before } else { life };
        assert_eq!(self.hub().feed().status().incarnation, expected, "{:?}", verdict(self.hub()));
        if is_kept {
            self.check();
        }
        if let Manager::KeepsTier(tier) = manager {
            self.saved.retain(|(.., at)| *at == tier);
        }
        self.image();
    }

    /// The engine returns as `fate` decides, or not.
    fn meet(&mut self, fate: Fate) {
        match fate {
            Fate::Proves => {
                let state = SourceState::Exact;
                let connected = true;
                self.engine().show(SourceStatus { state, connected, ..SourceStatus::default() });
            }
            Fate::Publishes => self.store(1, &[1, 1], 0),
            Fate::Restarts => self.restart(),
            Fate::Loses => {
                self.copies.clear();
                self.engine().lose();
            }
            Fate::Vanishes => {
                self.copies.clear();
                self.engine().close();
                let hub = Arc::clone(self.hub());
                self.open_engine(&hub, SourceKind::Ingest);
            }
        }
    }

    fn restart(&mut self) {
        self.copies.clear();
        self.cursor = (self.cursor.0 + 1, 0);
        self.engine().clear();
    }

    fn carry_out(&mut self, act: Act) {
        match act {
            Act::Store(rank, chain, tier) => self.store(rank, &chain, tier),
            Act::Remove(rank, chain, tier) => self.remove((rank, chain, tier)),
            Act::Clear(rank) => {
                self.copies.retain(|(at, ..), _| *at != rank);
                self.publish(rank, vec![KvEvent::Cleared]);
            }
            Act::Lose => {
                self.copies.clear();
                self.engine().lose();
            }
            Act::Restart => self.restart(),
            Act::Save(chain, tier) => self.save(chain, tier),
            Act::Evict(chain, tier) => self.evict(chain, tier),
            Act::Image => self.image(),
            Act::DiskImage => self.disk_image(),
            Act::Kill(fate, manager) => self.kill(fate, manager),
        }
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// After any events and kills, the index equals the union of the sources' holdings. One incarnation continues
    /// wherever possible.
    #[test]
    fn the_index_is_the_union_of_what_sources_hold(
        is_counted: bool,
        acts in prop::collection::vec(act(), 1..60),
    ) {
        let copy_mode = if is_counted { CopyMode::Counted } else { CopyMode::Set };
        let mut world = World::new(copy_mode);
        acts.into_iter().for_each(|act| world.carry_out(act));
    }
}

/// The state an agent leaves, with an engine and a manager that hold blocks at rank 0.
fn left() -> World {
    let mut world = World::new(CopyMode::Counted);
    world.store(0, &[1, 2], 0);
    world.save(vec![1], 0);
    world.save(vec![3], 1);
    world.check();
    world
}

#[test]
fn what_is_left_at_another_rank_is_removed() {
    let mut world = left();
    world.start_again(Some(1));
    world.saved.clear();
    world.meet(Fate::Proves);
    world.check();
}

#[test]
fn a_source_of_another_kind_holds_nothing() {
    let mut world = left();
    world.agent = None;
    let hub = start(world.folder.path(), Incarnation(2), true);
    let manager = Some(hub.open_imaged("blocks", CopyMode::Set, MANAGER_RANK).expect("a place"));
    let opened = hub.open_persisted("engine", CopyMode::Counted, SourceKind::Relay);
    world.agent = Some(Agent { hub: Arc::clone(&hub), engine: opened.expect("a place"), manager });
    hub.begin();
    // No source has to prove anything.
    assert_eq!(verdict(&hub), Verdict::Continued);
    world.copies.clear();
    world.check();
    world.image();
    world.check();
}

#[test]
fn where_no_source_is_left_a_new_incarnation_begins() {
    let mut world = left();
    world.agent = None;
    let hub = start(world.folder.path(), Incarnation(2), true);
    hub.begin();
    assert_eq!(verdict(&hub), Verdict::NewIncarnation(NewIncarnation::NoSource));
    assert_eq!((hub.feed().status().incarnation, inventory(&hub).len()), (Incarnation(2), 0));
    drop(hub);
    // The sources' earlier blocks do not return with them.
    world.start_again(Some(MANAGER_RANK));
    assert_eq!(verdict(world.hub()), Verdict::NewIncarnation(NewIncarnation::NoSource));
    (world.copies, world.saved) = (BTreeMap::new(), BTreeSet::new());
    world.check();
}

#[test]
fn a_folder_is_of_consolidated_sources_or_of_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let life = |number| Incarnation(number);
    let fill = |hub: &Arc<Hub>| {
        hub.begin();
        let inlet = hub.open_persisted("engine", CopyMode::Set, SourceKind::Ingest);
        let cursor = Cursor { incarnation: life(7), sequence: 1, fingerprint: None };
        inlet.expect("a place").take_at(0, vec![stored(own, &[1], 0, Tier::Device)], cursor)
    };
    fill(&start(folder.path(), life(1), false)).expect("taken");
    for (number, consolidate) in [(2, true), (3, false)] {
        let hub = start(folder.path(), life(number), consolidate);
        assert_eq!(verdict(&hub), Verdict::NewIncarnation(NewIncarnation::Consolidation));
        assert_eq!((hub.feed().status().incarnation, inventory(&hub).len()), (life(number), 0));
        fill(&hub).expect("taken");
        drop(hub);
        let hub = start(folder.path(), life(9), consolidate);
        assert_eq!((hub.feed().status().incarnation, inventory(&hub).len()), (life(number), 1));
    }
    leave(&disk_config(folder.path(), false)).expect("it is marked");
}

/// Simulates a lost value: without a holder, the block would stay forever.
#[test]
fn what_no_source_holds_is_damage() {
    let folder = tempfile::tempdir().expect("a folder");
    let hub = start(folder.path(), Incarnation(1), true);
    hub.begin();
    let event = stored(joined, &[1], 0, Tier::Device);
    hub.feed().publish(0, vec![event]).expect("published by no source");
    drop(hub);
    let hub = start(folder.path(), Incarnation(2), true);
    assert!(matches!(verdict(&hub), Verdict::NewIncarnation(NewIncarnation::Damaged(_))));
    hub.begin();
    assert_eq!(hub.feed().status().incarnation, Incarnation(2));
    assert_eq!((inventory(&hub).len(), hub.feed().is_settled()), (0, true));
}

/// A killed process still remembers that blocks were refused.
#[test]
fn a_source_that_lacks_blocks_lacks_them_after_a_kill() {
    let mut world = World::new(CopyMode::Set);
    let config = HubConfig { names_max: 1, consolidate: true, ..HubConfig::DEFAULT };
    let hub = Hub::new(Arc::clone(world.hub().feed()), config).map(Arc::new).expect("a hub");
    world.open_engine(&hub, SourceKind::Ingest);
    drop(hub);
    world.publish(0, vec![stored(own, &[1, 2], 0, Tier::Device)]);
    world.copies.insert((0, vec![1], 0), 1);
    world.kill(Fate::Proves, Manager::Keeps);
    world.check();
    let reports = world.hub().reports();
    let engine = reports.iter().find(|report| report.name == "engine").expect("it is open");
    assert_eq!(engine.status.state, SourceState::Partial);
}
