//! Rules by hand, and random events against a model of each source's holdings.

use super::*;
use kvasir_proto::hash::sequence_hashes;
use kvasir_proto::types::{BlockName, CopyMode, KvEvent, LocalHash, StoredBlock, Tier};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const ENGINE: ConsolidatedSource = source(0, CopyMode::Counted);
const MANAGER: ConsolidatedSource = source(1, CopyMode::Set);
const ROOMY: ConsolidateConfig = ConsolidateConfig { names_max: 1 << 20, tells_holdings: true };

const fn source(number: u8, copy_mode: CopyMode) -> ConsolidatedSource {
    let naming = Naming::Own { salt: number as u64 + 1 };
    ConsolidatedSource { number: SourceNumber(number), copy_mode, naming }
}

/// Events that one source's batch publishes.
fn take(
    both: &mut Consolidator,
    source: ConsolidatedSource,
    rank: u32,
    events: Vec<KvEvent>,
) -> Vec<KvEvent> {
    both.take(source, rank, events).events
}

fn clear(both: &mut Consolidator, source: ConsolidatedSource) -> Vec<(u32, Vec<KvEvent>)> {
    both.clear(source).into_iter().map(|(rank, changed)| (rank, changed.events)).collect()
}

/// A source's name of the block at the end of a chain.
fn named(source: ConsolidatedSource, chain: &[u64]) -> BlockName {
    let text: Vec<u8> = chain.iter().flat_map(|local| local.to_le_bytes()).collect();
    BlockName(xxhash_rust::xxh3::xxh3_64_with_seed(&text, 77 + u64::from(source.number.0)))
}

/// Name of the block at the end of a chain, in the joined stream.
fn joined(chain: &[u64]) -> BlockName {
    let locals: Vec<_> = chain.iter().map(|local| LocalHash(*local)).collect();
    BlockName(sequence_hashes(&locals).last().expect("a chain").0)
}

/// Stores the last blocks of a chain; the first `known` blocks were stored before.
fn stored(source: ConsolidatedSource, chain: &[u64], known: usize, tier: Tier) -> KvEvent {
    let block = |end: usize| StoredBlock {
        name: named(source, &chain[..=end]),
        local: LocalHash(chain[end]),
    };
    let parent = (known > 0).then(|| named(source, &chain[..known]));
    KvEvent::Stored { parent, tier, blocks: (known..chain.len()).map(block).collect() }
}

fn removed(source: ConsolidatedSource, chain: &[u64], tier: Tier) -> KvEvent {
    KvEvent::Removed { tier, names: vec![named(source, chain)] }
}

fn stored_event(chain: &[u64], known: usize, tier: Tier) -> KvEvent {
    let block =
        |end: usize| StoredBlock { name: joined(&chain[..=end]), local: LocalHash(chain[end]) };
    let parent = (known > 0).then(|| joined(&chain[..known]));
    KvEvent::Stored { parent, tier, blocks: (known..chain.len()).map(block).collect() }
}

#[test]
fn a_block_is_there_from_its_first_source_to_its_last() {
    let mut both = Consolidator::new(ROOMY);
    let all = [1, 2, 3];
    let device = Tier::Device;
    let output = take(&mut both, ENGINE, 0, vec![stored(ENGINE, &all[..2], 0, device)]);
    assert_eq!(output, [stored_event(&all[..2], 0, device)]);
    // The other source announces the complete chain, of which only the end is new.
    let output = take(&mut both, MANAGER, 0, vec![stored(MANAGER, &all, 0, device)]);
    assert_eq!(output, [stored_event(&all, 2, device)]);
    // Tiers are independent.
    let output = take(&mut both, MANAGER, 0, vec![stored(MANAGER, &all[..1], 0, Tier::Host)]);
    assert_eq!(output, [stored_event(&all[..1], 0, Tier::Host)]);
    assert_eq!(take(&mut both, ENGINE, 0, vec![removed(ENGINE, &all[..2], device)]), []);
    let output = take(&mut both, MANAGER, 0, vec![removed(MANAGER, &all[..2], device)]);
    let gone = |chain: &[u64], tier| KvEvent::Removed { tier, names: vec![joined(chain)] };
    assert_eq!(output, [gone(&all[..2], device)]);
    assert_eq!(take(&mut both, MANAGER, 0, vec![removed(MANAGER, &all[..2], device)]), [], "twice");
    // Blocks that only the cleared source held are removed.
    let mut ends = vec![joined(&all)];
    let output = clear(&mut both, MANAGER);
    let [(0, events)] = &output[..] else { panic!("{output:?}") };
    ends.retain(|end| events.contains(&KvEvent::Removed { tier: device, names: vec![*end] }));
    assert_eq!((events.len(), ends.len()), (2, 1), "{events:?}");
    assert_eq!(clear(&mut both, ENGINE), [(0, vec![KvEvent::Cleared])]);
    assert_eq!((both.names(), clear(&mut both, ENGINE)), (0, vec![]));
}

