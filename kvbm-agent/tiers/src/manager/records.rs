//! Which records are to be erased, and which transfers wait for that. Pure.

use kvasir_blocks::{BlockTier, TransferId, TransferOrder};
use kvasir_proto::types::SequenceHash;
use std::collections::{BTreeMap, BTreeSet};

/// Most records that are to be erased; what is beyond is found at the next restart, and verified before it is used.
const RECORDS_MAX: usize = 65_536;

/// A record of a block that may be in a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Record {
    /// In a slot of the disk.
    Slot(u32, SequenceHash),
    /// Under its name in the volume.
    Name(SequenceHash),
}

/// What records of two transfers can have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Slot(u32),
    Name(SequenceHash),
}

impl Record {
    /// The record that an order writes; none in memory.
    pub(super) fn written_by(order: &TransferOrder) -> Option<Self> {
        let sequence = order.identity.sequence;
        match order.id.route.to {
            BlockTier::Disk => Some(Self::Slot(order.destination.0, sequence)),
            BlockTier::Volume => Some(Self::Name(sequence)),
            BlockTier::Device | BlockTier::Host => None,
        }
    }

    /// The record that an order reads; none in memory.
    pub(super) fn read_by(order: &TransferOrder) -> Option<Self> {
        let sequence = order.identity.sequence;
        match order.id.route.from {
            BlockTier::Disk => Some(Self::Slot(order.source.0, sequence)),
            BlockTier::Volume => Some(Self::Name(sequence)),
            BlockTier::Device | BlockTier::Host => None,
        }
    }

    /// Where it is.
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

/// Records that must go. A transfer that writes where one is being erased waits until that has ended, and what a transfer
/// writes is not erased meanwhile.
#[derive(Debug, Default)]
pub(super) struct Records {
    to_erase: BTreeSet<Record>,
    /// Those that could not be erased: they wait for the next round.
    later: BTreeSet<Record>,
    writing: BTreeSet<Key>,
    erasing: BTreeSet<Key>,
    waiting: BTreeMap<Key, Vec<TransferOrder>>,
}

impl Records {
    /// A record may be there that counts no longer.
    pub(super) fn is_stale(&mut self, record: Record) {
        if self.to_erase.len() < RECORDS_MAX {
            self.to_erase.insert(record);
        }
    }

    /// A record can't be erased now.
    pub(super) fn is_for_later(&mut self, record: Record) {
        if self.later.len() < RECORDS_MAX {
            self.later.insert(record);
        }
    }

    /// The next round: those that could not be erased are tried again. How many.
    pub(super) fn next_round(&mut self) -> usize {
        let later = std::mem::take(&mut self.later);
        let count = later.len();
        later.into_iter().for_each(|record| self.is_stale(record));
        count
    }

    /// Takes at most `max` records that nobody is erasing or writing.
    pub(super) fn begin(&mut self, max: usize) -> Vec<Record> {
        let free = max.saturating_sub(self.erasing.len());
        let is_busy = |key: &Key| self.erasing.contains(key) || self.writing.contains(key);
        let idle = self.to_erase.iter().filter(|record| !is_busy(&record.key()));
        let begun: Vec<Record> = idle.take(free).copied().collect();
        for record in &begun {
            self.to_erase.remove(record);
        }
        begun
    }

    /// From now on, it is being erased.
    pub(super) fn erasing(&mut self, record: Record) {
        self.erasing.insert(record.key());
    }

    /// It is being erased no longer. Returns the transfers that waited for that.
    pub(super) fn ended(&mut self, record: Record) -> Vec<TransferOrder> {
        self.erasing.remove(&record.key());
        self.waiting.remove(&record.key()).unwrap_or_default()
    }

    /// Keeps an order back if it writes where a record is being erased; else it writes from now on.
    pub(super) fn keep_back(&mut self, order: &TransferOrder) -> bool {
        let Some(key) = Record::written_by(order).map(Record::key) else { return false };
        let is_kept = self.erasing.contains(&key);
        if is_kept {
            self.waiting.entry(key).or_default().push(*order);
        } else {
            self.writing.insert(key);
        }
        is_kept
    }

    /// An order has ended.
    pub(super) fn settled(&mut self, order: &TransferOrder) {
        if let Some(key) = Record::written_by(order).map(Record::key) {
            self.writing.remove(&key);
        }
    }

    /// Takes a transfer that waits.
    pub(super) fn take(&mut self, id: TransferId) -> Option<TransferOrder> {
        self.waiting.values_mut().find_map(|waiting| {
            let at = waiting.iter().position(|order| order.id == id)?;
            Some(waiting.remove(at))
        })
    }

    /// The transfers that wait, which wait no longer.
    pub(super) fn give_up(&mut self) -> Vec<TransferOrder> {
        std::mem::take(&mut self.waiting).into_values().flatten().collect()
    }

    /// Whether nothing is to be erased.
    pub(super) fn is_idle(&self) -> bool {
        self.to_erase.is_empty() && self.later.is_empty() && self.erasing.is_empty()
    }
}
