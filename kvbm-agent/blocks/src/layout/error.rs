use thiserror::Error;

/// Why a layout can't be made, or has no such region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// A field is 0.
    #[error("{field} must not be 0")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// A field is larger than it may be.
    #[error("{field} is {value}, the limit is {max}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The largest that is accepted.
        max: u64,
    },
    /// A field is no power of two.
    #[error("{field} is {value}, which is not a power of two")]
    NotPowerOfTwo {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A field is no multiple of the alignment.
    #[error("{field} is {value}, which is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The alignment.
        alignment: u64,
    },
    /// A size does not fit into 64 bits.
    #[error("{field} overflows 64 bits")]
    Overflow {
        /// What was computed.
        field: &'static str,
    },
    /// There is no such block, layer or outer index.
    #[error("{field} {value} is out of range, there are {count}")]
    OutOfRange {
        /// What was asked for.
        field: &'static str,
        /// Its number.
        value: u32,
        /// How many there are.
        count: u32,
    },
}
