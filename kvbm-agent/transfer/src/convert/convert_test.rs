use super::*;
use crate::wire::BlockDescription;
use std::sync::Arc;

/// Two tokens of four one-byte elements, in two layers.
fn description(rank: u32, size: u32) -> BlockDescription {
    BlockDescription {
        model: "m".to_owned(),
        block_size: 2,
        block_bytes: u64::from(2 * 2 * 4 / size),
        layers: 2,
        outer_dim: 1,
        inner_dim: 4 / size,
        dtype_width_bytes: 1,
        alignment_bytes: 1,
        tp_rank: rank,
        tp_size: size,
        tp_replicas: 1,
        ..Default::default()
    }
}

fn plan(owner: &BlockDescription, receiver: &BlockDescription) -> Arc<PartPlan> {
    match Exchange::new(owner, receiver).expect("an exchange") {
        Exchange::Part(plan) => plan,
        Exchange::Whole => panic!("it is the same"),
    }
}

#[test]
fn equal_layouts_exchange_whole_blocks() {
    let half = description(1, 2);
    assert_eq!(Exchange::new(&half, &half), Ok(Exchange::Whole));
    // Ranks with the same heads have the same blocks.
    let replicated = BlockDescription { tp_rank: 5, tp_size: 8, tp_replicas: 4, ..half.clone() };
    assert_eq!(Exchange::new(&half, &replicated), Ok(Exchange::Whole));
    let other = Exchange::new(&half, &description(0, 2)).expect("an exchange");
    assert!(other.is_nothing(), "{other:?}");
}

/// The second half of each token of each layer, received in pieces of any size.
#[test]
fn a_part_is_gathered_and_scattered() {
    let plan = plan(&description(0, 1), &description(1, 2));
    let block: Vec<u8> = (0..16).collect();
    let mut part = vec![9; 100];
    plan.gather(&block, &mut part);
    assert_eq!(part, [2, 3, 6, 7, 10, 11, 14, 15]);
    assert_eq!(plan.bytes(), 8);
    for size in 1..=9 {
        let mut slot = vec![0; 8];
        let mut scatter = plan.scatter();
        for piece in part.chunks(size) {
            let placed = scatter.place(piece, |offset, bytes| {
                slot[offset..offset + bytes.len()].copy_from_slice(bytes);
                Ok::<_, ()>(())
            });
            assert_eq!(placed, Ok(()));
        }
        assert_eq!(slot, part, "in pieces of {size}");
        // Bytes beyond the part are ignored.
        assert_eq!(scatter.place(&[1], |_, _| Err(())), Ok(()));
    }
}

#[test]
fn what_is_not_converted_is_named() {
    let base = description(0, 1);
    let refused = |other: &BlockDescription| {
        Exchange::new(&base, other).expect_err("it is refused").to_string()
    };
    let other = BlockDescription { model: "n".to_owned(), ..base.clone() };
    assert!(refused(&other).starts_with("model is \"n\" at the caller and \"m\" at the owner"));
    let other = BlockDescription { block_size: 4, block_bytes: 32, ..base.clone() };
    assert!(refused(&other).starts_with("block-size is 4 at the caller and 2"));
    let other = BlockDescription { inner_dim: 2, block_bytes: 8, ..base.clone() };
    assert!(
        refused(&other)
            .starts_with("blocks-geometry inner-dim of all ranks is 2 at the caller and 4")
    );
    let other = BlockDescription { block_bytes: 17, ..base.clone() };
    assert_eq!(refused(&other), "block_bytes is 17, and the dimensions make 16");
    // More ranges than a plan may have: one per token.
    let long = |rank, size| BlockDescription {
        block_size: 1 << 20,
        block_bytes: (2 << 20) * u64::from(4 / size),
        ..description(rank, size)
    };
    let error = Exchange::new(&long(0, 1), &long(0, 2)).expect_err("it is refused").to_string();
    assert!(error.contains("pieces_max: the limit is 262144"), "{error}");
}
