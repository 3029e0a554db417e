use super::*;
use crate::identity::SlotId;
use crate::layout::{BlockLayout, LayerOrder, LayoutConfig, LayoutError, LayoutForm};
use crate::sets::{AddressRange, BlockSetDescription, BlockSetId, BlockSetLayout, ContentId};
use crate::sets::{Fence, MemoryKind, SetMemory, TensorParallel};
use proptest::prelude::*;
use proptest::sample::select;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const CONFIG: LayoutConfig = LayoutConfig {
    num_blocks: 4,
    num_layers: 2,
    outer_dim: 2,
    page_size: 4,
    inner_dim: 8,
    dtype_width_bytes: 2,
    alignment_bytes: 1,
    base_offset_bytes: 0,
};
const FULL: LayoutForm = LayoutForm::FullyContiguous;
const BY_BLOCK: LayoutForm = LayoutForm::LayerSeparate(LayerOrder::BlockContiguous);
const BY_OUTER: LayoutForm = LayoutForm::LayerSeparate(LayerOrder::OuterContiguous);
const FORMS: [LayoutForm; 3] = [FULL, BY_BLOCK, BY_OUTER];

fn set(form: LayoutForm, config: LayoutConfig, tensor_parallel: TensorParallel) -> BlockSetLayout {
    let layout = form.layout(config).expect("a layout");
    let bytes = layout.allocation_bytes();
    let range = |at: u32| AddressRange { address: u64::from(at) * bytes, bytes };
    let ranges = (0..layout.allocations()).map(range).collect();
    let description = BlockSetDescription {
        id: BlockSetId(1),
        content: ContentId(1),
        tensor_parallel,
        form,
        config,
        memory: SetMemory { kind: MemoryKind::Dram, device_id: 0, ranges },
    };
    BlockSetLayout::new(description, Fence { epoch: 1, export: 1 }).expect("a set")
}

fn rank(rank: u32, size: u32) -> TensorParallel {
    TensorParallel { rank, size, replicas: 1 }
}

fn slots(blocks: &[u32]) -> Vec<SlotId> {
    blocks.iter().map(|&block| SlotId(block)).collect()
}

/// A plan between two single ranks with all heads, over the same blocks.
fn single(
    from: &BlockSetLayout,
    to: &BlockSetLayout,
    read: &[u32],
    written: &[u32],
    limits: &CopyLimits,
) -> Result<CopyPlan, CopyError> {
    let read = slots(read);
    let written = slots(written);
    let sources = [CopyRank { layout: from, blocks: &read }];
    CopyPlan::new(&sources, &[CopyRank { layout: to, blocks: &written }], limits)
}

/// region = 4 × 8 × 2 = 64 bytes; block = 256.
#[test]
fn what_touches_is_one_operation() {
    let [full, by_block, by_outer] = FORMS.map(|form| set(form, CONFIG, TensorParallel::SINGLE));
    let ops = |from, to, read: &[u32], written: &[u32]| {
        single(from, to, read, written, &CopyLimits::DEFAULT).expect("a plan").ops().len()
    };
    assert_eq!(ops(&full, &full, &[0, 1, 2, 3], &[0, 1, 2, 3]), 1);
    assert_eq!(ops(&full, &full, &[0, 1, 3], &[1, 2, 3]), 2);
    assert_eq!(ops(&full, &full, &[0, 1, 2], &[2, 1, 0]), 3, "the order is another one");
    assert_eq!(ops(&by_block, &by_block, &[0, 1], &[2, 3]), 2, "a layer each");
    assert_eq!(ops(&by_outer, &by_outer, &[0, 1], &[2, 3]), 4, "a layer and outer index each");
    assert_eq!(ops(&full, &by_outer, &[0, 1], &[2, 3]), 8, "no two touch on both sides");
    let padded = LayoutConfig { alignment_bytes: 512, ..CONFIG };
    let padded = set(FULL, padded, TensorParallel::SINGLE);
    assert_eq!(ops(&padded, &full, &[0, 1, 2], &[0, 1, 2]), 3, "padding lies between");
}

