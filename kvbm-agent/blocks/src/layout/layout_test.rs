use super::*;
use proptest::prelude::*;

const SMALL: LayoutConfig = LayoutConfig {
    num_blocks: 3,
    num_layers: 2,
    outer_dim: 2,
    page_size: 4,
    inner_dim: 5,
    dtype_width_bytes: 2,
    alignment_bytes: 64,
    base_offset_bytes: 128,
};

fn all(config: LayoutConfig) -> [Box<dyn BlockLayout>; 3] {
    [
        Box::new(FullyContiguous::new(config).expect("a layout")),
        Box::new(LayerSeparate::new(config, LayerOrder::BlockContiguous).expect("a layout")),
        Box::new(LayerSeparate::new(config, LayerOrder::OuterContiguous).expect("a layout")),
    ]
}

/// region = 4 × 5 × 2 = 40; layer = 80; two layers = 160; aligned to 64 = 192.
#[test]
fn fully_contiguous_follows_the_formula() {
    let layout = FullyContiguous::new(SMALL).expect("a layout");
    assert_eq!(layout.strides(), Strides { block: 192, layer: Some(80), outer: 40 });
    assert_eq!(layout.total_bytes(), 128 + 2 * 192 + 160);
    assert_eq!(
        layout.region(2, 1, 1),
        Ok(Region { allocation: 0, offset: 128 + 2 * 192 + 80 + 40, bytes: 40 })
    );
    assert_eq!(layout.block_bytes(), 160);
}

/// Both regions of a block = 80, aligned = 128; one region aligned = 64, three blocks of it = 192.
#[test]
fn layer_separate_follows_the_formulas() {
    let [_, block, outer] = all(SMALL);
    assert_eq!(block.strides(), Strides { block: 128, layer: None, outer: 40 });
    assert_eq!((block.allocations(), block.allocation_bytes()), (2, 128 + 3 * 128));
    assert_eq!(
        block.region(1, 1, 1),
        Ok(Region { allocation: 1, offset: 128 + 128 + 40, bytes: 40 })
    );
    assert_eq!(outer.strides(), Strides { block: 64, layer: None, outer: 192 });
    assert_eq!((outer.allocations(), outer.allocation_bytes()), (2, 128 + 2 * 192));
    assert_eq!(
        outer.region(1, 0, 1),
        Ok(Region { allocation: 0, offset: 128 + 64 + 192, bytes: 40 })
    );
    assert_eq!(outer.total_bytes(), 2 * (128 + 2 * 192));
}

/// One layer of Llama-3-8B: 8 heads of 128 as bf16, 16 tokens a block.
#[test]
fn a_real_model_has_the_size_that_its_card_states() {
    let config = LayoutConfig {
        num_blocks: 1_000,
        num_layers: 32,
        outer_dim: 2,
        page_size: 16,
        inner_dim: 1_024,
        dtype_width_bytes: 2,
        alignment_bytes: 4_096,
        base_offset_bytes: 0,
    };
    let layout = FullyContiguous::new(config).expect("a layout");
    assert_eq!(layout.block_bytes(), 2 << 20);
    assert_eq!(layout.total_bytes(), 1_000 * (2 << 20));
}

#[test]
fn every_field_is_refused_by_its_name() {
    type Change = fn(&mut LayoutConfig);
    let zero = |field| LayoutError::Zero { field };
    let cases: [(Change, LayoutError); 12] = [
        (|c| c.num_blocks = 0, zero("num_blocks")),
        (|c| c.num_layers = 0, zero("num_layers")),
        (|c| c.outer_dim = 0, zero("outer_dim")),
        (|c| c.page_size = 0, zero("page_size")),
        (|c| c.inner_dim = 0, zero("inner_dim")),
        (|c| c.dtype_width_bytes = 0, zero("dtype_width_bytes")),
        (|c| c.alignment_bytes = 0, zero("alignment_bytes")),
        (|c| c.outer_dim = 3, LayoutError::TooLarge { field: "outer_dim", value: 3, max: 2 }),
        (
            |c| c.dtype_width_bytes = 32,
            LayoutError::TooLarge { field: "dtype_width_bytes", value: 32, max: 16 },
        ),
        (
            |c| c.dtype_width_bytes = 3,
            LayoutError::NotPowerOfTwo { field: "dtype_width_bytes", value: 3 },
        ),
        (
            |c| c.alignment_bytes = 48,
            LayoutError::NotPowerOfTwo { field: "alignment_bytes", value: 48 },
        ),
        (
            |c| c.base_offset_bytes = 32,
            LayoutError::Misaligned { field: "base_offset_bytes", value: 32, alignment: 64 },
        ),
    ];
    for (change, error) in cases {
        let mut config = SMALL;
        change(&mut config);
        assert_eq!(FullyContiguous::new(config), Err(error));
        assert_eq!(LayerSeparate::new(config, LayerOrder::BlockContiguous), Err(error));
    }
}

