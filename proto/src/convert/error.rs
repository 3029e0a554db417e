use crate::{code::ErrorCode, hash::HASH_SCHEME, limits::NAME_BYTES_MAX, types::NameError};
use std::fmt;

/// Why a message was refused: the field, as a path within the message, and its problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct ConvertError {
    /// Path of the field, such as `events[2].stored.names`.
    pub field: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The field must be set.
    #[error("is required")]
    Required,
    /// The field must not be set here.
    #[error("must not be set {0}")]
    Unexpected(&'static str),
    /// A text is too long.
    #[error("has {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// A name has a control character, which could forge lines of a log or a report.
    #[error("has a control character: remove it")]
    ControlCharacter,
    /// A name has a character that is not shown, or that changes how others are shown.
    #[error("has the invisible character U+{:04X}: remove it", u32::from(*.0))]
    Invisible(char),
    /// A list has too many entries.
    #[error("has {count} entries, the limit is {limit}: send fewer")]
    TooMany {
        /// Its length.
        count: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// A number is out of range.
    #[error("is {value}, must be {min} to {max}")]
    OutOfRange {
        /// Its value.
        value: u64,
        /// The least that is accepted.
        min: u64,
        /// The most that is accepted.
        max: u64,
    },
    /// The value contradicts the rest of the message.
    #[error("{actual}, must be {expected}")]
    Mismatch {
        /// The value, with a verb: "has 3 entries".
        actual: String,
        /// What is accepted.
        expected: String,
    },
    /// An enum value that this version does not know.
    #[error("has the unknown value {0}")]
    UnknownValue(i32),
    /// A list repeats an entry that must be unique.
    #[error("repeats {0}: each may be given once")]
    Repeated(String),
    /// The hash scheme is another one: its hashes would never match.
    #[error("is {0:?}, this server hashes with {HASH_SCHEME:?}")]
    HashScheme(String),
}

impl ConvertError {
    /// An error of one field.
    #[must_use]
    pub fn new(field: impl Into<String>, problem: Problem) -> Self {
        Self { field: field.into(), problem }
    }

    /// The same error as seen from the enclosing message: `names` within `events[2]`.
    #[must_use]
    pub fn within(self, outer: impl fmt::Display) -> Self {
        Self { field: format!("{outer}.{}", self.field), problem: self.problem }
    }

    /// The code that reports it.
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
