use super::{BlockLayout, FullyContiguous, LayerOrder, LayerSeparate, LayoutConfig};
use super::{LayoutError, Strides};

/// The form of a layout: how layers and blocks are arranged, without the dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayoutForm {
    /// [`FullyContiguous`].
    FullyContiguous,
    /// [`LayerSeparate`] with this order.
    LayerSeparate(LayerOrder),
}

impl LayoutForm {
    /// Creates the layout of this form with the dimensions in `config`.
    ///
    /// # Errors
    /// [`LayoutError`] if a field is invalid or a size overflows.
    pub fn layout(self, config: LayoutConfig) -> Result<AnyLayout, LayoutError> {
        Ok(match self {
            Self::FullyContiguous => AnyLayout::FullyContiguous(FullyContiguous::new(config)?),
            Self::LayerSeparate(order) => {
                AnyLayout::LayerSeparate(LayerSeparate::new(config, order)?)
            }
        })
    }
}

/// A layout whose form is known only at run time, such as the layout of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AnyLayout {
    /// One allocation.
    FullyContiguous(FullyContiguous),
    /// One allocation per layer.
    LayerSeparate(LayerSeparate),
}

impl AnyLayout {
    /// The layout's form.
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
