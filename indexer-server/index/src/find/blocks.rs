//! The blocks of a prompt at one rank, in the main group.

use crate::holder::Holder;
use crate::index::Index;
use crate::slots::Slot;
use kvasir_proto::types::BlockName;

/// Slots along a prompt: the first slot of each run, and the number of positions up to the end of the run.
pub(super) type Path = Vec<(Slot, u32)>;

/// How a query states the blocks. They are numbered from 1.
#[derive(Debug, Clone, Copy)]
pub(super) enum Blocks<'a> {
    /// By the rank's own names.
    Names(&'a [BlockName]),
    /// By the slots along the prompt, with so many positions for each block.
    Path(&'a [(Slot, u32)], u32),
}

/// Consecutive slots along a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotRun {
    pub(super) first: Slot,
    pub(super) len: u32,
}

impl Blocks<'_> {
    /// The rank's name of a block.
    pub(super) fn name(self, index: &Index, holder: &Holder, number: u32) -> Option<BlockName> {
        match self {
            Self::Names(names) => names.get(number as usize - 1).copied(),
            Self::Path(path, per_block) => {
                let slot = run_at(path, number * per_block - 1)?.first;
                let recorded = holder.records().names_at(slot);
                let own = || Some(index.trie.slots.name(slot));
                recorded.map_or_else(own, |names| names.first().copied())
            }
        }
    }

    /// Slots of this block and of the blocks behind it, as far as each slot's own name is the rank's name of the block.
    pub(super) fn slots(self, index: &Index, holder: &Holder, number: u32) -> Option<SlotRun> {
        if let Self::Path(path, per_block) = self {
            let run = run_at(path, number * per_block - 1)?;
            if !holder.is_recorded(run.first) {
                let is_dense = per_block == 1 && holder.records().slots() == 0;
                return Some(SlotRun { len: if is_dense { run.len } else { 1 }, ..run });
            }
        }
        let first = index.trie.named(self.name(index, holder, number)?)?;
        Some(SlotRun { first, len: 1 })
    }
}

/// The slots from a position on, counted from 0, to the end of their run.
fn run_at(path: &[(Slot, u32)], position: u32) -> Option<SlotRun> {
    let at = path.partition_point(|&(_, end)| end <= position);
    let &(head, end) = path.get(at)?;
    let from = at.checked_sub(1).and_then(|before| path.get(before)).map_or(0, |&(_, end)| end);
    Some(SlotRun { first: head + (position - from), len: end - position })
}
