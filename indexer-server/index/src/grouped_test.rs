//! Bits of further groups hold exactly what records would hold. Two indexes get the same blocks of further groups, but only one
//! also gets the main group. In the other one, all blocks of further groups have records.

use crate::find::{Prompt, Query, Reuse, Scratch};
use crate::image::RankImage;
use crate::index::Index;
use crate::limits::Limits;
use crate::restore::{Restore, Saved};
use crate::source::SourceId;
use crate::table::mix;
use crate::walk::QueryKey;
use kvasir_proto::types::{
    BlockCounts, BlockName, CopyMode, Group, GroupKind, HeldBlock, KvEvent, LocalHash, StoredBlock,
    Tier, TierSet, WorkerId,
};
use std::collections::{BTreeMap, BTreeSet};

const SEEDS: u64 = 300;
const STEPS: u64 = 120;
const CHAINS: u64 = 3;
const CHAIN_BLOCKS: u64 = 90;
const GROUPS: u32 = 2;
/// Workers and names of the sources.
const SOURCES: [(&str, &str); 3] = [("a", "first"), ("a", "second"), ("b", "first")];

/// A seeded stream of numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % end
    }

    fn is_one_in(&mut self, end: u64) -> bool {
        self.below(end) == 0
    }
}

/// A change of one source.
#[derive(Debug)]
enum Change {
    Main(KvEvent),
    Grouped(KvEvent),
    MarkSuspect,
    DropSuspects,
    Clear,
    ClearTier(Tier),
    Set(Vec<HeldBlock>),
}

impl Change {
    fn apply(&self, index: &mut Index, source: SourceId) -> BlockCounts {
        match self {
            Self::Main(event) | Self::Grouped(event) => {
                return index.apply(source, 0, event).expect("a source");
            }
            Self::Set(states) => return index.set_names(source, 0, states).expect("a source"),
            Self::MarkSuspect => index.mark_suspect(source),
            Self::DropSuspects => while !index.drop_suspects(source, 9).expect("a source").done {},
            Self::Clear => while !index.clear_source(source, None, 9).expect("a source").done {},
            Self::ClearTier(tier) => {
                while !index.clear_tier(source, 0, *tier, 9).expect("a source").done {}
            }
        }
        BlockCounts::default()
    }
}

/// A block of the main group. Worker `b` has names of its own for every other chain.
fn block(worker: u64, chain: u64, at: u64) -> StoredBlock {
    // Chains share their first third.
    let path = if at < CHAIN_BLOCKS / 3 { 0 } else { chain };
    let own = if chain % 2 == 1 { worker } else { 0 };
    let name = BlockName(mix(path << 32 | own << 16 | at));
    StoredBlock { name, local: LocalHash((path << 16 | at) + 1) }
}

/// A random change, and the number of its source.
fn draw_change(draw: &mut Draw) -> (usize, Change) {
    let source = draw.below(SOURCES.len() as u64);
    let worker = source / 2;
    let chain = draw.below(CHAINS);
    let from = draw.below(CHAIN_BLOCKS);
    let end = (from + 1 + draw.below(40)).min(CHAIN_BLOCKS);
    let run = |from| (from..end).map(|at| block(worker, chain, at)).collect::<Vec<_>>();
    let before = from.checked_sub(1).map(|at| block(worker, chain, at).name);
    let tier = if draw.is_one_in(6) { Tier::Host } else { Tier::Device };
    let group = 1 + u32::try_from(draw.below(u64::from(GROUPS))).expect("small");
    // Sometimes under the other worker's names, which are a slot's own names or not.
    let namer = if draw.is_one_in(6) { 1 - worker } else { worker };
    let grouped = (from..end).map(|at| Group::block(group, block(namer, chain, at).name));
    let grouped: Vec<_> = grouped.collect();
    let change = match draw.below(20) {
        0..3 => Change::Main(KvEvent::Stored { parent: before, tier, blocks: run(from) }),
        3..6 => Change::Main(KvEvent::Stored { parent: None, tier, blocks: run(0) }),
        6..9 => {
            let names = run(from).iter().rev().map(|block| block.name).collect();
            Change::Main(KvEvent::Removed { tier, names })
        }
        9..14 => {
            let is_sparse = draw.is_one_in(4);
            let parent = before.filter(|_| !is_sparse).map(|name| Group::name(group, name));
            let blocks = grouped.into_iter().step_by(if is_sparse { 3 } else { 1 }).collect();
            Change::Grouped(KvEvent::Stored { parent, tier, blocks })
        }
        14..17 => {
            let mut names: Vec<_> = grouped.iter().map(|block| block.name).collect();
            if draw.is_one_in(2) {
                names.reverse();
            }
            Change::Grouped(match draw.below(8) {
                0 => KvEvent::Gone { tier, names },
                1 => KvEvent::StoredNames { tier, names },
                _ => KvEvent::Removed { tier, names },
            })
        }
        17 => Change::MarkSuspect,
        18 => Change::DropSuspects,
        _ if draw.is_one_in(4) => Change::Clear,
        _ if draw.is_one_in(3) => Change::ClearTier(tier),
        _ => {
            let copies = [draw.below(3), draw.below(2), 0];
            let copies = copies.map(|count| u32::try_from(count).expect("small"));
            let state = |at: &StoredBlock| HeldBlock {
                name: at.name,
                parent: None,
                local: Some(at.local),
                copies,
            };
            Change::Set(grouped.iter().map(state).collect())
        }
    };
    (usize::try_from(source).expect("small"), change)
}