#[test]
fn long_operations_are_cut() {
    let full = set(FULL, CONFIG, TensorParallel::SINGLE);
    let blocks: &[u32] = &[0, 1, 2, 3];
    let limits = CopyLimits { op_bytes_max: 100, ..CopyLimits::DEFAULT };
    let plan = single(&full, &full, blocks, blocks, &limits).expect("a plan");
    assert_eq!(plan.bytes(), 1_024);
    let bytes: Vec<_> = plan.ops().iter().map(|op| op.bytes).collect();
    assert_eq!(bytes, [[100; 10].as_slice(), &[24]].concat());
    // The third operation begins in the first block and ends in the second.
    let third = plan.ops()[2].destination;
    assert_eq!((third.block, third.allocation, third.offset), (SlotId(0), 0, 200));
    assert_eq!(plan.ops()[3].source.block, SlotId(1));
}

/// Four ranks with 16 elements a token each become eight with 8: each destination takes half of one source's tokens.
#[test]
fn four_ranks_become_eight_and_back() {
    let wide = LayoutConfig { inner_dim: 16, ..CONFIG };
    let four: Vec<_> = (0..4).map(|at| set(FULL, wide, rank(at, 4))).collect();
    let eight: Vec<_> = (0..8).map(|at| set(BY_BLOCK, CONFIG, rank(at, 8))).collect();
    let blocks = slots(&[3, 1]);
    let of = |layout| CopyRank { layout, blocks: &blocks };
    let (four, eight): (Vec<_>, Vec<_>) =
        (four.iter().map(of).collect(), eight.iter().map(of).collect());
    let plan = CopyPlan::new(&four, &eight, &CopyLimits::DEFAULT).expect("a plan");
    // Blocks × layers × outers × tokens for each of the eight.
    assert_eq!(plan.ops().len(), 2 * 2 * 2 * 4 * 8);
    assert!(plan.ops().iter().all(|op| op.bytes == 16));
    assert!(plan.ops().iter().all(|op| op.source.rank == op.destination.rank / 2));
    let odd = plan.ops().iter().find(|op| op.destination.rank == 5).expect("it is written");
    assert_eq!((odd.source.block, odd.source.offset % 32), (SlotId(3), 16), "the second half");
    let back = CopyPlan::new(&eight, &four, &CopyLimits::DEFAULT).expect("a plan");
    assert_eq!(back.bytes(), plan.bytes());
    // A rank that fetches its part alone gets the same part.
    let part = CopyPlan::new(&four, &eight[5..6], &CopyLimits::DEFAULT).expect("a plan");
    let of_five: Vec<_> = plan.ops().iter().filter(|op| op.destination.rank == 5).collect();
    assert_eq!(part.ops().iter().collect::<Vec<_>>(), of_five);
    let missing = CopyPlan::new(&four[..2], &eight[4..], &CopyLimits::DEFAULT);
    assert_eq!(missing, Err(CopyError::MissingShard { shard: 2, rank: 4 }));
}