#[test]
fn an_engine_that_counts_copies_is_counted_with() {
    let mut both = Consolidator::new(ROOMY);
    let twice = vec![stored(ENGINE, &[1], 0, Tier::Device); 2];
    assert_eq!(take(&mut both, ENGINE, 0, twice), [stored_event(&[1], 0, Tier::Device)]);
    let gone = removed(ENGINE, &[1], Tier::Device);
    assert_eq!(take(&mut both, ENGINE, 0, vec![gone.clone()]), []);
    assert_eq!(take(&mut both, ENGINE, 0, vec![gone]).len(), 1);
    // An engine's report that no copy remains is trusted.
    let thrice = vec![stored(ENGINE, &[1], 0, Tier::Device); 3];
    assert_eq!(take(&mut both, ENGINE, 0, thrice).len(), 1);
    let all = KvEvent::Gone { tier: Tier::Device, names: vec![named(ENGINE, &[1])] };
    let output = KvEvent::Removed { tier: Tier::Device, names: vec![joined(&[1])] };
    assert_eq!(take(&mut both, ENGINE, 0, vec![all.clone()]), [output]);
    assert_eq!(take(&mut both, ENGINE, 0, vec![all]), []);
}

#[test]
fn a_chain_without_its_beginning_is_its_sources_own_until_it_is_announced_from_its_root() {
    let mut both = Consolidator::new(ROOMY);
    let output = take(&mut both, ENGINE, 0, vec![stored(ENGINE, &[1, 2, 3], 2, Tier::Device)]);
    let [KvEvent::Stored { parent: Some(parent), blocks, .. }] = &output[..] else {
        panic!("{output:?}")
    };
    assert!(*parent != joined(&[1, 2]) && blocks[0].name != joined(&[1, 2, 3]));
    assert_eq!(both.counts().unjoined, 1);
    let own = blocks[0].name;
    // Announced from its root, the chain is joined with the other source's chain.
    let output = take(&mut both, ENGINE, 0, vec![stored(ENGINE, &[1, 2, 3], 0, Tier::Device)]);
    let gone = KvEvent::Removed { tier: Tier::Device, names: vec![own] };
    let expected =
        [stored_event(&[1, 2], 0, Tier::Device), gone, stored_event(&[1, 2, 3], 2, Tier::Device)];
    assert_eq!(output, expected);
    assert_eq!(take(&mut both, MANAGER, 0, vec![stored(MANAGER, &[1, 2, 3], 0, Tier::Device)]), []);
}

#[test]
fn names_are_bounded() {
    let mut both = Consolidator::new(ConsolidateConfig { names_max: 3, ..ROOMY });
    take(&mut both, ENGINE, 0, vec![stored(ENGINE, &[1, 2], 0, Tier::Device)]);
    let output = take(&mut both, MANAGER, 1, vec![stored(MANAGER, &[1, 2], 0, Tier::Device)]);
    assert_eq!(output, [stored_event(&[1], 0, Tier::Device)]);
    assert_eq!((both.names(), both.counts().refused), (3, 1));
    take(
        &mut both,
        MANAGER,
        1,
        vec![KvEvent::StoredNames { tier: Tier::Host, names: vec![BlockName(9)] }],
    );
    assert_eq!((both.names(), both.counts().refused), (3, 2));
}

#[test]
fn who_names_blocks_by_their_hashes_is_joined_without_a_chain() {
    let manager = ConsolidatedSource { naming: Naming::Canonical, ..MANAGER };
    let mut both = Consolidator::new(ROOMY);
    take(&mut both, ENGINE, 0, vec![stored(ENGINE, &[1, 2], 0, Tier::Device)]);
    let block = StoredBlock { name: joined(&[1, 2]), local: LocalHash(2) };
    let parent = Some(joined(&[1]));
    let blocks = vec![block];
    let event = KvEvent::Stored { parent, tier: Tier::Device, blocks };
    assert_eq!(take(&mut both, manager, 0, vec![event]), [], "the engine has it");
    assert_eq!(both.counts().unjoined, 0);
}