/// Declares the groups: again, because sweeps drop declarations, too.
fn declare_groups(index: &mut Index, source: SourceId) {
    for number in 1..=GROUPS {
        let window = 48 * (number - 1);
        let kind = if window > 0 { GroupKind::Window } else { GroupKind::Mamba };
        let group = Group { number, kind, block_size: 16, unit: 16, window };
        let blocks = vec![group.declaration()];
        let event = KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
        index.apply(source, 0, &event).expect("a source");
    }
}

/// An index with all sources, which have declared the groups.
fn new_index(mode: CopyMode) -> (Index, Vec<SourceId>) {
    let mut index = Index::new(Limits::default());
    let mut sources = Vec::new();
    for (worker, name) in SOURCES {
        let worker = WorkerId::new(worker).expect("a name");
        let source = index.add_source(&worker, name, 0, mode).expect("a source");
        assert!(index.keep_digests(source).expect("a source"));
        declare_groups(&mut index, source);
        sources.push(source);
    }
    (index, sources)
}

/// Parent, local hash and copies by tier.
type Block = (Option<BlockName>, Option<LocalHash>, [u32; Tier::COUNT]);

/// Blocks by source and name.
type Held = BTreeMap<(u32, BlockName), Block>;

/// All blocks of a worker, by a dump with changes between its chunks. `None` if the worker is cleared meanwhile.
fn dump(index: &mut Index, worker: &str, mut change: impl FnMut(&mut Index)) -> Option<Held> {
    let worker = WorkerId::new(worker).expect("a name");
    let mut scan = index.begin_dump(&worker, None).expect("a worker");
    let mut records = Vec::new();
    loop {
        match index.dump_chunk(&mut scan, 7, &mut records) {
            Ok(true) => change(index),
            Ok(false) => break,
            Err(_) => {
                index.cancel_dump(scan);
                return None;
            }
        }
    }
    records.extend(index.finish_dump(scan).ok()?.records);
    // Later records replace earlier ones.
    let blocks =
        records.into_iter().map(|at| ((at.source.0, at.name), (at.parent, at.local, at.copies)));
    let mut held: Held = blocks.collect();
    held.retain(|_, (_, _, copies)| *copies != [0; Tier::COUNT]);
    Some(held)
}

/// All blocks of a worker.
fn held_by(index: &mut Index, worker: &str) -> Held {
    dump(index, worker, |_| {}).expect("nothing changes")
}

fn is_grouped(block: &Block) -> bool {
    block.1.is_some_and(Group::is_mark)
}

/// All blocks of further groups.
fn grouped_blocks(index: &mut Index) -> Held {
    let all = ["a", "b"].map(|worker| held_by(index, worker)).into_iter().flatten();
    all.filter(|(_, block)| is_grouped(block)).collect()
}

/// Replaces all bits by records.
fn convert_all(index: &mut Index) {
    let slots = index.trie.slots.iter().last().map_or(0, |slot| slot + 1);
    for holder in 0..index.holders.len() {
        if let Some(Some(at)) = index.holders.get_mut(holder) {
            at.convert_bits(&index.trie, 0, slots);
        }
        index.recount(u32::try_from(holder).expect("few"));
    }
    assert_eq!((count_bits(index), index.validate()), (0, Ok(())));
}