/// MLA: each rank has all heads. Destinations are distributed among the sources.
#[test]
fn ranks_that_hold_everything_are_read_in_turn() {
    let all = |size| {
        let of = |rank| set(FULL, CONFIG, TensorParallel { rank, size, replicas: size });
        (0..size).map(of).collect::<Vec<_>>()
    };
    let two = all(2);
    let four = all(4);
    let blocks = slots(&[0]);
    let of = |layout| CopyRank { layout, blocks: &blocks };
    let (two, four): (Vec<_>, Vec<_>) =
        (two.iter().map(of).collect(), four.iter().map(of).collect());
    let plan = CopyPlan::new(&two, &four, &CopyLimits::DEFAULT).expect("a plan");
    let ranks: Vec<_> = plan.ops().iter().map(|op| (op.source.rank, op.destination.rank)).collect();
    assert_eq!(ranks, [(0, 0), (1, 1), (0, 2), (1, 3)]);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let base = set(FULL, CONFIG, TensorParallel::SINGLE);
    let differs = |field, expected, found| {
        let side = Side::Destination;
        let rank = 0;
        CopyError::Differs { field, expected, side, rank, found }
    };
    let cases = [
        (LayoutConfig { num_layers: 3, ..CONFIG }, differs("num_layers", 2, 3)),
        (LayoutConfig { outer_dim: 1, ..CONFIG }, differs("outer_dim", 2, 1)),
        (LayoutConfig { dtype_width_bytes: 1, ..CONFIG }, differs("dtype_width_bytes", 2, 1)),
        (
            LayoutConfig { page_size: 6, ..CONFIG },
            CopyError::PageSizes { source_tokens: 4, destination_tokens: 6 },
        ),
        (
            LayoutConfig { inner_dim: 9, ..CONFIG },
            CopyError::InnerDims { source_elements: 8, destination_elements: 9 },
        ),
        (
            LayoutConfig { page_size: 8, ..CONFIG },
            CopyError::Tokens { side: Side::Destination, rank: 0, found: 16, expected: 8 },
        ),
    ];
    for (config, error) in cases {
        let other = set(FULL, config, TensorParallel::SINGLE);
        let plan = single(&base, &other, &[0, 1], &[0, 1], &CopyLimits::DEFAULT);
        assert_eq!(plan, Err(error));
    }
    let plan = |read, written, limits| single(&base, &base, read, written, &limits);
    let duplicate = CopyError::DuplicateBlock { rank: 0, block: SlotId(1) };
    assert_eq!(plan(&[0, 2], &[1, 1], CopyLimits::DEFAULT), Err(duplicate));
    assert!(plan(&[2, 2], &[1, 0], CopyLimits::DEFAULT).is_ok(), "a block may be read twice");
    let range = LayoutError::OutOfRange { field: "block", value: 4, count: 4 };
    assert_eq!(plan(&[4], &[0], CopyLimits::DEFAULT), Err(range.into()));
    assert_eq!(plan(&[0], &[4], CopyLimits::DEFAULT), Err(range.into()));
    assert_eq!(plan(&[], &[], CopyLimits::DEFAULT).expect("nothing to do").ops(), []);
    let limit = |limit, max| Err(CopyError::Limit { limit, max });
    let limits = CopyLimits { op_bytes_max: 0, ..CopyLimits::DEFAULT };
    assert_eq!(plan(&[0], &[0], limits), limit("op_bytes_max", 0));
    let limits = CopyLimits { ops_max: 1, ..CopyLimits::DEFAULT };
    assert_eq!(plan(&[0, 2], &[0, 1], limits), limit("ops_max", 1));
    let limits = CopyLimits { pieces_max: 3, ..CopyLimits::DEFAULT };
    assert_eq!(plan(&[0], &[0], limits), limit("pieces_max", 3));
}

