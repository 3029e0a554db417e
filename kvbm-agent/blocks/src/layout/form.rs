use super::{BlockLayout, FullyContiguous, LayerOrder, LayerSeparate, LayoutConfig};
use super::{LayoutError, Strides};

/// Which layout: what one is made from besides its dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayoutForm {
    /// [`FullyContiguous`].
    FullyContiguous,
    /// [`LayerSeparate`], in this order.
    LayerSeparate(LayerOrder),
}

impl LayoutForm {
    /// The layout of this form and these dimensions.
    ///
    /// # Errors
    /// [`LayoutError`] if a field is not accepted or a size overflows.
    pub fn layout(self, config: LayoutConfig) -> Result<AnyLayout, LayoutError> {
        Ok(match self {
            Self::FullyContiguous => AnyLayout::FullyContiguous(FullyContiguous::new(config)?),
            Self::LayerSeparate(order) => {
                AnyLayout::LayerSeparate(LayerSeparate::new(config, order)?)
            }
        })
    }
}

/// A layout whose form is known at run time only, as that of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AnyLayout {
    /// One allocation.
    FullyContiguous(FullyContiguous),
    /// One allocation a layer.
    LayerSeparate(LayerSeparate),
}

impl AnyLayout {
    /// Which layout it is.
    #[must_use]
    pub const fn form(&self) -> LayoutForm {
        match self {
            Self::FullyContiguous(_) => LayoutForm::FullyContiguous,
            Self::LayerSeparate(layout) => LayoutForm::LayerSeparate(layout.order()),
        }
    }
}

impl BlockLayout for AnyLayout {
    fn config(&self) -> &LayoutConfig {
        match self {
            Self::FullyContiguous(layout) => layout.config(),
            Self::LayerSeparate(layout) => layout.config(),
        }
    }

    fn allocation_bytes(&self) -> u64 {
        match self {
            Self::FullyContiguous(layout) => layout.allocation_bytes(),
            Self::LayerSeparate(layout) => layout.allocation_bytes(),
        }
    }

    fn strides(&self) -> Strides {
        match self {
            Self::FullyContiguous(layout) => layout.strides(),
            Self::LayerSeparate(layout) => layout.strides(),
        }
    }
}
