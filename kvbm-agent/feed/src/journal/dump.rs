//! Dumps of an inventory, read in steps between batches.

use super::inventory::Inventory;
use super::names::Names;
use super::scan::{DumpId, Scan};
use super::{DumpAbort, DumpError};
use kvasir_proto::types::{BlockName, DpRank, HeldBlock, Incarnation};
use rustc_hash::FxHashSet;
use std::mem;

/// Result of one step of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DumpStep {
    /// Some records of one rank, perhaps none.
    Records {
        /// The rank.
        rank: DpRank,
        /// Records of the rank; parents before children where they are held.
        records: Vec<HeldBlock>,
    },
    /// The final records; the dump is finished.
    Cut(DumpCut),
}

/// The end of a dump: current state of the names that changed after they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpCut {
    /// Records by rank; parents before children where both are included.
    pub records: Vec<(DpRank, Vec<HeldBlock>)>,
    /// Incarnation of the dump.
    pub incarnation: Incarnation,
    /// Last batch that the records include; `None` before the first.
    pub watermark: Option<u64>,
    /// Ranks with missing blocks, refused because of the limit on held names.
    pub incomplete: Vec<DpRank>,
}

impl Inventory {
    /// Begins a dump and returns its id. Fails if a dump is in progress.
    pub(super) fn begin_dump(&mut self) -> Result<DumpId, DumpError> {
        if self.scan.is_some() {
            return Err(DumpError::Busy);
        }
        // 0 marks a record that no dump has read.
        self.last_dump = self.last_dump.checked_add(1).unwrap_or(1);
        let id = DumpId(self.last_dump);
        self.scan = Some(Scan::new(id));
        Ok(id)
    }

    /// Reads the next records of one rank. Returns `None` once all records were read: then call
    /// [`cut_dump`](Self::cut_dump). Fails if the dump is over.
    pub(super) fn step_dump(
        &mut self,
        id: DumpId,
        records_max: usize,
    ) -> Result<Option<(DpRank, Vec<HeldBlock>)>, DumpError> {
        let Some(scan) = self.scan.as_mut().filter(|scan| scan.id == id) else {
            return Err(self.over(id));
        };
        let mut records = Vec::new();
        if self.ranks.get(&scan.rank).is_none_or(|rank| scan.has_read(rank)) {
            let unread = self.ranks.iter().find(|(_, rank)| !scan.has_read(rank));
            let Some((&number, _)) = unread else { return Ok(None) };
            scan.rank = number;
        }
        let number = scan.rank;
        if let Some(rank) = self.ranks.get_mut(&number) {
            scan.read_rank(rank, records_max.max(1), &mut records);
        }
        Ok(Some((number, records)))
    }

    /// Ends a dump, and returns the records that changed after they were read.
    pub(super) fn cut_dump(&mut self) -> Vec<(DpRank, Vec<HeldBlock>)> {
        self.scan = None;
        let ranks = self.ranks.iter_mut().filter(|(_, rank)| !rank.dirty.is_empty());
        let changed = ranks.map(|(&number, rank)| {
            let dirty = mem::take(&mut rank.dirty);
            (number, changed_records(&rank.names, dirty))
        });
        let changed = changed.collect();
        self.forget_scan();
        changed
    }

    pub(super) fn cancel_dump(&mut self, id: DumpId) {
        if self.scan.as_ref().is_some_and(|scan| scan.id == id) {
            self.scan = None;
            self.forget_scan();
        }
    }

    /// Reads all records in one call, up to `records_max` at a time. Aborts a dump in progress.
    pub(super) fn read_all(
        &mut self,
        records_max: usize,
        mut take: impl FnMut(DpRank, Vec<HeldBlock>),
    ) {
        self.abort(DumpAbort::NewIncarnation);
        let Ok(id) = self.begin_dump() else { return };
        while let Ok(Some((rank, records))) = self.step_dump(id, records_max) {
            take(rank, records);
        }
        self.cancel_dump(id);
    }

    fn over(&self, id: DumpId) -> DumpError {
        match self.aborted {
            Some((aborted, reason)) if aborted == id => DumpError::Aborted(reason),
            _ => DumpError::Over,
        }
    }
}

/// Returns the current records of the `dirty` names, parents first.
fn changed_records(names: &Names, mut dirty: FxHashSet<BlockName>) -> Vec<HeldBlock> {
    let mut order: Vec<BlockName> = dirty.iter().copied().collect();
    order.sort_unstable();
    let mut records = Vec::with_capacity(order.len());
    let mut ancestors = Vec::new();
    for name in order {
        if !dirty.remove(&name) {
            continue;
        }
        ancestors.push(Inventory::state(names, name));
        while let Some(&record) = ancestors.last() {
            match record.parent.filter(|parent| dirty.remove(parent)) {
                Some(parent) => ancestors.push(Inventory::state(names, parent)),
                None => records.extend(ancestors.pop()),
            }
        }
    }
    records
}