#[test]
fn sizes_beyond_64_bits_are_refused() {
    let huge = LayoutConfig {
        num_blocks: u32::MAX,
        num_layers: u32::MAX,
        page_size: u32::MAX,
        inner_dim: u32::MAX,
        dtype_width_bytes: 16,
        ..SMALL
    };
    let overflow = |field| LayoutError::Overflow { field };
    assert_eq!(FullyContiguous::new(huge), Err(overflow("region_bytes")));
    let blocks = LayoutConfig { page_size: 1 << 16, inner_dim: 1 << 16, ..huge };
    assert_eq!(FullyContiguous::new(blocks), Err(overflow("block_bytes")));
    let total = LayoutConfig { num_layers: 4, ..blocks };
    assert_eq!(FullyContiguous::new(total), Err(overflow("total_bytes")));
    let order = LayerOrder::OuterContiguous;
    assert_eq!(LayerSeparate::new(total, order), Err(overflow("outer_stride")));
    let base = LayoutConfig { base_offset_bytes: u64::MAX - 63, ..SMALL };
    assert_eq!(FullyContiguous::new(base), Err(overflow("total_bytes")));
    let aligned = LayoutConfig { alignment_bytes: 1 << 63, base_offset_bytes: 0, ..SMALL };
    assert_eq!(FullyContiguous::new(aligned), Err(overflow("total_bytes")));
}

#[test]
fn regions_out_of_range_are_refused() {
    for layout in all(SMALL) {
        for (block, layer, outer, field) in
            [(3, 0, 0, "block"), (0, 2, 0, "layer"), (0, 0, 2, "outer")]
        {
            let error = layout.region(block, layer, outer).expect_err("out of range");
            assert!(matches!(error, LayoutError::OutOfRange { field: at, .. } if at == field));
        }
    }
}

/// Expected offsets, computed by counting the bytes in order.
fn enumerated(config: &LayoutConfig, form: usize) -> Vec<((u32, u32, u32), Region)> {
    let region = u64::from(config.page_size * config.inner_dim * config.dtype_width_bytes);
    let blocks = config.num_blocks;
    let layers = config.num_layers;
    let outers = config.outer_dim;
    let mut found = Vec::new();
    let mut at = config.base_offset_bytes;
    let mut take = |key, allocation, at: &mut u64| {
        found.push((key, Region { allocation, offset: *at, bytes: region }));
        *at += region;
    };
    let pad = |at: &mut u64| {
        while !at.is_multiple_of(config.alignment_bytes) {
            *at += 1;
        }
    };
    match form {
        0 => {
            for block in 0..blocks {
                pad(&mut at);
                for layer in 0..layers {
                    for outer in 0..outers {
                        take((block, layer, outer), 0, &mut at);
                    }
                }
            }
        }
        1 => {
            for layer in 0..layers {
                at = config.base_offset_bytes;
                for block in 0..blocks {
                    pad(&mut at);
                    for outer in 0..outers {
                        take((block, layer, outer), layer, &mut at);
                    }
                }
            }
        }
        _ => {
            for layer in 0..layers {
                at = config.base_offset_bytes;
                for outer in 0..outers {
                    for block in 0..blocks {
                        pad(&mut at);
                        take((block, layer, outer), layer, &mut at);
                    }
                }
            }
        }
    }
    found
}

