use thiserror::Error;

/// Why a layout is invalid, or has no such region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// A field is 0.
    #[error("{field} must not be 0")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// A field exceeds its limit.
    #[error("{field} is {value}, the limit is {max}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// The field's value.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// A field is not a power of two.
    #[error("{field} is {value}, which is not a power of two")]
    NotPowerOfTwo {
        /// The field.
        field: &'static str,
        /// The field's value.
        value: u64,
    },
    /// A field is not a multiple of the alignment.
    #[error("{field} is {value}, which is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The field.
        field: &'static str,
        /// The field's value.
        value: u64,
        /// The alignment.
        alignment: u64,
    },
    /// A size does not fit into 64 bits.
    #[error("{field} overflows 64 bits")]
    Overflow {
        /// The size that was computed.
        field: &'static str,
    },
    /// The block, layer or outer index does not exist.
    #[error("{field} {value} is out of range, there are {count}")]
    OutOfRange {
        /// Block, layer or outer index.
        field: &'static str,
        /// The requested number.
        value: u32,
        /// How many there are.
        count: u32,
    },
}
