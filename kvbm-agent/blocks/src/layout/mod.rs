//! Where the bytes of a block lie: arithmetic of offsets, exact in `u64`.
//!
//! A block is `[layer][outer][page × inner]`: for each layer, one *region* for keys and one for values, or one for
//! both (MLA). A layout states offset and length of each region. All tiers with the same [`LayoutConfig`] share it.

mod config;
mod contiguous;
mod error;
mod form;
mod in_slot;
mod separate;

#[cfg(test)]
mod layout_test;

pub use config::LayoutConfig;
pub use contiguous::FullyContiguous;
pub use error::LayoutError;
pub use form::{AnyLayout, LayoutForm};
pub use in_slot::BlockInSlot;
pub use separate::{LayerOrder, LayerSeparate};

use std::fmt::Debug;

/// A stretch of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    /// The allocation that it lies in. A fully contiguous layout has one, number 0; a layer-separate one has one a layer.
    pub allocation: u32,
    /// Bytes from the start of the allocation.
    pub offset: u64,
    /// Bytes in it.
    pub bytes: u64,
}

/// Bytes from one thing to the next one of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Strides {
    /// From a block to the next.
    pub block: u64,
    /// From a layer to the next of the same block; none where each layer has an allocation of its own.
    pub layer: Option<u64>,
    /// From keys to values of the same layer.
    pub outer: u64,
}

/// How the blocks of one tier lie in its memory.
pub trait BlockLayout: Debug + Send + Sync {
    /// What it was made from.
    fn config(&self) -> &LayoutConfig;

    /// Number of allocations: one, or one for each layer.
    fn allocations(&self) -> u32 {
        if self.strides().layer.is_some() { 1 } else { self.config().num_layers }
    }

    /// Bytes that each allocation needs, the base offset included.
    fn allocation_bytes(&self) -> u64;

    /// Distances.
    fn strides(&self) -> Strides;

    /// The region of one block, layer and outer index.
    ///
    /// # Errors
    /// [`LayoutError::OutOfRange`] if there is no such block, layer or outer index.
    fn region(&self, block: u32, layer: u32, outer: u32) -> Result<Region, LayoutError> {
        let config = self.config();
        let strides = self.strides();
        config.check(block, layer, outer)?;
        let (allocation, layers_before) = match strides.layer {
            Some(stride) => (0, u64::from(layer) * stride),
            None => (layer, 0),
        };
        // Below the bytes of an allocation, which fit.
        let offset = config.base_offset_bytes
            + u64::from(block) * strides.block
            + layers_before
            + u64::from(outer) * strides.outer;
        Ok(Region { allocation, offset, bytes: config.region_bytes() })
    }

    /// Bytes that all allocations need together. It was checked when the layout was made.
    fn total_bytes(&self) -> u64 {
        self.allocation_bytes().saturating_mul(u64::from(self.allocations()))
    }

    /// Bytes of one block without padding: what a transfer moves.
    fn block_bytes(&self) -> u64 {
        self.config().block_bytes()
    }
}
