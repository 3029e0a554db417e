use super::config::{add, align_up, mul};
use super::{BlockLayout, LayoutConfig, LayoutError, Strides};

/// The order of blocks and of keys and values within a layer's allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerOrder {
    /// `[block][outer][page × inner]`: `outer_stride = region`, `block_stride = align_up(outer_dim × region)`.
    BlockContiguous,
    /// `[outer][block][page × inner]`: `block_stride = align_up(region)`, `outer_stride = num_blocks × block_stride`.
    OuterContiguous,
}

/// A layout with one allocation per layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerSeparate {
    config: LayoutConfig,
    order: LayerOrder,
    strides: Strides,
    bytes: u64,
}

impl LayerSeparate {
    /// Creates a layout with the dimensions in `config`.
    ///
    /// # Errors
    /// [`LayoutError`] if a field is invalid or a size overflows.
    pub fn new(config: LayoutConfig, order: LayerOrder) -> Result<Self, LayoutError> {
        config.validate()?;
        let region = config.region_bytes();
        let outer_dim = u64::from(config.outer_dim);
        let blocks = u64::from(config.num_blocks);
        let (block, outer, used) = match order {
            LayerOrder::BlockContiguous => {
                let natural = mul("block_stride", region, outer_dim)?;
                let block = align_up("block_stride", natural, config.alignment_bytes)?;
                (block, region, mul("layer_bytes", block, blocks)?)
            }
            LayerOrder::OuterContiguous => {
                let block = align_up("block_stride", region, config.alignment_bytes)?;
                let outer = mul("outer_stride", block, blocks)?;
                (block, outer, mul("layer_bytes", outer, outer_dim)?)
            }
        };
        let bytes = add("layer_bytes", used, config.base_offset_bytes)?;
        mul("total_bytes", bytes, config.num_layers.into())?;
        Ok(Self { config, order, strides: Strides { block, layer: None, outer }, bytes })
    }

    /// The order within a layer's allocation.
    #[must_use]
    pub const fn order(&self) -> LayerOrder {
        self.order
    }
}

impl BlockLayout for LayerSeparate {
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
