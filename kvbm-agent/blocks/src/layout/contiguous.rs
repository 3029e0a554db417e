use super::config::{add, align_up, mul};
use super::{BlockLayout, LayoutConfig, LayoutError, Strides};

/// All layers of all blocks in one allocation: `[block][layer][outer][page × inner]`.
///
/// `block_stride = align_up(num_layers × layer_stride, alignment)`; the last block has no padding behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FullyContiguous {
    config: LayoutConfig,
    strides: Strides,
    bytes: u64,
}

impl FullyContiguous {
    /// Creates a layout with the dimensions in `config`.
    ///
    /// # Errors
    /// [`LayoutError`] if a field is invalid or a size overflows.
    pub fn new(config: LayoutConfig) -> Result<Self, LayoutError> {
        config.validate()?;
        let outer = config.region_bytes();
        let layer = mul("layer_stride", outer, config.outer_dim.into())?;
        let natural = mul("block_bytes", layer, config.num_layers.into())?;
        let block = align_up("block_stride", natural, config.alignment_bytes)?;
        let before_last = mul("total_bytes", block, u64::from(config.num_blocks) - 1)?;
        let bytes = add("total_bytes", before_last, natural)?;
        let bytes = add("total_bytes", bytes, config.base_offset_bytes)?;
        let strides = Strides { block, layer: Some(layer), outer };
        Ok(Self { config, strides, bytes })
    }
}

impl BlockLayout for FullyContiguous {
    fn config(&self) -> &LayoutConfig {
        &self.config
    }

    fn allocation_bytes(&self) -> u64 {
        self.bytes
    }

    fn strides(&self) -> Strides {
        self.strides
    }
}
