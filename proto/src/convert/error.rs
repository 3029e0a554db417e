use crate::code::ErrorCode;
use crate::hash::HASH_SCHEME;
use crate::limits::NAME_BYTES_MAX;
use crate::types::NameError;
use std::fmt;

/// Why a message is rejected: the field, as a path within the message, and its problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct ConvertError {
    /// Path of the field, such as `events[2].stored.names`.
    pub field: String,
    /// The problem of the field.
    pub problem: Problem,
}

/// Problem of a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The field must be set.
    #[error("is required")]
    Required,
    /// The field must not be set here.
    #[error("must not be set {0}")]
    Unexpected(&'static str),
    /// The text is too long.
    #[error("has {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// Length of the text.
        bytes: usize,
        /// Maximum length.
        limit: usize,
    },
    /// The name has a control character, which could forge lines of a log or a report.
    #[error("has a control character: remove it")]
    ControlCharacter,
    /// The name has an invisible character, or one that changes how other characters are shown.
    #[error("has the invisible character U+{:04X}: remove it", u32::from(*.0))]
    Invisible(char),
    /// The list has too many entries.
    #[error("has {count} entries, the limit is {limit}: send fewer")]
    TooMany {
        /// Length of the list.
        count: usize,
        /// Maximum number of entries.
        limit: usize,
    },
    /// The number is out of range.
    #[error("is {value}, must be {min} to {max}")]
    OutOfRange {
        /// The number.
        value: u64,
        /// Minimum accepted value.
        min: u64,
        /// Maximum accepted value.
        max: u64,
    },
    /// The value contradicts the rest of the message.
    #[error("{actual}, must be {expected}")]
    Mismatch {
        /// The received value, with a verb: "has 3 entries".
        actual: String,
        /// The accepted value.
        expected: String,
    },
    /// The enum value is unknown to this version.
    #[error("has the unknown value {0}")]
    UnknownValue(i32),
    /// The list repeats an entry that must be unique.
    #[error("repeats {0}: each may be given once")]
    Repeated(String),
    /// The hash scheme differs from the server's, so its hashes would never match.
    #[error("is {0:?}, this server hashes with {HASH_SCHEME:?}")]
    HashScheme(String),
}

impl ConvertError {
    /// Creates an error of one field.
    #[must_use]
    pub fn new(field: impl Into<String>, problem: Problem) -> Self {
        Self { field: field.into(), problem }
    }

    /// Prefixes the path with the enclosing message: `names` within `events[2]`.
    #[must_use]
    pub fn within(self, outer: impl fmt::Display) -> Self {
        Self { field: format!("{outer}.{}", self.field), problem: self.problem }
    }

    /// The error code for the caller.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self.problem {
            Problem::HashScheme(_) => ErrorCode::FailedPrecondition,
            Problem::Required
            | Problem::Unexpected(_)
            | Problem::TooLong { .. }
            | Problem::ControlCharacter
            | Problem::Invisible(_)
            | Problem::TooMany { .. }
            | Problem::OutOfRange { .. }
            | Problem::Mismatch { .. }
            | Problem::UnknownValue(_)
            | Problem::Repeated(_) => ErrorCode::InvalidArgument,
        }
    }
}

impl From<NameError> for ConvertError {
    fn from(error: NameError) -> Self {
        match error {
            NameError::Missing { field } => Self::new(field, Problem::Required),
            NameError::TooLong { field, bytes } => {
                Self::new(field, Problem::TooLong { bytes, limit: NAME_BYTES_MAX })
            }
            NameError::ControlCharacter { field } => Self::new(field, Problem::ControlCharacter),
            NameError::Invisible { field, character } => {
                Self::new(field, Problem::Invisible(character))
            }
        }
    }
}
