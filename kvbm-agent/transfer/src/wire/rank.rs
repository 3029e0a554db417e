//! An agent's part of each block, and its layout in a slot.

use super::error::WireError;
use kvasir_blocks::layout::{LayerOrder, LayoutConfig, LayoutForm};
use kvasir_blocks::sets::{
    AddressRange, BlockSetDescription, BlockSetError, BlockSetId, BlockSetLayout, ContentId, Fence,
    MemoryKind, SetMemory, TensorParallel,
};
use kvasir_blocks::{BlockInSlot, BlockLayout};
use std::fmt::Display;
use std::ops::Range;

/// The forms of layouts, by their number in a description.
const FORMS: [LayoutForm; 3] = [
    LayoutForm::FullyContiguous,
    LayoutForm::LayerSeparate(LayerOrder::BlockContiguous),
    LayoutForm::LayerSeparate(LayerOrder::OuterContiguous),
];

/// The number of a form in a description.
#[must_use]
pub fn form_number(form: LayoutForm) -> u32 {
    (0..).zip(FORMS).find(|(_, at)| *at == form).map_or(0, |(number, _)| number)
}

/// One rank's part of a block, according to a description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankBlock {
    block: BlockInSlot,
    parallel: TensorParallel,
}

impl RankBlock {
    /// Checks the fields of a description. `form` is the number of a form.
    ///
    /// # Errors
    /// [`WireError::Field`] names the invalid field.
    pub fn new(
        form: u32,
        config: LayoutConfig,
        parallel: TensorParallel,
    ) -> Result<Self, WireError> {
        let known = usize::try_from(form).ok().and_then(|at| FORMS.get(at)).copied();
        let known =
            known.ok_or_else(|| WireError::field("form", format!("{form} is not known")))?;
        let invalid =
            |error: &dyn Display| WireError::field("dimensions", format!("are invalid: {error}"));
        let block = BlockInSlot::new(known, config).map_err(|error| invalid(&error))?;
        let rank = Self { block, parallel };
        rank.set().map_err(|error| invalid(&error))?;
        Ok(rank)
    }

    /// The layout of the rank's block in its slot.
    #[must_use]
    pub const fn block(&self) -> &BlockInSlot {
        &self.block
    }

    /// Returns a set with this single block. Its addresses are offsets in the slot.
    ///
    /// # Errors
    /// [`BlockSetError`] if there are more layers or ranks than a set may have.
    pub fn set(&self) -> Result<BlockSetLayout, BlockSetError> {
        let layout = self.block.layout();
        let stride = self.block.allocation_stride();
        let range = |at: u32| AddressRange { address: u64::from(at) * stride, bytes: stride };
        let description = BlockSetDescription {
            id: BlockSetId(0),
            // Irrelevant here: the descriptions of both sides were already compared.
            content: ContentId(0),
            tensor_parallel: self.parallel,
            form: layout.form(),
            config: *layout.config(),
            memory: SetMemory {
                kind: MemoryKind::Dram,
                device_id: 0,
                ranges: (0..layout.allocations()).map(range).collect(),
            },
        };
        BlockSetLayout::new(description, Fence { epoch: 0, export: 0 })
    }

    /// The rank's part of the heads, and the number of parts.
    #[must_use]
    pub fn shard(&self) -> Shard {
        Shard { number: self.parallel.shard(), count: self.parallel.shards() }
    }
}

/// One of the equal parts into which the heads of each token are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard {
    /// Number of the part, from 0 on.
    pub number: u32,
    /// Number of parts.
    pub count: u32,
}

impl Shard {
    /// The only part, with all heads.
    pub const WHOLE: Self = Self { number: 0, count: 1 };

    /// Numbers of the parts that contain some of this part's heads, if the heads are split into `count` parts.
    #[must_use]
    pub fn covered_by(&self, count: u32) -> Range<u32> {
        let number = u64::from(self.number);
        let own = u64::from(self.count).max(1);
        let count = u64::from(count);
        // Both results are at most `count`.
        let narrow = |at: u64| u32::try_from(at).unwrap_or(u32::MAX);
        narrow(number * count / own)..narrow(((number + 1) * count).div_ceil(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_one_another() {
        let of = |number, count| Shard { number, count };
        assert_eq!(Shard::WHOLE.covered_by(4), 0..4);
        assert_eq!(of(3, 4).covered_by(1), 0..1);
        assert_eq!(of(1, 4).covered_by(8), 2..4);
        assert_eq!(of(5, 8).covered_by(4), 2..3);
        assert_eq!(of(1, 3).covered_by(2), 0..2, "its middle");
    }
}
