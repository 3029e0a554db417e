//! Tracks records to erase, and the transfers that wait for an erasure. Pure.

use kvasir_blocks::{BlockTier, TransferId, TransferOrder};
use kvasir_proto::types::SequenceHash;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum records to erase. Records beyond it are found at the next restart, and are verified before use.
const RECORDS_MAX: usize = 65_536;

/// A block's record in a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Record {
    /// A record in a slot of the disk.
    Slot(u32, SequenceHash),
    /// A record under its name in the volume.
    Name(SequenceHash),
}

/// Identifies records that conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Slot(u32),
    Name(SequenceHash),
}

impl Record {
    /// The record that an order writes; `None` if it writes to memory.
    pub(super) fn written_by(order: &TransferOrder) -> Option<Self> {
        let sequence = order.identity.sequence;
        match order.id.route.to {
            BlockTier::Disk => Some(Self::Slot(order.destination.0, sequence)),
            BlockTier::Volume => Some(Self::Name(sequence)),
            BlockTier::Device | BlockTier::Host => None,
        }
    }

    /// The record that an order reads; `None` if it reads from memory.
    pub(super) fn read_by(order: &TransferOrder) -> Option<Self> {
        let sequence = order.identity.sequence;
        match order.id.route.from {
            BlockTier::Disk => Some(Self::Slot(order.source.0, sequence)),
            BlockTier::Volume => Some(Self::Name(sequence)),
            BlockTier::Device | BlockTier::Host => None,
        }
    }

    /// The tier of the record.
    pub(super) const fn tier(self) -> BlockTier {
        match self {
            Self::Slot(..) => BlockTier::Disk,
            Self::Name(_) => BlockTier::Volume,
        }
    }

    const fn key(self) -> Key {
        match self {
            Self::Slot(slot, _) => Key::Slot(slot),
            Self::Name(sequence) => Key::Name(sequence),
        }
    }
}

/// Records to erase. A transfer that writes where a record is being erased waits for the end of the erasure. A record
/// that a transfer is writing is not erased meanwhile.
#[derive(Debug, Default)]
pub(super) struct Records {
    to_erase: BTreeSet<Record>,
    /// Records that could not be erased; retried in the next round.
    later: BTreeSet<Record>,
    writing: BTreeSet<Key>,
    erasing: BTreeSet<Key>,
    waiting: BTreeMap<Key, Vec<TransferOrder>>,
}

impl Records {
    /// Marks a record as stale: it may exist, but its block no longer counts.
    pub(super) fn mark_stale(&mut self, record: Record) {
        if self.to_erase.len() < RECORDS_MAX {
            self.to_erase.insert(record);
        }
    }

    /// Postpones the erasure of a record to the next round.
    pub(super) fn erase_later(&mut self, record: Record) {
        if self.later.len() < RECORDS_MAX {
            self.later.insert(record);
        }
    }

    /// Begins the next round: records that could not be erased are retried. Returns their number.
    pub(super) fn next_round(&mut self) -> usize {
        let later = std::mem::take(&mut self.later);
        let count = later.len();
        later.into_iter().for_each(|record| self.mark_stale(record));
        count
    }

    /// Removes and returns records to erase, so that at most `max` are being erased. Skips records that are being
    /// erased or written.
    pub(super) fn begin_erasing(&mut self, max: usize) -> Vec<Record> {
        let free = max.saturating_sub(self.erasing.len());
        let is_busy = |key: &Key| self.erasing.contains(key) || self.writing.contains(key);
        let idle = self.to_erase.iter().filter(|record| !is_busy(&record.key()));
        let begun: Vec<Record> = idle.take(free).copied().collect();
        for record in &begun {
            self.to_erase.remove(record);
        }
        begun
    }

    /// Marks a record as being erased.
    pub(super) fn mark_erasing(&mut self, record: Record) {
        self.erasing.insert(record.key());
    }

    /// Marks the end of a record's erasure. Returns the transfers that waited for it.
    pub(super) fn end_erasing(&mut self, record: Record) -> Vec<TransferOrder> {
        self.erasing.remove(&record.key());
        self.waiting.remove(&record.key()).unwrap_or_default()
    }

    /// Delays an order whose record is being erased, and returns true. Otherwise marks the record as being written, and
    /// returns false.
    pub(super) fn delay_if_erasing(&mut self, order: &TransferOrder) -> bool {
        let Some(key) = Record::written_by(order).map(Record::key) else { return false };
        let is_kept = self.erasing.contains(&key);
        if is_kept {
            self.waiting.entry(key).or_default().push(*order);
        } else {
            self.writing.insert(key);
        }
        is_kept
    }

    /// Marks the end of an order.
    pub(super) fn end_writing(&mut self, order: &TransferOrder) {
        if let Some(key) = Record::written_by(order).map(Record::key) {
            self.writing.remove(&key);
        }
    }

    /// Removes a waiting transfer.
    pub(super) fn remove_transfer(&mut self, id: TransferId) -> Option<TransferOrder> {
        self.waiting.values_mut().find_map(|waiting| {
            let at = waiting.iter().position(|order| order.id == id)?;
            Some(waiting.remove(at))
        })
    }

    /// Removes and returns all waiting transfers.
    pub(super) fn take_waiting(&mut self) -> Vec<TransferOrder> {
        std::mem::take(&mut self.waiting).into_values().flatten().collect()
    }

    /// Whether there are no records to erase.
    pub(super) fn is_idle(&self) -> bool {
        self.to_erase.is_empty() && self.later.is_empty() && self.erasing.is_empty()
    }
}
