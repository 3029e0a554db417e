use crate::limits::NAME_BYTES_MAX;
use std::fmt;
use std::sync::Arc;

/// Why a name is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A required name is empty.
    #[error("{field} is required")]
    Missing {
        /// Field of the request.
        field: &'static str,
    },
    /// The name is longer than [`NAME_BYTES_MAX`].
    #[error("{field} has {bytes} bytes, the limit is {NAME_BYTES_MAX}")]
    TooLong {
        /// Field of the request.
        field: &'static str,
        /// Length of the name.
        bytes: usize,
    },
    /// The name has a control character, which could forge lines of a log or a report.
    #[error("{field} has a control character")]
    ControlCharacter {
        /// Field of the request.
        field: &'static str,
    },
    /// The name has an invisible character, or one that changes how other characters are shown. It could look like
    /// another name.
    #[error("{field} has the invisible character U+{:04X}", u32::from(*character))]
    Invisible {
        /// Field of the request.
        field: &'static str,
        /// The character.
        character: char,
    },
}

/// The first invisible or misleading character of a name: zero-width spaces, joiners, direction marks, line separators,
/// tags.
#[must_use]
pub fn invisible_character(name: &str) -> Option<char> {
    let is_invisible = |at: &char| {
        matches!(
            at,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
    };
    name.chars().find(is_invisible)
}

pub(super) fn check_name(field: &'static str, name: &str) -> Result<(), NameError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong { field, bytes: name.len() });
    }
    if name.chars().any(char::is_control) {
        return Err(NameError::ControlCharacter { field });
    }
    if let Some(character) = invisible_character(name) {
        return Err(NameError::Invisible { field, character });
    }
    Ok(())
}

pub(super) fn check_required(field: &'static str, name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Missing { field });
    }
    check_name(field, name)
}

/// A model and a tenant. Each partition has its own index; queries never cross partitions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionKey {
    model: Arc<str>,
    tenant: Arc<str>,
}

impl PartitionKey {
    /// Creates a partition from 1–256 bytes of `model` and up to 256 bytes of `tenant`, without control characters.
    ///
    /// # Errors
    /// If `model` is empty, or one of the names is too long or has a control character.
    pub fn new(model: &str, tenant: &str) -> Result<Self, NameError> {
        check_required("model", model)?;
        check_name("tenant", tenant)?;
        Ok(Self { model: model.into(), tenant: tenant.into() })
    }

    /// Name of the model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Name of the tenant, "" by default.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model {}", self.model)?;
        if self.tenant.is_empty() { Ok(()) } else { write!(f, ", tenant {}", self.tenant) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WorkerId;

    #[test]
    fn a_partition_is_named_in_words() {
        let text = |tenant| PartitionKey::new("org/m", tenant).map(|key| key.to_string());
        assert_eq!(text("").as_deref(), Ok("model org/m"));
        assert_eq!(text("t").as_deref(), Ok("model org/m, tenant t"));
    }

    #[test]
    fn names_are_checked() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let check = |model: &str, tenant: &str, worker: &str, expected: Result<(), &str>| {
            let partition = PartitionKey::new(model, tenant).map(drop);
            let found = partition.and_then(|()| WorkerId::new(worker).map(drop));
            assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
        };
        check("m", "", "w", Ok(()));
        check("org/model name", "mandant-ü", "w#0 日本", Ok(()));
        let longest = "x".repeat(NAME_BYTES_MAX);
        check(&longest, &longest, &longest, Ok(()));
        check("", "", "w", Err("model is required"));
        check("m", "", "", Err("worker_id is required"));
        check(&long, "", "w", Err("model has 257 bytes, the limit is 256"));
        check("m", &long, "w", Err("tenant has 257 bytes, the limit is 256"));
        check("m\n", "", "w", Err("model has a control character"));
        check("m", "\u{1b}[2J", "w", Err("tenant has a control character"));
        check("m", "", "w\0", Err("worker_id has a control character"));
        check("m", "", "w\u{85}", Err("worker_id has a control character"));
        check("m\u{202e}", "", "w", Err("model has the invisible character U+202E"));
        check("m", "a\u{200b}b", "w", Err("tenant has the invisible character U+200B"));
        check("m", "", "w\u{2028}", Err("worker_id has the invisible character U+2028"));
        check("m", "", "w\u{e0041}", Err("worker_id has the invisible character U+E0041"));
    }
}