/// An image publishes only differences, unless there is no room for both holdings.
#[test]
fn an_image_changes_what_is_different() {
    let image = |chain: &[u64]| vec![KvEvent::Cleared, stored(MANAGER, chain, 0, Tier::Host)];
    for (names_max, is_seen) in [(6, false), (5, true)] {
        let mut both = Consolidator::new(ConsolidateConfig { names_max, ..ROOMY });
        take(&mut both, ENGINE, 0, vec![stored(ENGINE, &[9], 0, Tier::Device)]);
        take(&mut both, MANAGER, 0, image(&[1, 2]));
        let output = both.take(MANAGER, 0, image(&[1, 3]));
        let KvEvent::Removed { tier: Tier::Host, names } = output
            .events
            .iter()
            .find(|event| matches!(event, KvEvent::Removed { .. }))
            .expect("gone")
        else {
            panic!("{output:?}")
        };
        assert_eq!(names.contains(&joined(&[1])), is_seen, "{output:?}");
        assert!(names.contains(&joined(&[1, 2])), "{output:?}");
        assert_eq!(output.holdings[0], HoldingChange::Cleared);
        assert_eq!((output.holdings.len(), both.names()), (3, 3));
    }
}

#[test]
fn what_a_source_held_is_another_places() {
    let mut both = Consolidator::new(ROOMY);
    let absent = ConsolidatedSource { number: SourceNumber(SOURCES_MAX), ..MANAGER };
    for rank in [0, 1] {
        let name = named(MANAGER, &[1]);
        let block = joined(&[1]);
        let holding = Holding { name, block, is_joined: true, copies: [1, 0, 0] };
        both.bring_back(absent, rank, &[holding]);
    }
    both.hand_over(absent.number, MANAGER, Some(1));
    assert_eq!(both.ranks_of(MANAGER.number), [1]);
    // The chain continues.
    let output = take(&mut both, MANAGER, 1, vec![stored(MANAGER, &[1, 2], 1, Tier::Device)]);
    assert_eq!(output, [stored_event(&[1, 2], 1, Tier::Device)]);
    assert_eq!(clear(&mut both, absent), [(0, vec![KvEvent::Cleared])]);
    assert!(both.is_held(1, joined(&[1]), Tier::Device));
    assert!(!both.is_held(1, joined(&[1]), Tier::Host));
    assert!(!both.is_held(0, joined(&[1]), Tier::Device));
}

/// Random action of a source at one rank, on a chain of a small tree in a tier.
#[derive(Debug, Clone)]
enum Act {
    Store {
        known: usize,
    },
    Remove,
    Clear,
    /// Announces exactly the source's holdings, as an image.
    Image,
    /// Restarts the agent, which restores the reported holdings.
    Restart,
}

type Did = (bool, u32, Vec<u64>, usize, Act);

fn acts() -> impl Strategy<Value = Vec<Did>> {
    let act = prop_oneof![
        6 => (0..4_usize).prop_map(|known| Act::Store { known }),
        5 => Just(Act::Remove),
        1 => Just(Act::Clear),
        1 => Just(Act::Image),
        1 => Just(Act::Restart),
    ];
    let chain = proptest::collection::vec(0..2_u64, 1..5);
    proptest::collection::vec((any::<bool>(), 0..2_u32, chain, 0..Tier::COUNT, act), 1..60)
}

/// Reported holdings of each source and rank.
#[derive(Default)]
struct Told(BTreeMap<(bool, u32), BTreeMap<u64, Holding>>);

impl Told {
    fn hear(&mut self, at: (bool, u32), changes: Vec<HoldingChange>) {
        let held = self.0.entry(at).or_default();
        for change in changes {
            match change {
                HoldingChange::Cleared => held.clear(),
                HoldingChange::Held(holding) => drop(held.insert(holding.name.0, holding)),
                HoldingChange::Gone(name) => drop(held.remove(&name.0)),
            }
        }
    }

    /// Simulates a restart in which the sources have other numbers.
    fn restart(&self, sources: &mut [ConsolidatedSource; 2]) -> Consolidator {
        let mut both = Consolidator::new(ROOMY);
        let [manager, engine] = sources;
        std::mem::swap(&mut manager.number, &mut engine.number);
        let absent = |source: ConsolidatedSource| {
            let number = SourceNumber(SOURCES_MAX + source.number.0);
            ConsolidatedSource { number, ..source }
        };
        for ((is_engine, rank), held) in &self.0 {
            let source = sources[usize::from(*is_engine)];
            let holdings: Vec<_> = held.values().copied().collect();
            both.bring_back(absent(source), *rank, &holdings);
        }
        for source in *sources {
            both.hand_over(absent(source).number, source, None);
        }
        both
    }
}