/// Blocks and tokens that each rank serves of beginnings of all chains. Local hashes are also read as those of blocks with
/// look-ahead, which have two positions each.
fn answers(index: &Index) -> Vec<(String, u32, Option<Reuse>)> {
    let mut scratch = Scratch::default();
    let mut answers = Vec::new();
    let device = TierSet::EMPTY.with(Tier::Device);
    for chain in 0..CHAINS {
        let locals: Vec<_> = (0..CHAIN_BLOCKS).map(|at| block(0, chain, at).local).collect();
        let names: Vec<_> = (0..CHAIN_BLOCKS).map(|at| block(1, chain, at).name).collect();
        let whole = QueryKey::Locals(&locals);
        let keys = [
            (whole, false),
            (QueryKey::Locals(&locals[..20]), false),
            (QueryKey::Names(&names), false),
            (whole, true),
            (QueryKey::Locals(&locals[..21]), true),
        ];
        for (key, tiers) in keys.into_iter().flat_map(|key| [(key, TierSet::ALL), (key, device)]) {
            let (key, has_look_ahead) = key;
            let prompt = Some(Prompt { block_size: 16, tokens: None });
            let query =
                Query { key, tiers, workers: None, minimum_overlap: 1, shared: None, prompt };
            if has_look_ahead {
                assert!(index.find_ahead_while(query, &mut scratch, || true));
            } else {
                index.find(query, &mut scratch);
            }
            let worker = |at| index.holder(at).expect("a holder").worker().to_string();
            let found = scratch.matches().iter().map(|at| (worker(at.holder), at.blocks, at.reuse));
            let mut found: Vec<_> = found.collect();
            found.sort_by(|one, other| one.0.cmp(&other.0));
            answers.extend(found);
        }
    }
    answers
}

/// The index that images of all workers restore.
fn restored(index: &mut Index) -> Index {
    let mut restored = Index::new(Limits::default());
    for worker in ["a", "b"] {
        let worker = WorkerId::new(worker).expect("a name");
        let mut cut = index.begin_cut(&worker, true).expect("a worker");
        while !index.cut_step(&mut cut, 7).done {}
        let (image, _) = cut.finish();
        let mut saved = Saved::new(worker);
        image.sources.into_iter().for_each(|source| saved.source(source).expect("sound"));
        for rank in image.ranks {
            let RankImage { rank, primary, shed_blocks, short, pages, names, holes, .. } = rank;
            saved.rank(rank, primary, shed_blocks, short);
            pages.into_iter().for_each(|page| saved.page(rank, page).expect("sound"));
            names.into_iter().for_each(|name| saved.name(rank, name).expect("sound"));
            holes.into_iter().for_each(|hole| saved.hole(rank, hole));
        }
        let mut restore = Restore::new(saved).expect("sound");
        while !restore.step(&mut restored, 9).expect("room").done {}
    }
    restored
}

fn count_bits(index: &Index) -> usize {
    index.holders.iter().flatten().map(|holder| holder.bits().iter().count()).sum()
}