#[test]
fn groups_that_disagree_are_refused_by_name() {
    let zero = set(FULL, CONFIG, rank(0, 2));
    let one = set(FULL, CONFIG, rank(1, 2));
    let blocks = slots(&[0]);
    let of = |layout| CopyRank { layout, blocks: &blocks };
    let plan = |from: &[CopyRank<'_>], to: &[CopyRank<'_>]| {
        CopyPlan::new(from, to, &CopyLimits::DEFAULT).expect_err("it is refused")
    };
    assert_eq!(plan(&[], &[of(&zero)]), CopyError::NoRanks { side: Side::Source });
    assert_eq!(plan(&[of(&zero)], &[]), CopyError::NoRanks { side: Side::Destination });
    let both = [of(&zero), of(&one)];
    let twice = CopyError::DuplicateRank { side: Side::Destination, rank: 1 };
    assert_eq!(plan(&both, &[of(&one), of(&one)]), twice);
    let other = set(FULL, CONFIG, rank(1, 4));
    let differs = |field, expected, found| {
        let side = Side::Source;
        let rank = 1;
        CopyError::Differs { field, expected, side, rank, found }
    };
    assert_eq!(plan(&[of(&zero), of(&other)], &both), differs("tp_size", 2, 4));
    let wide = set(FULL, LayoutConfig { inner_dim: 4, ..CONFIG }, rank(1, 2));
    assert_eq!(plan(&[of(&zero), of(&wide)], &both), differs("inner_dim", 8, 4));
    let paged = set(FULL, LayoutConfig { page_size: 8, ..CONFIG }, rank(1, 2));
    assert_eq!(plan(&[of(&zero), of(&paged)], &both), differs("page_size", 4, 8));
    let copies = set(FULL, CONFIG, TensorParallel { rank: 1, size: 2, replicas: 2 });
    assert_eq!(plan(&[of(&zero), of(&copies)], &both), differs("tp_replicas", 1, 2));
    let two = slots(&[0, 1]);
    let none = slots(&[]);
    let tokens = |found| CopyError::Tokens { side: Side::Source, rank: 1, found, expected: 4 };
    assert_eq!(plan(&[of(&zero), CopyRank { layout: &one, blocks: &two }], &both), tokens(8));
    assert_eq!(plan(&[of(&zero), CopyRank { layout: &one, blocks: &none }], &both), tokens(0));
}

/// Blocks of another model are never copied, even if every dimension agrees.
#[test]
fn other_content_is_refused() {
    let base = set(FULL, CONFIG, TensorParallel::SINGLE);
    let description = BlockSetDescription {
        id: base.id(),
        content: ContentId(2),
        tensor_parallel: base.tensor_parallel(),
        form: FULL,
        config: CONFIG,
        memory: base.memory().clone(),
    };
    let other = BlockSetLayout::new(description, base.fence()).expect("a set");
    let plan = single(&base, &other, &[0], &[0], &CopyLimits::DEFAULT);
    let side = Side::Destination;
    let rank = 0;
    let error = CopyError::Differs { field: "content", expected: 1, side, rank, found: 2 };
    assert_eq!(plan, Err(error));
}

/// One side of a random copy.
#[derive(Debug, Clone)]
struct Group {
    parts: u32,
    replicas: u32,
    page_size: u32,
    alignment: u32,
}

#[derive(Debug, Clone)]
struct Case {
    from: Group,
    to: Group,
    outer_dim: u32,
    num_layers: u32,
    width: u32,
    elements: u32,
    /// Counted in blocks of the larger page size.
    pages: u32,
    op_bytes_max: u64,
    seed: u64,
}

prop_compose! {
    fn groups()(parts in select(vec![1_u32, 2, 4, 8]), replicas in 1_u32..3, alignment in 0_u32..8)
        -> Group {
        Group { parts, replicas, page_size: 0, alignment }
    }
}

prop_compose! {
    fn cases()(
        mut from in groups(),
        mut to in groups(),
        (outer_dim, num_layers, pages) in (1_u32..=2, 1_u32..4, 1_u32..4),
        width in select(vec![1_u32, 2, 4]),
        elements in select(vec![8_u32, 16, 24]),
        (page, ratio, is_source_larger) in (1_u32..4, 1_u32..4, any::<bool>()),
        op_bytes_max in select(vec![1_u64, 7, 64, 1 << 20]),
        seed in any::<u64>(),
    ) -> Case {
        (from.page_size, to.page_size) =
            if is_source_larger { (page * ratio, page) } else { (page, page * ratio) };
        Case { from, to, outer_dim, num_layers, width, elements, pages, op_bytes_max, seed }
    }
}

/// A rank's set with its bytes: one vector per allocation.
struct Memory {
    layout: BlockSetLayout,
    blocks: Vec<SlotId>,
    bytes: Vec<Vec<u8>>,
}

