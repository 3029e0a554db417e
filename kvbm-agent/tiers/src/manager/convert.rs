//! The words of the plan and of the storages for the same things. Pure.

use crate::block::{Identity, NewBlock, Sealed};
use crate::checksum::Checksum;
use crate::error::TransferError;
use kvasir_blocks::plan::{Failure, Side};
use kvasir_blocks::{BlockIdentity, BlockInfo, Outcome, Priority, SlotId, TransferOrder};
use kvasir_proto::types::{LocalHash, SequenceHash};

pub(super) fn identity_of(block: &BlockIdentity) -> Identity {
    Identity {
        sequence_hash: block.sequence.0,
        parent: block.parent.map(|parent| parent.0),
        local_hash: block.local.0,
        position: block.position,
    }
}

pub(super) fn plan_checksum(checksum: Checksum) -> kvasir_blocks::Checksum {
    kvasir_blocks::Checksum(checksum.0)
}

/// A block that was found on a disk, for its pool.
pub(super) fn restored(slot: u32, block: &Sealed) -> BlockInfo {
    let Identity { sequence_hash, parent, local_hash, position } = block.identity;
    let identity = BlockIdentity {
        sequence: SequenceHash(sequence_hash),
        parent: parent.map(SequenceHash),
        local: LocalHash(local_hash),
        position,
    };
    let checksum = Some(plan_checksum(block.checksum));
    BlockInfo { slot: SlotId(slot), identity, checksum, priority: Priority::default() }
}

/// What an order stores.
pub(super) fn new_block(order: &TransferOrder) -> NewBlock {
    NewBlock {
        identity: identity_of(&order.identity),
        bytes: usize::try_from(order.bytes).unwrap_or(usize::MAX),
        checksum: order.checksum.map(|checksum| Checksum(checksum.0)),
    }
}

/// What an order loads; none without a checksum, for nothing comes up that can't be checked.
pub(super) fn sealed_block(order: &TransferOrder) -> Option<Sealed> {
    let NewBlock { identity, bytes, checksum } = new_block(order);
    Some(Sealed { identity, bytes, checksum: checksum? })
}

/// How a transfer of one step ended. The storages check what they read, so that wrong bytes are the source's.
pub(super) fn outcome(
    order: &TransferOrder,
    result: &Result<Option<Sealed>, TransferError>,
) -> Outcome {
    match result {
        Ok(Some(sealed)) => {
            let written = plan_checksum(sealed.checksum);
            let read = order.checksum.unwrap_or(written);
            if read == written {
                Outcome::Done { bytes: order.bytes, read, written }
            } else {
                // A volume has other bytes of the same meaning, which we did not write.
                Outcome::Failed { failure: Failure::Io }
            }
        }
        Ok(None) => Outcome::Failed { failure: Failure::Io },
        Err(error) => failed(error),
    }
}

/// How a transfer ended that failed.
pub(super) fn failed(error: &TransferError) -> Outcome {
    let failure = match error {
        TransferError::Cancelled => return Outcome::Cancelled,
        TransferError::Corrupt { .. } => return Outcome::Corrupt { side: Side::Source },
        TransferError::Short { done, .. } => {
            return Outcome::Short { bytes: u64::try_from(*done).unwrap_or(u64::MAX) };
        }
        TransferError::Full(_) => Failure::NoSpace,
        TransferError::Missing | TransferError::Foreign(_) => Failure::NotFound,
        TransferError::Io(_)
        | TransferError::Claim(_)
        | TransferError::Place
        | TransferError::Unregistered(_)
        | TransferError::Late { .. }
        | TransferError::Size { .. }
        | TransferError::Access(_)
        | TransferError::Memory(_)
        | TransferError::Panicked => Failure::Io,
    };
    Outcome::Failed { failure }
}

/// Whether it is the block in the storage that can't be read, and not the way to it: such a block is not there.
pub(super) fn is_unreadable(error: &TransferError, is_local: bool) -> bool {
    let is_absent = matches!(
        error,
        TransferError::Short { .. } | TransferError::Missing | TransferError::Foreign(_)
    );
    is_absent || is_local && matches!(error, TransferError::Io(_))
}