#[test]
fn bits_hold_exactly_what_records_hold() {
    let mut bits = 0;
    let mut bits_restored = 0;
    let mut reusing = 0;
    let mut dumps = 0_usize;
    for seed in 0..SEEDS {
        let mut draw = Draw(seed << 32);
        let mode = if draw.is_one_in(2) { CopyMode::Set } else { CopyMode::Counted };
        let (mut both, sources) = new_index(mode);
        let (mut groups_only, _) = new_index(mode);
        for step in 0..STEPS {
            let (source, change) = draw_change(&mut draw);
            let counts = change.apply(&mut both, sources[source]);
            if !matches!(change, Change::Main(_)) {
                let same = change.apply(&mut groups_only, sources[source]);
                assert_eq!(counts, same, "seed {seed}, step {step}: {change:?}");
            }
            if step % 8 == 0 {
                assert_eq!(both.validate().err(), None, "seed {seed}, step {step}");
                let expected = grouped_blocks(&mut groups_only);
                assert_eq!(grouped_blocks(&mut both), expected, "seed {seed}, step {step}");
            }
        }
        let mut again = restored(&mut both);
        assert_eq!(again.validate().err(), None, "seed {seed}: restored");
        assert_eq!(grouped_blocks(&mut again), grouped_blocks(&mut both), "seed {seed}: restored");
        bits += count_bits(&both);
        bits_restored += count_bits(&again);

        let mut changes = 0;
        let while_changing = dump(&mut both, "a", |index| {
            changes += 1;
            if changes <= 20 {
                let (source, change) = draw_change(&mut draw);
                change.apply(index, sources[source]);
            }
        });
        if let Some(held) = while_changing {
            assert_eq!(held, held_by(&mut both, "a"), "seed {seed}: dumped while blocks change");
            dumps += 1;
        }
        for _ in 0..100 {
            let records = again.totals.grouped;
            again.shed(7);
            assert!(again.totals.grouped <= records, "seed {seed}: evictions take memory");
            assert_eq!(again.validate().err(), None, "seed {seed}: evicted");
        }
        sources.iter().for_each(|&source| declare_groups(&mut both, source));
        let found = answers(&both);
        convert_all(&mut both);
        assert_eq!(found, answers(&both), "seed {seed}");
        reusing += found.iter().filter(|at| at.2.is_some_and(|reuse| reuse.tokens > 0)).count();
    }
    println!("{bits} bits, {bits_restored} restored, {reusing} answers, {dumps} dumps");
    assert!(bits as u64 > SEEDS * 10 && reusing as u64 > SEEDS && dumps as u64 > SEEDS / 4);
    // After a restore, another worker's names may be the slots' own ones.
    assert!(bits_restored * 10 > bits * 9);
}

/// The slots behind a branch belong to another prompt.
#[test]
fn bits_of_another_prompt_do_not_count() {
    let (mut index, sources) = new_index(CopyMode::Set);
    let source = sources[0];
    let store = |index: &mut Index, blocks: Vec<StoredBlock>| {
        let event = KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
        index.apply(source, 0, &event).expect("a source");
    };
    let common = [1, 2].map(|at| StoredBlock { name: BlockName(at), local: LocalHash(at) });
    let with_end = |end: u64| {
        let rest =
            [end, end + 1].map(|at| StoredBlock { name: BlockName(at), local: LocalHash(at) });
        [common, rest].concat()
    };
    let (long, short) = (with_end(10), with_end(20));
    store(&mut index, long.clone());
    store(&mut index, short.clone());
    let of_group = |number: u32, blocks: &[StoredBlock]| -> Vec<StoredBlock> {
        blocks.iter().map(|at| Group::block(number, at.name)).collect()
    };
    // The window of group 2 is three blocks.
    store(&mut index, of_group(1, &long));
    store(&mut index, of_group(1, &short[2..]));
    store(&mut index, of_group(2, &long));
    assert_eq!(count_bits(&index), 10);
    let mut scratch = Scratch::default();
    for (prompt, expected) in [(&long, 4), (&short, 2)] {
        let locals: Vec<_> = prompt.iter().map(|at| at.local).collect();
        let names: Vec<_> = prompt.iter().map(|at| at.name).collect();
        for key in [QueryKey::Locals(&locals), QueryKey::Names(&names)] {
            let prompt = Some(Prompt { block_size: 16, tokens: None });
            let (tiers, minimum_overlap) = (TierSet::ALL, 1);
            let query = Query { key, tiers, workers: None, minimum_overlap, shared: None, prompt };
            index.find(query, &mut scratch);
            let found: Vec<_> = scratch.matches().iter().map(|at| at.blocks).collect();
            assert_eq!(found, [expected], "{key:?}");
        }
    }
}