/// region = 40; two regions = 80, aligned = 128; a single region aligned = 64.
#[test]
fn a_block_in_a_slot_has_its_allocations_one_behind_the_other() {
    let of = |form| BlockInSlot::new(form, SMALL).expect("a block");
    let full = of(LayoutForm::FullyContiguous);
    assert_eq!((full.bytes(), full.padding()), (160, vec![]), "the slot is aligned, not its end");
    let by_block = of(LayoutForm::LayerSeparate(LayerOrder::BlockContiguous));
    assert_eq!((by_block.bytes(), by_block.allocation_stride()), (256, 128));
    assert_eq!(by_block.padding(), [80..128, 208..256]);
    let by_outer = of(LayoutForm::LayerSeparate(LayerOrder::OuterContiguous));
    assert_eq!((by_outer.bytes(), by_outer.allocation_stride()), (256, 128));
    assert_eq!(by_outer.padding(), [40..64, 104..128, 168..192, 232..256]);
    let tight = LayoutConfig { alignment_bytes: 1, base_offset_bytes: 0, ..SMALL };
    let tight = BlockInSlot::new(LayoutForm::LayerSeparate(LayerOrder::BlockContiguous), tight);
    assert_eq!(tight.expect("a block").padding(), []);
    let huge = LayoutConfig { alignment_bytes: 1 << 63, ..SMALL };
    let refused = BlockInSlot::new(LayoutForm::LayerSeparate(LayerOrder::BlockContiguous), huge);
    assert_eq!(refused, Err(LayoutError::Overflow { field: "total_bytes" }));
}

prop_compose! {
    fn configs()(
        num_blocks in 1u32..7,
        num_layers in 1u32..5,
        outer_dim in 1u32..=2,
        page_size in 1u32..9,
        inner_dim in 1u32..9,
        width in 0u32..4,
        alignment in 0u32..9,
        base in 0u64..4,
    ) -> LayoutConfig {
        LayoutConfig {
            num_blocks, num_layers, outer_dim, page_size, inner_dim,
            dtype_width_bytes: 1 << width,
            alignment_bytes: 1 << alignment,
            base_offset_bytes: base << alignment,
        }
    }
}

proptest! {
    #[test]
    fn regions_are_where_counting_puts_them(config in configs()) {
        for (form, layout) in all(config).iter().enumerate() {
            let mut ends = vec![Vec::new(); layout.allocations() as usize];
            for ((block, layer, outer), region) in enumerated(&config, form) {
                prop_assert_eq!(layout.region(block, layer, outer), Ok(region));
                prop_assert!(region.offset >= config.base_offset_bytes);
                prop_assert!(region.offset + region.bytes <= layout.allocation_bytes());
                ends[region.allocation as usize].push((region.offset, region.bytes));
                if layer == 0 && outer == 0 {
                    prop_assert_eq!(region.offset % config.alignment_bytes, 0);
                }
            }
            for regions in &mut ends {
                regions.sort_unstable();
                for pair in regions.windows(2) {
                    prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:?} overlap", pair);
                }
            }
        }
    }

    /// Each byte of a slot is either in exactly one region, or padding.
    #[test]
    fn regions_and_padding_cover_a_slot(config in configs(), form in 0..3_usize) {
        let form = [
            LayoutForm::FullyContiguous,
            LayoutForm::LayerSeparate(LayerOrder::BlockContiguous),
            LayoutForm::LayerSeparate(LayerOrder::OuterContiguous),
        ][form];
        let block = BlockInSlot::new(form, config).expect("a block");
        let mut covered = vec![0; usize::try_from(block.bytes()).expect("it is small")];
        let mut cover = |from: u64, to: u64| {
            (from..to).for_each(|at| covered[usize::try_from(at).expect("it is small")] += 1);
        };
        for layer in 0..config.num_layers {
            for outer in 0..config.outer_dim {
                let at = block.layout().region(0, layer, outer).expect("a region");
                let start = u64::from(at.allocation) * block.allocation_stride() + at.offset;
                cover(start, start + at.bytes);
            }
        }
        block.padding().iter().for_each(|at| cover(at.start, at.end));
        prop_assert!(covered.iter().all(|times| *times == 1));
    }
}
