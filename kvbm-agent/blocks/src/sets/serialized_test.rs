use super::*;
use crate::identity::SlotId;
use crate::layout::{BlockLayout, LayerOrder, LayoutConfig, LayoutError, LayoutForm};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

const CONFIG: LayoutConfig = LayoutConfig {
    num_blocks: 3,
    num_layers: 2,
    outer_dim: 2,
    page_size: 4,
    inner_dim: 5,
    dtype_width_bytes: 2,
    alignment_bytes: 64,
    base_offset_bytes: 128,
};
const FORMS: [LayoutForm; 3] = [
    LayoutForm::FullyContiguous,
    LayoutForm::LayerSeparate(LayerOrder::BlockContiguous),
    LayoutForm::LayerSeparate(LayerOrder::OuterContiguous),
];
const FENCE: Fence = Fence { epoch: 7, export: 3 };

/// A set with consecutive allocations and `gap` bytes between them.
fn described(form: LayoutForm, config: LayoutConfig, gap: u64) -> BlockSetDescription {
    let layout = form.layout(config).expect("a layout");
    let bytes = layout.allocation_bytes();
    let range = |at: u32| AddressRange { address: 4_096 + u64::from(at) * (bytes + gap), bytes };
    BlockSetDescription {
        id: BlockSetId(9),
        content: ContentId(0xC0FFEE),
        tensor_parallel: TensorParallel { rank: 5, size: 8, replicas: 2 },
        form,
        config,
        memory: SetMemory {
            kind: MemoryKind::Vram,
            device_id: 1,
            ranges: (0..layout.allocations()).map(range).collect(),
        },
    }
}

fn layout(form: LayoutForm) -> BlockSetLayout {
    BlockSetLayout::new(described(form, CONFIG, 0), FENCE).expect("a layout")
}

/// The bytes with a matching checksum.
fn sealed(mut bytes: Vec<u8>) -> SerializedBlockLayout {
    let body = bytes.len().saturating_sub(8);
    bytes.truncate(body);
    bytes.extend(xxh3_64(&bytes).to_le_bytes());
    SerializedBlockLayout(bytes)
}

#[test]
fn bytes_are_as_documented() {
    let SerializedBlockLayout(bytes) = layout(FORMS[2]).serialize();
    assert_eq!(bytes.len(), 132 + 2 * 16 + 8);
    assert_eq!(bytes[..8], [b'K', b'V', b'B', b'L', 1, 0, 2, 0]);
    assert_eq!(bytes[8..12], 172_u32.to_le_bytes());
    assert_eq!(bytes[12..20], 9_u64.to_le_bytes(), "id");
    assert_eq!(bytes[20..28], 7_u64.to_le_bytes(), "epoch");
    assert_eq!(bytes[44..48], 5_u32.to_le_bytes(), "rank");
    assert_eq!(bytes[80..88], 64_u64.to_le_bytes(), "alignment");
    assert_eq!(bytes[96..104], 64_u64.to_le_bytes(), "block stride");
    assert_eq!(bytes[104..112], [0; 8], "layers are separate");
    assert_eq!(bytes[112..120], 192_u64.to_le_bytes(), "outer stride");
    assert_eq!(bytes[132..140], 4_096_u64.to_le_bytes(), "the first address");
}

/// A peer computes the addresses from the layout's offsets: base address + base offset + block + layer + outer.
#[test]
fn regions_are_in_the_owners_addresses() {
    let [whole, separate, _] = FORMS.map(layout);
    let at = |address| Ok(AddressRange { address, bytes: 40 });
    assert_eq!(whole.region(SlotId(2), 1, 1), at(4_096 + 128 + 2 * 192 + 80 + 40));
    let layer_bytes = 128 + 3 * 128;
    assert_eq!(separate.region(SlotId(1), 1, 1), at(4_096 + layer_bytes + 128 + 128 + 40));
    let descriptors: Vec<_> = whole.descriptors(&[SlotId(1), SlotId(0)]).collect();
    assert_eq!(descriptors.len(), 2 * 2 * 2);
    assert_eq!(
        (descriptors[0].block, descriptors[0].layer, descriptors[0].outer),
        (SlotId(1), 0, 0)
    );
    assert_eq!(
        (descriptors[3].block, descriptors[3].layer, descriptors[3].outer),
        (SlotId(1), 1, 1)
    );
    assert_eq!(Ok(descriptors[7].range), whole.region(SlotId(0), 1, 1));
    let error = LayoutError::OutOfRange { field: "block", value: 3, count: 3 };
    assert_eq!(whole.region(SlotId(3), 0, 0), Err(error));
    let bytes = whole.memory().ranges[0].bytes;
    assert_eq!(whole.addresses(0, bytes, 1), None);
    assert_eq!(whole.addresses(0, u64::MAX, 2), None);
    assert_eq!(whole.addresses(1, 0, 1), None);
}

