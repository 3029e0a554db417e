use super::{Executor, ExecutorConfig, Job, Refused};
use crate::block::{NewBlock, Sealed};
use crate::cancel::Cancel;
use crate::error::TransferError;
use crate::host::HostStorage;
use crate::storage::{Place, Storage, StorageKind};
use crate::testing::{arena, block, filled, holds};
use kvasir_memory::{ReadSlot, WriteSlot};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const BYTES: usize = 100_000;

fn config(threads: usize) -> ExecutorConfig {
    ExecutorConfig {
        name: "test".to_owned(),
        threads,
        waiting_blocks_max: 4,
        waiting_bytes_max: 3 * BYTES,
    }
}

/// Works until it is cancelled, and counts concurrent transfers.
#[derive(Debug, Default)]
struct Endless {
    inside: AtomicU32,
}

impl Storage for Endless {
    fn kind(&self) -> StorageKind {
        StorageKind::Foreign
    }

    fn block_bytes(&self) -> usize {
        BYTES
    }

    fn slots(&self) -> Option<u32> {
        None
    }

    fn store(
        &self,
        place: Place,
        _: &NewBlock,
        _: &ReadSlot,
        cancel: &Cancel,
    ) -> Result<Sealed, TransferError> {
        if place == Place::Slot(13) {
            panic!("a defect of this storage");
        }
        self.inside.fetch_add(1, Ordering::SeqCst);
        while !cancel.is_cancelled() {
            cancel.wait(Duration::from_secs(60));
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Err(TransferError::Cancelled)
    }

    fn load(
        &self,
        _: Place,
        _: &Sealed,
        _: &mut WriteSlot,
        _: &Cancel,
    ) -> Result<(), TransferError> {
        Err(TransferError::Missing)
    }

    fn erase(&self, _: Place, _: u64, _: &Cancel) -> Result<(), TransferError> {
        Ok(())
    }
}

#[test]
fn batches_go_in_and_blocks_come_out() {
    let memory = arena(BYTES, 4);
    let tier = HostStorage::new(arena(BYTES, 4));
    let executor = Executor::start(Arc::new(tier), config(2)).expect("threads");
    let stores = (0..3).map(|slot| Job::Store {
        place: Place::Slot(slot),
        block: block(slot, BYTES),
        source: filled(&memory, slot, slot, BYTES),
    });
    let done = executor.submit(stores.collect()).expect("room").wait();
    let sealed: Vec<Sealed> =
        done.into_iter().map(|done| done.result.expect("stored").expect("a block")).collect();
    assert_eq!(sealed.len(), 3);
    let loads = (0..).zip(&sealed).map(|(slot, block)| Job::Load {
        place: Place::Slot(slot),
        block: *block,
        target: memory.write(slot).expect("nobody holds it any more"),
    });
    for done in executor.submit(loads.collect()).expect("room").wait() {
        assert_eq!(done.result, Ok(Some(sealed[done.index])));
        let Job::Load { target, .. } = done.job else { panic!("another job") };
        assert!(holds(target, u32::try_from(done.index).expect("small"), BYTES));
    }
    executor.stop();
}

#[test]
fn a_cancelled_batch_reports_each_block_once_it_has_stopped() {
    let memory = arena(BYTES, 4);
    let storage = Arc::new(Endless::default());
    let executor = Executor::start(Arc::clone(&storage) as _, config(2)).expect("threads");
    let job = |slot: u32| Job::Store {
        place: Place::Slot(slot),
        block: block(slot, BYTES),
        source: filled(&memory, slot, slot, BYTES),
    };
    let transfer = executor.submit((0..3).map(job).collect()).expect("room");
    assert!(memory.write(0).is_err(), "its slots are held");
    transfer.cancel();
    let done = transfer.wait();
    assert_eq!(storage.inside.load(Ordering::SeqCst), 0);
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|done| done.result == Err(TransferError::Cancelled)));
    assert!(memory.write(0).is_err(), "the outcome holds the slots");
    drop(done);
    assert!(memory.write(0).is_ok());
}

#[test]
fn what_waits_is_bounded_and_comes_back() {
    let memory = arena(BYTES, 8);
    let executor = Executor::start(Arc::new(Endless::default()), config(1)).expect("a thread");
    let job = |slot: u32| Job::Store {
        place: Place::Slot(slot),
        block: block(slot, BYTES),
        source: filled(&memory, slot, slot, BYTES),
    };
    let mut transfers = vec![executor.submit(vec![job(0)]).expect("room")];
    while executor.waiting().0 > 0 {
        std::hint::spin_loop();
    }
    transfers.push(executor.submit(vec![job(1), job(2)]).expect("room"));
    let refused = executor.submit(vec![job(3), job(4)]).expect_err("no room");
    let Refused::Full { waiting_blocks: 2, jobs, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(jobs.len(), 2);
    transfers.iter().for_each(super::Transfer::cancel);
    for transfer in transfers {
        drop(transfer.wait());
    }
    drop(executor.submit(jobs).expect("room again"));
    // The executor's drop cancels these transfers, whose own handle is gone.
}

#[test]
fn a_storage_that_panics_fails_its_own_block_only() {
    let memory = arena(BYTES, 4);
    let executor = Executor::start(Arc::new(Endless::default()), config(1)).expect("a thread");
    let job = Job::Store {
        place: Place::Slot(13),
        block: block(0, BYTES),
        source: filled(&memory, 0, 0, BYTES),
    };
    let erase = Job::Erase { place: Place::Slot(1), sequence_hash: 1 };
    let done = executor.submit(vec![job, erase]).expect("room").wait();
    let results: Vec<_> = done.into_iter().map(|done| done.result).collect();
    assert_eq!(results, [Err(TransferError::Panicked), Ok(None)]);
}