impl Memory {
    fn group(case: &Case, group: &Group, rng: &mut ChaCha8Rng) -> Vec<Self> {
        let tokens = case.pages * case.from.page_size.max(case.to.page_size);
        let count = tokens / group.page_size;
        let size = group.parts * group.replicas;
        let of = |rank| {
            let config = LayoutConfig {
                num_blocks: count + 2,
                num_layers: case.num_layers,
                outer_dim: case.outer_dim,
                page_size: group.page_size,
                inner_dim: case.elements / group.parts,
                dtype_width_bytes: case.width,
                alignment_bytes: 1 << group.alignment,
                base_offset_bytes: rng.random_range(0..3) << group.alignment,
            };
            let parallel = TensorParallel { rank, size, replicas: group.replicas };
            let layout = set(FORMS[rng.random_range(0..3)], config, parallel);
            let mut blocks: Vec<_> = (0..count + 2).map(SlotId).collect();
            if rng.random_bool(0.5) {
                blocks.shuffle(rng);
            }
            blocks.truncate(count as usize);
            let bytes = layout.memory().ranges.iter().map(|at| vec![0; index(at.bytes)]).collect();
            Self { layout, blocks, bytes }
        };
        (0..size).map(of).collect()
    }

    /// Every byte to copy: its allocation and offset, and its position among the tokens' bytes. Iterates over single
    /// elements, without using plans.
    fn each(&self, mut see: impl FnMut(usize, usize, [u32; 5])) {
        let config = *self.layout.config();
        let first = self.layout.tensor_parallel().shard() * config.inner_dim;
        for (number, block) in (0..).zip(&self.blocks) {
            for (layer, outer) in regions(&config) {
                let region = self.layout.layout().region(block.0, layer, outer).expect("in range");
                let width = config.dtype_width_bytes;
                let inner = config.inner_dim;
                for at in 0..config.page_size * inner * width {
                    let element = at / width;
                    let byte = at % width;
                    let token = element / inner;
                    let element = element % inner;
                    let token = number * config.page_size + token;
                    let what = [layer, outer, token, first + element, byte];
                    see(region.allocation as usize, index(region.offset + u64::from(at)), what);
                }
            }
        }
    }
}

/// Each combination of layer and outer index.
fn regions(config: &LayoutConfig) -> impl Iterator<Item = (u32, u32)> {
    let outers = config.outer_dim;
    (0..config.num_layers).flat_map(move |layer| (0..outers).map(move |outer| (layer, outer)))
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("tests are small")
}

/// The expected byte at a position of the tokens, independent of the rank.
fn content(seed: u64, what: [u32; 5]) -> u8 {
    let bytes: Vec<u8> = what.iter().flat_map(|at| at.to_le_bytes()).collect();
    xxhash_rust::xxh3::xxh3_64_with_seed(&bytes, seed).to_le_bytes()[0]
}

/// Some of the ranks in random order. If `is_source`, at least one for each part of the heads.
fn chosen<'a>(group: &'a [Memory], is_source: bool, rng: &mut ChaCha8Rng) -> Vec<&'a Memory> {
    let mut shuffled: Vec<_> = group.iter().collect();
    shuffled.shuffle(rng);
    let mut kept: Vec<&Memory> = Vec::new();
    for rank in shuffled {
        let shard = rank.layout.tensor_parallel().shard();
        let has = |at: &&Memory| at.layout.tensor_parallel().shard() == shard;
        let is_needed = if is_source { !kept.iter().any(has) } else { kept.is_empty() };
        if is_needed || rng.random_bool(0.5) {
            kept.push(rank);
        }
    }
    kept
}

