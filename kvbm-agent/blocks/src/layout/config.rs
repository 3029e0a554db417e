use super::LayoutError;

/// Maximum bytes of an element.
const DTYPE_WIDTH_BYTES_MAX: u32 = 16;
/// Maximum outer dimension: keys and values separate.
const OUTER_DIM_MAX: u32 = 2;

/// Dimensions of the blocks of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayoutConfig {
    /// Number of blocks.
    pub num_blocks: u32,
    /// Number of layers of the model.
    pub num_layers: u32,
    /// 2 for keys and values, 1 where one tensor holds both (MLA).
    pub outer_dim: u32,
    /// Tokens per block.
    pub page_size: u32,
    /// Elements per token, in one layer and outer index: number of heads times their width.
    pub inner_dim: u32,
    /// Bytes per element: a power of two, at most 16.
    pub dtype_width_bytes: u32,
    /// Alignment of every block, in bytes: a power of two; 1 for none.
    pub alignment_bytes: u64,
    /// Bytes before the first block of every allocation: a multiple of the alignment.
    pub base_offset_bytes: u64,
}

impl LayoutConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// [`LayoutError`] names the first field that is 0, too large, misaligned or not a power of two, or the size that
    /// overflows.
    pub fn validate(&self) -> Result<(), LayoutError> {
        for (field, value) in [
            ("num_blocks", u64::from(self.num_blocks)),
            ("num_layers", u64::from(self.num_layers)),
            ("outer_dim", u64::from(self.outer_dim)),
            ("page_size", u64::from(self.page_size)),
            ("inner_dim", u64::from(self.inner_dim)),
            ("dtype_width_bytes", u64::from(self.dtype_width_bytes)),
            ("alignment_bytes", self.alignment_bytes),
        ] {
            if value == 0 {
                return Err(LayoutError::Zero { field });
            }
        }
        at_most("outer_dim", self.outer_dim, OUTER_DIM_MAX)?;
        at_most("dtype_width_bytes", self.dtype_width_bytes, DTYPE_WIDTH_BYTES_MAX)?;
        power_of_two("dtype_width_bytes", u64::from(self.dtype_width_bytes))?;
        power_of_two("alignment_bytes", self.alignment_bytes)?;
        let field = "base_offset_bytes";
        let value = self.base_offset_bytes;
        if !value.is_multiple_of(self.alignment_bytes) {
            let alignment = self.alignment_bytes;
            return Err(LayoutError::Misaligned { field, value, alignment });
        }
        let layers = u64::from(self.num_layers) * u64::from(self.outer_dim);
        mul("block_bytes", self.checked_region_bytes()?, layers)?;
        Ok(())
    }

    /// Bytes of one region: `page_size × inner_dim × dtype_width_bytes`. Never overflows for a checked configuration.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.checked_region_bytes().unwrap_or(u64::MAX)
    }

    /// Bytes of one block without padding.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        let layers = u64::from(self.num_layers) * u64::from(self.outer_dim);
        self.region_bytes().saturating_mul(layers)
    }

    fn checked_region_bytes(&self) -> Result<u64, LayoutError> {
        let elements = u64::from(self.page_size) * u64::from(self.inner_dim);
        mul("region_bytes", elements, u64::from(self.dtype_width_bytes))
    }

    /// Checks that the indices of a block, layer and outer dimension exist.
    pub(super) fn check(&self, block: u32, layer: u32, outer: u32) -> Result<(), LayoutError> {
        for (field, value, count) in [
            ("block", block, self.num_blocks),
            ("layer", layer, self.num_layers),
            ("outer", outer, self.outer_dim),
        ] {
            if value >= count {
                return Err(LayoutError::OutOfRange { field, value, count });
            }
        }
        Ok(())
    }
}

fn at_most(field: &'static str, value: u32, max: u32) -> Result<(), LayoutError> {
    if value > max {
        return Err(LayoutError::TooLarge { field, value: value.into(), max: max.into() });
    }
    Ok(())
}

const fn power_of_two(field: &'static str, value: u64) -> Result<(), LayoutError> {
    if value.is_power_of_two() { Ok(()) } else { Err(LayoutError::NotPowerOfTwo { field, value }) }
}

/// Multiplies, or names the field whose size overflows.
pub(super) fn mul(field: &'static str, a: u64, b: u64) -> Result<u64, LayoutError> {
    a.checked_mul(b).ok_or(LayoutError::Overflow { field })
}

/// Adds, or names the field whose size overflows.
pub(super) fn add(field: &'static str, a: u64, b: u64) -> Result<u64, LayoutError> {
    a.checked_add(b).ok_or(LayoutError::Overflow { field })
}

/// Rounds `value` up to a multiple of `alignment`, which is a power of two.
pub(super) fn align_up(
    field: &'static str,
    value: u64,
    alignment: u64,
) -> Result<u64, LayoutError> {
    value.checked_next_multiple_of(alignment).ok_or(LayoutError::Overflow { field })
}
