use super::HostStorage;
use crate::cancel::Cancel;
use crate::error::TransferError;
use crate::storage::{Place, Storage};
use crate::testing::{arena, block, filled, holds};

const BYTES: usize = 50_001;

#[test]
fn blocks_come_back_and_damage_is_found() {
    let memory = arena(BYTES, 2);
    let tier = HostStorage::new(arena(BYTES, 2));
    let cancel = Cancel::new();
    let source = filled(&memory, 0, 5, BYTES);
    let sealed = tier.store(Place::Slot(1), &block(5, BYTES), &source, &cancel).expect("stored");
    let mut target = memory.write(1).expect("a free slot");
    assert_eq!(tier.load(Place::Slot(1), &sealed, &mut target, &cancel), Ok(()));
    assert!(holds(target, 5, BYTES));
    let flip = |byte: u8| {
        let mut slot = tier.arena().write(1).expect("a free slot");
        slot.write(BYTES - 1, &[byte]).expect("room");
    };
    flip(0xFF);
    let mut target = memory.write(1).expect("a free slot");
    let outcome = tier.load(Place::Slot(1), &sealed, &mut target, &cancel);
    assert!(matches!(outcome, Err(TransferError::Corrupt { .. })), "{outcome:?}");
}

#[test]
fn slots_in_use_and_sizes_that_do_not_fit_are_refused() {
    let memory = arena(BYTES, 2);
    let tier = HostStorage::new(arena(BYTES, 2));
    let source = filled(&memory, 0, 5, BYTES);
    let store = |block, cancel: &Cancel| tier.store(Place::Slot(1), &block, &source, cancel);
    let reader = tier.arena().read(1).expect("a reader");
    let outcome = store(block(5, BYTES), &Cancel::new());
    assert!(matches!(outcome, Err(TransferError::Claim(_))), "{outcome:?}");
    drop(reader);
    for bytes in [0, BYTES + 1] {
        let outcome = store(block(5, bytes), &Cancel::new());
        assert_eq!(outcome, Err(TransferError::Size { bytes, limit: BYTES }));
    }
    let cancel = Cancel::new();
    cancel.cancel();
    assert_eq!(store(block(5, BYTES), &cancel), Err(TransferError::Cancelled));
}