fn check(case: &Case) {
    let rng = &mut ChaCha8Rng::seed_from_u64(case.seed);
    let mut from = Memory::group(case, &case.from, rng);
    let to = Memory::group(case, &case.to, rng);
    for rank in &mut from {
        let mut bytes = rank.bytes.clone();
        rank.each(|allocation, offset, what| bytes[allocation][offset] = content(case.seed, what));
        rank.bytes = bytes;
    }
    let sources = chosen(&from, true, rng);
    let destinations = chosen(&to, false, rng);
    let limits = CopyLimits { op_bytes_max: case.op_bytes_max, ..CopyLimits::DEFAULT };
    let ranks = |of: &[&'_ Memory]| -> Vec<(BlockSetLayout, Vec<SlotId>)> {
        of.iter().map(|at| (at.layout.clone(), at.blocks.clone())).collect()
    };
    let read = ranks(&sources);
    let write = ranks(&destinations);
    fn of(list: &[(BlockSetLayout, Vec<SlotId>)]) -> Vec<CopyRank<'_>> {
        list.iter().map(|(layout, blocks)| CopyRank { layout, blocks }).collect()
    }
    let plan = CopyPlan::new(&of(&read), &of(&write), &limits).expect("a plan");

    let mut written: Vec<Vec<Vec<u8>>> = to.iter().map(|at| at.bytes.clone()).collect();
    let mut writes = written.clone();
    let mut bytes = 0;
    for op in plan.ops() {
        assert!(op.bytes > 0 && op.bytes <= case.op_bytes_max);
        bytes += op.bytes;
        assert!(sources.iter().any(|at| at.layout.tensor_parallel().rank == op.source.rank));
        let at = &from[op.source.rank as usize].bytes[op.source.allocation as usize];
        let rank = op.destination.rank as usize;
        let allocation = op.destination.allocation as usize;
        for byte in 0..op.bytes {
            let offset = index(op.destination.offset + byte);
            written[rank][allocation][offset] = at[index(op.source.offset + byte)];
            writes[rank][allocation][offset] += 1;
        }
        check_block(&from, &op.source);
        check_block(&to, &op.destination);
    }
    assert_eq!(plan.bytes(), bytes);
    for destination in &of(&write) {
        let rank = destination.layout.tensor_parallel().rank;
        for source in &of(&read) {
            let part = CopyPlan::part(*source, *destination, &limits).expect("a part");
            let holder = source.layout.tensor_parallel().rank;
            let is_its = |op: &&CopyOp| op.source.rank == holder && op.destination.rank == rank;
            let expected: u64 = plan.ops().iter().filter(is_its).map(|op| op.bytes).sum();
            // A rank that was not chosen has the same part as the chosen ranks with the same heads.
            assert!(expected == 0 || part.bytes() == expected, "{source:?}");
            for op in part.ops() {
                let at = &from[holder as usize].bytes[op.source.allocation as usize];
                let read = &at[index(op.source.offset)..index(op.source.offset + op.bytes)];
                let to = &written[rank as usize][op.destination.allocation as usize];
                let offset = op.destination.offset;
                assert!(to[index(offset)..index(offset + op.bytes)] == *read, "another part");
            }
        }
    }
    for destination in &destinations {
        let rank = destination.layout.tensor_parallel().rank as usize;
        let mut expected: Vec<Vec<u8>> = destination.bytes.clone();
        let mut once = expected.clone();
        destination.each(|allocation, offset, what| {
            expected[allocation][offset] = content(case.seed, what);
            once[allocation][offset] = 1;
        });
        assert!(written[rank] == expected, "wrong bytes at rank {rank} of {case:?}");
        assert!(writes[rank] == once, "not once at rank {rank} of {case:?}");
        writes[rank].iter_mut().for_each(|bytes| bytes.fill(0));
    }
    assert!(writes.iter().flatten().flatten().all(|count| *count == 0), "nobody else is written");
}

/// The block of a position must be the block of its first byte.
fn check_block(group: &[Memory], place: &CopyPlace) {
    let layout = group[place.rank as usize].layout.layout();
    let region = |(layer, outer)| layout.region(place.block.0, layer, outer).expect("it exists");
    let is_in = regions(layout.config()).map(region).any(|region| {
        let end = region.offset + region.bytes;
        region.allocation == place.allocation && (region.offset..end).contains(&place.offset)
    });
    assert!(is_in, "{place:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_plan_equals_a_naive_copy(case in cases()) {
        check(&case);
    }
}