#[test]
fn descriptions_that_contradict_themselves_are_refused_by_name() {
    type Change = fn(&mut BlockSetDescription);
    let large =
        |field, value, max| BlockSetError::Layout(LayoutError::TooLarge { field, value, max });
    let cases: [(Change, BlockSetError); 12] = [
        (
            |at| at.tensor_parallel.size = 0,
            BlockSetError::Layout(LayoutError::Zero { field: "tp_size" }),
        ),
        (|at| at.tensor_parallel.size = 1_025, large("tp_size", 1_025, 1_024)),
        (|at| at.tensor_parallel.rank = 8, large("tp_rank", 8, 7)),
        (
            |at| at.tensor_parallel.replicas = 0,
            BlockSetError::Layout(LayoutError::Zero { field: "tp_replicas" }),
        ),
        (|at| at.tensor_parallel.replicas = 3, BlockSetError::Replicas { replicas: 3, size: 8 }),
        (|at| at.config.num_layers = 1_025, large("num_layers", 1_025, 1_024)),
        (
            |at| at.config.page_size = 0,
            BlockSetError::Layout(LayoutError::Zero { field: "page_size" }),
        ),
        (|at| at.config.num_layers = 3, BlockSetError::Regions { stated: 2, needed: 3 }),
        (
            |at| at.memory.ranges[1].bytes -= 1,
            BlockSetError::RegionTooSmall { region: 1, bytes: 511, needed: 512 },
        ),
        (
            |at| at.memory.ranges[1].address = u64::MAX - 510,
            BlockSetError::RegionOverflow { region: 1 },
        ),
        (
            |at| at.memory.ranges[0].address += 1,
            BlockSetError::RegionsOverlap { first: 0, second: 1 },
        ),
        (
            |at| at.memory.ranges[1].address = 0,
            BlockSetError::RegionsOverlap { first: 1, second: 0 },
        ),
    ];
    for (index, (change, error)) in cases.into_iter().enumerate() {
        let mut description = described(FORMS[1], CONFIG, 0);
        if index == 11 {
            description.memory.ranges[0].address = 511;
        }
        change(&mut description);
        assert_eq!(BlockSetLayout::new(description, FENCE), Err(error), "case {index}");
    }
}