/// A slot whose name the rank does not have stands between slots with its names.
#[test]
fn bits_under_a_name_of_others_do_not_count() {
    let (mut index, sources) = new_index(CopyMode::Set);
    let source = sources[0];
    let device = Tier::Device;
    let chain: Vec<_> = (0..3).map(|at| block(0, 0, at)).collect();
    let renamed = StoredBlock { name: BlockName(1), ..chain[1] };
    let [mamba, window] =
        [1, 2].map(|group| chain.iter().map(|at| Group::block(group, at.name)).collect());
    for event in [
        KvEvent::Stored { parent: None, tier: device, blocks: chain.clone() },
        KvEvent::Stored { parent: Some(chain[0].name), tier: device, blocks: vec![renamed] },
        KvEvent::Removed { tier: device, names: vec![chain[1].name] },
        KvEvent::Stored { parent: None, tier: device, blocks: window },
        KvEvent::Stored { parent: None, tier: device, blocks: mamba },
    ] {
        index.apply(source, 0, &event).expect("a source");
        assert_eq!(index.validate(), Ok(()));
    }
    let locals: Vec<_> = chain.iter().map(|at| at.local).collect();
    let find = |index: &Index| {
        let mut scratch = Scratch::default();
        let (key, tiers) = (QueryKey::Locals(&locals), TierSet::ALL);
        let prompt = Some(Prompt { block_size: 16, tokens: None });
        let query = Query { key, tiers, workers: None, minimum_overlap: 1, shared: None, prompt };
        index.find(query, &mut scratch);
        scratch.matches().iter().map(|at| (at.blocks, at.reuse)).collect::<Vec<_>>()
    };
    let found = find(&index);
    assert_eq!(found.iter().map(|at| at.0).collect::<Vec<_>>(), [1]);
    assert!(count_bits(&index) > 0);
    convert_all(&mut index);
    assert_eq!(find(&index), found);
}

/// Blocks that fit no kind any more have records. Their copies and answers stay the same.
#[test]
fn blocks_beyond_the_number_of_kinds_have_records() {
    let (mut both, sources) = new_index(CopyMode::Set);
    let (mut groups_only, _) = new_index(CopyMode::Set);
    let source = sources[0];
    let event = |blocks| KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
    let chain: Vec<_> = (0..CHAIN_BLOCKS).map(|at| block(0, 0, at)).collect();
    both.apply(source, 0, &event(chain.clone())).expect("a source");
    let grouped: Vec<_> = chain.iter().map(|at| Group::block(1, at.name)).collect();
    let mut apply = |event: &KvEvent, becomes_suspect: bool| {
        for index in [&mut both, &mut groups_only] {
            index.apply(source, 0, event).expect("a source");
            if becomes_suspect {
                index.mark_suspect(source);
            }
        }
        assert_eq!(both.validate(), Ok(()));
        assert_eq!(grouped_blocks(&mut both), grouped_blocks(&mut groups_only));
        count_bits(&both)
    };
    // The first kind has three blocks. Each loss of events makes one more kind.
    assert_eq!(apply(&event(grouped[..3].to_vec()), false), 3);
    for (at, block) in grouped.iter().enumerate().take(66).skip(3) {
        assert_eq!(apply(&event(vec![*block]), true), at + 1);
    }
    // There are 64 kinds: a new block and one of the first kind that is announced again have records.
    assert_eq!(apply(&event(vec![grouped[66]]), false), 66);
    assert_eq!(apply(&event(vec![grouped[0]]), false), 65);
    // The only block of a kind leaves the kind's number to the newest kind.
    assert_eq!(apply(&event(vec![grouped[65]]), false), 65);
    assert_eq!(apply(&event(vec![grouped[1]]), false), 64);
    let found = answers(&both);
    convert_all(&mut both);
    assert_eq!(found, answers(&both));
}

/// Also where the chain is too deep: nothing behind the mark is dropped for it.
#[test]
fn a_chain_that_is_too_deep_drops_nothing_of_a_further_group() {
    let limits = Limits { chain_blocks_max: 2, ..Limits::default() };
    let mut index = Index::new(limits);
    let worker = WorkerId::new("a").expect("a name");
    let source = index.add_source(&worker, "first", 0, CopyMode::Set).expect("a source");
    declare_groups(&mut index, source);
    let chain: Vec<_> = (0..3).map(|at| block(0, 0, at)).collect();
    let mut apply = |parent, blocks| {
        let event = KvEvent::Stored { parent, tier: Tier::Device, blocks };
        let counts = index.apply(source, 0, &event).expect("a source");
        assert_eq!(index.validate(), Ok(()));
        (counts.rejected, held_by(&mut index, "a"))
    };
    let (rejected, held) = apply(None, chain[..2].to_vec());
    assert_eq!(rejected, 0);
    let declared = held.iter().find(|(_, at)| is_grouped(at)).expect("a declaration");
    let ((_, name), (_, local, _)) = declared;
    let declaration = StoredBlock { name: *name, local: local.expect("a mark") };
    let mixed = vec![chain[2], declaration, chain[0]];
    assert_eq!(apply(Some(chain[1].name), mixed), (3, held));
}

