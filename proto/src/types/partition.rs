use crate::limits::NAME_BYTES_MAX;
use std::{fmt, sync::Arc};

/// A name that is missing or too long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A required name is empty.
    #[error("{field} is required")]
    Missing {
        /// Field of the request.
        field: &'static str,
    },
    /// A name is longer than [`NAME_BYTES_MAX`].
    #[error("{field} has {bytes} bytes, the limit is {NAME_BYTES_MAX}")]
    TooLong {
        /// Field of the request.
        field: &'static str,
        /// Its length.
        bytes: usize,
    },
}

pub(super) fn check_name(field: &'static str, name: &str) -> Result<(), NameError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong { field, bytes: name.len() });
    }
    Ok(())
}

pub(super) fn check_required(field: &'static str, name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Missing { field });
    }
    check_name(field, name)
}

/// (model, tenant): an index of its own. Queries never cross partitions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionKey {
    model: Arc<str>,
    tenant: Arc<str>,
}

impl PartitionKey {
    /// A partition of 1–256 bytes of `model` and up to 256 bytes of `tenant`.
    ///
    /// # Errors
    /// If `model` is empty or either is too long.
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
        write!(f, "{}/{}", self.model, self.tenant)
    }
}
