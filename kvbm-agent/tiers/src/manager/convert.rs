//! Converts between the types of the plan and the types of the storages. Pure.

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

/// Converts a block found on a disk for its pool.
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

/// The block that an order stores.
pub(super) fn new_block(order: &TransferOrder) -> NewBlock {
    NewBlock {
        identity: identity_of(&order.identity),
        bytes: usize::try_from(order.bytes).unwrap_or(usize::MAX),
        checksum: order.checksum.map(|checksum| Checksum(checksum.0)),
    }
}

/// The block that an order loads; `None` without a checksum, because unverifiable blocks are never loaded.
pub(super) fn sealed_block(order: &TransferOrder) -> Option<Sealed> {
    let NewBlock { identity, bytes, checksum } = new_block(order);
    Some(Sealed { identity, bytes, checksum: checksum? })
}

/// Converts the result of a transfer with one step. Storages verify each read, so wrong bytes count as the source's
/// fault.
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
                // A volume may have different bytes of the same meaning, which another agent wrote.
                Outcome::Failed { failure: Failure::Io }
            }
        }
        Ok(None) => Outcome::Failed { failure: Failure::Io },
        Err(error) => failed(error),
    }
}

/// Converts the error of a transfer to the outcome `Cancelled`, `Corrupt`, `Short` or `Failed`.
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

/// Whether the block itself can't be read, as opposed to a failing connection. Such a block counts as missing.
pub(super) fn is_unreadable(error: &TransferError, is_local: bool) -> bool {
    let is_absent = matches!(
        error,
        TransferError::Short { .. } | TransferError::Missing | TransferError::Foreign(_)
    );
    is_absent || is_local && matches!(error, TransferError::Io(_))
}
