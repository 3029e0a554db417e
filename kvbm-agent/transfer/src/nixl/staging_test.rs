use super::*;
use futures::FutureExt;

fn at(blocks: u64) -> Vec<u64> {
    (0..blocks).collect()
}

fn in_use() -> InUse {
    Arc::new(())
}

#[tokio::test]
async fn fetches_wait_for_one_another_and_share() {
    let staging = Staging::default();
    // Four slots, two for each fetch.
    let bytes = READ_BYTES_MAX / 4;
    let one = staging.pieces(bytes, &at(9), &in_use()).await.expect("room");
    let other = staging.pieces(bytes, &at(1), &in_use()).await.expect("room");
    assert_eq!((one.len(), other.len()), (2, 1));
    let two = at(2);
    let set = in_use();
    let third = staging.pieces(bytes, &two, &set);
    tokio::pin!(third);
    assert!(third.as_mut().now_or_never().is_none(), "one slot is free, and two are wanted");
    drop(other);
    let third = third.now_or_never().expect("two slots are free").expect("room");
    assert_eq!(third.len(), 2);
    // One slot for all blocks.
    let large = staging.pieces(READ_BYTES_MAX - 1, &at(3), &in_use()).await.expect("room");
    assert_eq!(large.len(), 1);
    assert!(staging.pieces(READ_BYTES_MAX - 1, &at(3), &in_use()).now_or_never().is_none());
}

#[tokio::test]
async fn a_further_size_replaces_the_one_that_was_used_least_recently() {
    let staging = Staging::default();
    let held = staging.pieces(1, &at(1), &in_use()).await.expect("room");
    for bytes in 2..=100 {
        let pieces = staging.pieces(bytes, &at(1), &in_use()).await.expect("room");
        assert_eq!(pieces.first().map(|piece| piece.slot.block_bytes()), Some(bytes));
    }
    let kept: Vec<_> = staging.0.lock().sizes.keys().copied().collect();
    assert_eq!(kept, [1, 94, 95, 96, 97, 98, 99, 100], "the first one is in use");
    let mut all = vec![held];
    for bytes in 94..=100 {
        all.push(staging.pieces(bytes, &at(1), &in_use()).await.expect("room"));
    }
    let refused = staging.pieces(2, &at(1), &in_use()).await;
    assert!(matches!(refused, Err(FetchFault::NoRoom(_))), "{refused:?}");
}

#[tokio::test]
async fn sizes_that_are_none_are_refused() {
    for bytes in [0, STAGED_BLOCK_BYTES_MAX + 1] {
        let refused = Staging::default().pieces(bytes, &at(1), &in_use()).await;
        assert!(matches!(refused, Err(FetchFault::Refused(_))), "{refused:?}");
    }
}