/// Number of copies by rank, source, chain and tier.
type Model = BTreeMap<(u32, bool, Vec<u64>, usize), u32>;

proptest! {
    /// Sources announce chains from the root, or below blocks that they hold. A reader of the joined stream sees
    /// exactly the blocks that any source holds, for each rank and tier.
    #[test]
    fn what_is_published_is_what_a_source_holds(acts in acts()) {
        let mut both = Consolidator::new(ROOMY);
        let mut told = Told::default();
        let mut sources = [MANAGER, ENGINE];
        let mut model = Model::new();
        let mut received: BTreeSet<(u32, usize, BlockName)> = BTreeSet::new();
        for (is_engine, rank, chain, tier_at, act) in acts {
            let names = if is_engine { ENGINE } else { MANAGER };
            let tier = Tier::ALL[tier_at];
            let holds = |model: &Model, chain: &[u64]| {
                (0..Tier::COUNT).any(|at| model.contains_key(&(rank, is_engine, chain.to_vec(), at)))
            };
            let before = received.clone();
            let is_image = matches!(act, Act::Image);
            let events = match act {
                Act::Store { known } => {
                    // Below a held block, or from the root.
                    let mut known = known.min(chain.len() - 1);
                    if !holds(&model, &chain[..known]) {
                        known = 0;
                    }
                    for end in known + 1..=chain.len() {
                        let key = (rank, is_engine, chain[..end].to_vec(), tier_at);
                        let copies = model.entry(key).or_default();
                        *copies = if is_engine { *copies + 1 } else { 1 };
                    }
                    vec![stored(names, &chain, known, tier)]
                }
                Act::Remove => {
                    let key = (rank, is_engine, chain.clone(), tier_at);
                    if let Some(copies) = model.get_mut(&key) {
                        *copies -= 1;
                        if *copies == 0 {
                            model.remove(&key);
                        }
                    }
                    vec![removed(names, &chain, tier)]
                }
                Act::Clear => {
                    model.retain(|key, _| (key.0, key.1) != (rank, is_engine));
                    vec![KvEvent::Cleared]
                }
                Act::Image => {
                    model.retain(|key, _| (key.0, key.1) != (rank, is_engine));
                    for end in 1..=chain.len() {
                        model.insert((rank, is_engine, chain[..end].to_vec(), tier_at), 1);
                    }
                    vec![KvEvent::Cleared, stored(names, &chain, 0, tier)]
                }
                Act::Restart => {
                    let names = both.names();
                    both = told.restart(&mut sources);
                    prop_assert_eq!(both.names(), names);
                    continue;
                }
            };
            let changed = both.take(sources[usize::from(is_engine)], rank, events);
            told.hear((is_engine, rank), changed.holdings);
            for event in changed.events {
                if let (true, KvEvent::Removed { tier, names }) = (is_image, &event) {
                    let stays = |name: &BlockName| {
                        let is_it = |key: &(u32, bool, Vec<u64>, usize)| {
                            (key.0, key.3, joined(&key.2)) == (rank, tier.index(), *name)
                        };
                        model.keys().any(is_it)
                    };
                    prop_assert!(!names.iter().any(stays), "{:?} of {:?}", names, before);
                }
                receive(&mut received, rank, &event);
            }
            let expected: BTreeSet<_> =
                model.keys().map(|(rank, _, chain, tier)| (*rank, *tier, joined(chain))).collect();
            prop_assert_eq!(&received, &expected);
        }
        prop_assert_eq!(both.counts(), ConsolidateCounts::default());
    }
}

fn receive(received: &mut BTreeSet<(u32, usize, BlockName)>, rank: u32, event: &KvEvent) {
    match event {
        KvEvent::Stored { tier, blocks, .. } => {
            for block in blocks {
                assert!(
                    received.insert((rank, tier.index(), block.name)),
                    "it was received before"
                );
            }
        }
        KvEvent::StoredNames { .. } => panic!("nobody names blocks without their tokens here"),
        KvEvent::Removed { tier, names } => {
            for name in names {
                assert!(received.remove(&(rank, tier.index(), *name)), "it was not there");
            }
        }
        KvEvent::Gone { .. } => panic!("a consolidated stream has one copy of each"),
        KvEvent::Cleared => received.retain(|at| at.0 != rank),
        KvEvent::ClearedTier(_) => panic!("a consolidated stream removes names"),
    }
}
