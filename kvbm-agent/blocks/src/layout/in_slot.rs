use super::config::{add, align_up, mul};
use super::{AnyLayout, BlockLayout, LayoutConfig, LayoutError, LayoutForm, Region};
use std::ops::Range;

/// One block in its own slot: the allocations of a layout with a single block, one after another.
///
/// Each allocation begins at a multiple of the alignment, counted from the start of the slot. Bytes between regions are
/// padding with value 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockInSlot {
    layout: AnyLayout,
    allocation_stride: u64,
    bytes: u64,
}

impl BlockInSlot {
    /// Creates a block of this form with the dimensions in `config`. Ignores `num_blocks` and `base_offset_bytes`:
    /// there is one block, at the start of its slot.
    ///
    /// # Errors
    /// [`LayoutError`] if a field is invalid or a size overflows.
    pub fn new(form: LayoutForm, config: LayoutConfig) -> Result<Self, LayoutError> {
        let config = LayoutConfig { num_blocks: 1, base_offset_bytes: 0, ..config };
        let layout = form.layout(config)?;
        let allocation_bytes = layout.allocation_bytes();
        let allocation_stride =
            align_up("slot_bytes", allocation_bytes, layout.config().alignment_bytes)?;
        let before_last =
            mul("slot_bytes", allocation_stride, u64::from(layout.allocations()) - 1)?;
        let bytes = add("slot_bytes", before_last, allocation_bytes)?;
        Ok(Self { layout, allocation_stride, bytes })
    }

    /// The layout, which has one block.
    #[must_use]
    pub const fn layout(&self) -> &AnyLayout {
        &self.layout
    }

    /// Distance between the starts of two allocations, in bytes.
    #[must_use]
    pub const fn allocation_stride(&self) -> u64 {
        self.allocation_stride
    }

    /// Bytes of the block, padding included.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The ranges outside all regions, in order. A contiguous block has none.
    #[must_use]
    pub fn padding(&self) -> Vec<Range<u64>> {
        let layers = self.layout.config().num_layers;
        let outers = self.layout.config().outer_dim;
        let mut padding = Vec::new();
        let mut end = 0;
        // In each form, the regions are in this order.
        for (layer, outer) in (0..layers).flat_map(|at| (0..outers).map(move |outer| (at, outer))) {
            let Ok(Region { allocation, offset, bytes }) = self.layout.region(0, layer, outer)
            else {
                continue;
            };
            let start = u64::from(allocation) * self.allocation_stride + offset;
            if start > end {
                padding.push(end..start);
            }
            end = start + bytes;
        }
        if self.bytes > end {
            padding.push(end..self.bytes);
        }
        padding
    }
}