#[test]
fn bytes_that_are_no_layout_are_refused_by_name() {
    let whole = layout(FORMS[0]).serialize().0;
    let changed = |at: usize, with: &[u8]| {
        let mut bytes = whole.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    let contradiction =
        |field, stated, computed| DeserializeError::Contradiction { field, stated, computed };
    let cases = [
        (changed(0, b"X"), DeserializeError::Magic),
        (changed(4, &[2]), DeserializeError::Version { version: 2 }),
        (changed(6, &[3]), DeserializeError::Code { field: "form", value: 3 }),
        (changed(7, &[4]), DeserializeError::Code { field: "memory_kind", value: 4 }),
        (changed(8, &[157]), contradiction("length", 157, 156)),
        (changed(96, &[1]), contradiction("block_stride", 1, 192)),
        (changed(104, &[0]), contradiction("layer_stride", 0, 80)),
        (changed(112, &[41]), contradiction("outer_stride", 41, 40)),
        (changed(128, &[2]), contradiction("regions", 2, 1)),
        (changed(128, &[0xFF; 4]), contradiction("regions", u32::MAX.into(), 1)),
        (
            changed(56, &[0; 4]),
            BlockSetError::from(LayoutError::Zero { field: "num_blocks" }).into(),
        ),
        (changed(140, &[0xFF; 8]), BlockSetError::RegionOverflow { region: 0 }.into()),
    ];
    for (bytes, error) in cases {
        assert_eq!(sealed(bytes).deserialize(), Err(error));
    }
    let mut bytes = whole.clone();
    bytes[20] ^= 1;
    let refused = SerializedBlockLayout(bytes).deserialize();
    assert!(matches!(refused, Err(DeserializeError::Checksum { .. })));
    let long = SerializedBlockLayout(vec![0; SERIALIZED_LAYOUT_BYTES_MAX + 1]).deserialize();
    assert!(matches!(long, Err(DeserializeError::TooLong { .. })));
    // One byte more than complete ranges.
    let mut odd = whole.clone();
    odd.insert(148, 0);
    odd[8] += 1;
    assert_eq!(sealed(odd).deserialize(), Err(contradiction("checksum_bytes", 9, 8)));
}

#[test]
fn every_prefix_is_refused() {
    let whole = layout(FORMS[1]).serialize().0;
    for length in 0..whole.len() {
        let cut = SerializedBlockLayout(whole[..length].to_vec()).deserialize();
        let error = cut.expect_err("it is cut off");
        let is_named = matches!(
            error,
            DeserializeError::Truncated { .. }
                | DeserializeError::Contradiction { field: "length", .. }
        );
        assert!(is_named, "{length}: {error}");
    }
}

prop_compose! {
    fn descriptions()(
        form in 0_usize..3,
        (num_blocks, num_layers, outer_dim) in (1_u32..7, 1_u32..5, 1_u32..=2),
        (page_size, inner_dim, width) in (1_u32..9, 1_u32..9, 0_u32..4),
        (alignment, base) in (0_u32..9, 0_u64..4),
        (rank, replicas, parts) in (0_u32..4, 1_u32..4, 4_u32..9),
        (id, content, device_id, gap, kind) in
            (any::<u64>(), any::<u64>(), any::<u64>(), 0_u64..99, 0_usize..4),
    ) -> BlockSetDescription {
        let config = LayoutConfig {
            num_blocks, num_layers, outer_dim, page_size, inner_dim,
            dtype_width_bytes: 1 << width,
            alignment_bytes: 1 << alignment,
            base_offset_bytes: base << alignment,
        };
        let mut description = described(FORMS[form], config, gap);
        description.id = BlockSetId(id);
        description.content = ContentId(content);
        description.tensor_parallel = TensorParallel { rank, size: replicas * parts, replicas };
        description.memory.kind = MemoryKind::ALL[kind];
        description.memory.device_id = device_id;
        description
    }
}

/// All regions are within the stated memory and disjoint, checked with 128-bit arithmetic. `blocks` limits the work if
/// the bytes state many blocks.
fn check_regions(layout: &BlockSetLayout, blocks: u32) {
    let config = layout.config();
    let last = config.num_blocks - 1;
    let mut taken = Vec::new();
    for block in (0..config.num_blocks.min(blocks)).chain([last]) {
        for layer in 0..config.num_layers {
            for outer in 0..config.outer_dim {
                let range = layout.region(SlotId(block), layer, outer).expect("a region");
                let end = u128::from(range.address) + u128::from(range.bytes);
                let is_inside = |memory: &AddressRange| {
                    range.address >= memory.address
                        && end <= u128::from(memory.address) + u128::from(memory.bytes)
                };
                assert!(layout.memory().ranges.iter().any(is_inside), "{range:?} of {layout:?}");
                taken.push((range.address, end));
            }
        }
    }
    taken.sort_unstable();
    taken.dedup();
    for pair in taken.windows(2) {
        assert!(pair[0].1 <= u128::from(pair[1].0), "{pair:?} of {layout:?}");
    }
}

proptest! {
    #[test]
    fn layouts_come_back_as_they_were(description in descriptions(), epoch: u64, export: u64) {
        let layout = BlockSetLayout::new(description, Fence { epoch, export }).expect("a layout");
        let bytes = layout.serialize();
        prop_assert!(bytes.0.len() <= SERIALIZED_LAYOUT_BYTES_MAX);
        let again = bytes.deserialize().expect("a layout");
        check_regions(&again, u32::MAX);
        prop_assert_eq!(again, layout);
    }

    #[test]
    fn any_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(SerializedBlockLayout(bytes.clone()).deserialize().is_err());
        let mut tail = b"KVBL\x01\x00\x00\x00".to_vec();
        tail.extend(&bytes);
        prop_assert!(SerializedBlockLayout(tail).deserialize().is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_096))]

    /// Changes with a matching checksum, which pass the first checks.
    #[test]
    fn changed_bytes_never_reach_beyond_the_memory(
        description in descriptions(),
        changes in proptest::collection::vec((12_usize..300, any::<u8>(), any::<bool>()), 1..5),
    ) {
        let mut bytes = BlockSetLayout::new(description, FENCE).expect("a layout").serialize().0;
        for (at, value, is_small) in changes {
            let at = 4 + at % (bytes.len() - 4);
            bytes[at] = if is_small { bytes[at].wrapping_add(value % 4) } else { value };
        }
        prop_assert!(SerializedBlockLayout(bytes.clone()).deserialize().is_err() || bytes == sealed(bytes.clone()).0);
        if let Ok(layout) = sealed(bytes).deserialize() {
            check_regions(&layout, 8);
        }
    }
}