/// A faulty publisher mixes blocks of the main group with others.
#[test]
fn blocks_behind_one_of_a_further_group_are_rejected() {
    let chain: Vec<_> = (0..4).map(|at| block(0, 0, at)).collect();
    let mut mixed = chain.clone();
    mixed.insert(2, Group::block(1, chain[1].name));
    for holders in 1..=SOURCES.len() {
        let (mut index, sources) = new_index(CopyMode::Set);
        let declarations = index.totals.grouped;
        for &source in &sources[..holders] {
            for blocks in [&mixed, &mixed] {
                let event =
                    KvEvent::Stored { parent: None, tier: Tier::Device, blocks: blocks.clone() };
                let counts = index.apply(source, 0, &event).expect("a source");
                assert_eq!((counts.rejected, counts.conflict), (3, 0), "{counts:?}");
                assert_eq!(index.validate(), Ok(()));
            }
        }
        assert_eq!((index.totals.grouped, count_bits(&index)), (declarations, 0));
    }
}

/// Blocks between the ends of the main group's blocks are found by their links from there, backwards.
#[test]
fn windows_of_small_blocks_are_served_as_far_as_their_links_reach() {
    const BLOCK_SIZE: u32 = 64;
    let (mut served_any, mut served_less) = (0, 0);
    for seed in 0..SEEDS {
        let mut draw = Draw(seed << 32 | 1);
        let parts = 2 << draw.below(4);
        let size = BLOCK_SIZE / u32::try_from(parts).expect("small");
        let window = 1 + u32::try_from(draw.below(200)).expect("small");
        let group =
            Group { number: 1, kind: GroupKind::Window, block_size: size, unit: size, window };
        let mut index = Index::new(Limits::default());
        let worker = WorkerId::new("a").expect("a name");
        let source = index.add_source(&worker, "first", 0, CopyMode::Set).expect("a source");
        let mut apply = |event| {
            index.apply(source, 0, &event).expect("a source");
        };
        let tier = Tier::Device;
        let stored = |blocks| KvEvent::Stored { parent: None, tier, blocks };
        let chain: Vec<_> = (0..12).map(|at| block(0, 0, at)).collect();
        apply(stored(vec![group.declaration()]));
        apply(stored(chain.clone()));
        let named = |at: u64| match at % parts {
            last if last == parts - 1 => chain[usize::try_from(at / parts).expect("small")].name,
            _ => BlockName(mix(at + 1_000)),
        };
        let count = chain.len() as u64 * parts;
        let blocks = (0..count).map(|at| Group::block(1, named(at)));
        apply(stored(blocks.collect()));
        let gone: BTreeSet<_> = (0..draw.below(8)).map(|_| draw.below(count)).collect();
        for &at in &gone {
            apply(KvEvent::Removed { tier, names: vec![Group::name(1, named(at))] });
        }
        // A block is found if no block is missing from it up to the end of the main group's block.
        let is_found = |at: u64| (at..=at - at % parts + parts - 1).all(|at| !gone.contains(&at));
        let needed = u64::from(window - 1).div_ceil(size.into());
        let serves = |length: &u64| {
            let end = length * parts;
            (end.saturating_sub(needed)..end).all(is_found)
        };
        let expected = (0..=chain.len() as u64).rev().find(serves).expect("no block is served");
        let locals: Vec<_> = chain.iter().map(|at| at.local).collect();
        let mut scratch = Scratch::default();
        index.find(
            Query {
                key: QueryKey::Locals(&locals),
                tiers: TierSet::ALL,
                workers: None,
                minimum_overlap: 0,
                shared: None,
                prompt: Some(Prompt { block_size: BLOCK_SIZE, tokens: None }),
            },
            &mut scratch,
        );
        let found: Vec<_> = scratch.matches().iter().map(|at| u64::from(at.blocks)).collect();
        assert!(
            found == [expected] || (expected == 0 && found.is_empty()),
            "seed {seed}: {found:?}, {expected}, {gone:?}, {group:?}"
        );
        served_any += usize::from(expected > 0);
        served_less += usize::from(expected < chain.len() as u64);
    }
    println!("{served_any} of {SEEDS} served, {served_less} not as a whole");
    assert!(served_any > 200 && served_less > 100);
}
