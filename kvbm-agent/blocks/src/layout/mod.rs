//! Computes where the bytes of a block are: exact offset arithmetic in `u64`.
//!
//! A block is `[layer][outer][page × inner]`: for each layer, one *region* for keys and one for values, or one for both
//! (MLA). A layout gives offset and length of each region. All tiers with the same [`LayoutConfig`] have the same
//! layout.

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

/// A contiguous range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    /// The allocation that contains the region: 0 in a fully contiguous layout, the layer's number in a layer-separate
    /// one.
    pub allocation: u32,
    /// Bytes from the start of the allocation.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Distances in bytes between consecutive blocks, layers, and keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Strides {
    /// From a block to the next block.
    pub block: u64,
    /// From a layer to the next layer of the same block; `None` if each layer has its own allocation.
    pub layer: Option<u64>,
    /// From keys to values of the same layer.
    pub outer: u64,
}

/// How the blocks of one tier are arranged in memory.
pub trait BlockLayout: Debug + Send + Sync {
    /// The dimensions of the layout.
    fn config(&self) -> &LayoutConfig;

    /// Number of allocations: one, or one for each layer.
    fn allocations(&self) -> u32 {
        if self.strides().layer.is_some() { 1 } else { self.config().num_layers }
    }

    /// Bytes of each allocation, including the base offset.
    fn allocation_bytes(&self) -> u64;

    /// Distances between blocks, layers, and keys and values.
    fn strides(&self) -> Strides;

    /// Returns the region of one block, layer and outer index.
    ///
    /// # Errors
    /// [`LayoutError::OutOfRange`] if the block, layer or outer index does not exist.
    fn region(&self, block: u32, layer: u32, outer: u32) -> Result<Region, LayoutError> {
        let config = self.config();
        let strides = self.strides();
        config.check(block, layer, outer)?;
        let (allocation, layers_before) = match strides.layer {
            Some(stride) => (0, u64::from(layer) * stride),
            None => (layer, 0),
        };
        // Less than the bytes of an allocation, which do not overflow.
        let offset = config.base_offset_bytes
            + u64::from(block) * strides.block
            + layers_before
            + u64::from(outer) * strides.outer;
        Ok(Region { allocation, offset, bytes: config.region_bytes() })
    }

    /// Bytes of all allocations together. The constructor has checked that they do not overflow.
    fn total_bytes(&self) -> u64 {
        self.allocation_bytes().saturating_mul(u64::from(self.allocations()))
    }

    /// Bytes of one block without padding: the bytes that a transfer moves.
    fn block_bytes(&self) -> u64 {
        self.config().block_bytes()
    }
}
