//! Progress of a dump.

use super::names::Names;
use super::rank::Rank;
use kvasir_proto::types::{BlockName, DpRank, HeldBlock};

/// Number of checks per record that a step may return. Records that were read as ancestors before cost a check, too.
const CHECKS_PER_RECORD: usize = 4;

/// A dump in progress. Read it to its end or cancel it, because changes are recorded for it meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DumpId(pub(super) u32);

/// State of a dump in progress.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) id: DumpId,
    /// The rank being read, with ancestors of its next record, the nearest to the root on top.
    pub(super) rank: DpRank,
    ancestors: Vec<BlockName>,
    dirty_names: usize,
}

impl Scan {
    pub(super) const fn new(id: DumpId) -> Self {
        Self { id, rank: 0, ancestors: Vec::new(), dirty_names: 0 }
    }

    /// Mark of the records that the dump has read.
    pub(super) const fn mark_number(&self) -> u32 {
        self.id.0
    }

    /// Counts a changed name, and returns the total.
    pub(super) const fn count_dirty(&mut self) -> usize {
        self.dirty_names += 1;
        self.dirty_names
    }

    /// Reads up to `records_max` records of the rank. The rank is finished once no record is left.
    pub(super) fn read_rank(
        &mut self,
        rank: &mut Rank,
        records_max: usize,
        records: &mut Vec<HeldBlock>,
    ) {
        let mut checks = records_max.saturating_mul(CHECKS_PER_RECORD);
        while checks > 0 && records.len() < records_max {
            checks -= 1;
            let Some(&name) = self.ancestors.last() else {
                if rank.position >= rank.names.len() {
                    return;
                }
                let unread = mark_read(&mut rank.names, rank.position, self.id.0);
                rank.position += 1;
                self.ancestors.extend(unread);
                continue;
            };
            let found = rank.names.find(name).and_then(|slot| rank.names.at(slot)).copied();
            let Some(record) = found else {
                // The record was removed meanwhile, which is recorded.
                self.ancestors.pop();
                continue;
            };
            let parent = record.parent().and_then(|parent| rank.names.find(parent));
            match parent.and_then(|slot| mark_read(&mut rank.names, slot, self.id.0)) {
                Some(parent) => self.ancestors.push(parent),
                None => {
                    records.push(rank.names.held(&record));
                    self.ancestors.pop();
                }
            }
        }
    }

    pub(super) fn has_read(&self, rank: &Rank) -> bool {
        debug_assert!(rank.position <= rank.names.len());
        self.ancestors.is_empty() && rank.position >= rank.names.len()
    }
}

/// Marks a record as read by a dump. Returns its name unless it was marked before.
fn mark_read(names: &mut Names, slot: usize, dump: u32) -> Option<BlockName> {
    let record = names.at_mut(slot).filter(|record| record.read_by != dump)?;
    record.read_by = dump;
    Some(record.name())
}
