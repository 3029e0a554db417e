use crate::route::error::{ConfigError, check};
use std::sync::Arc;

/// Maximum length of a request id, in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 256;

/// Id of a router process, unique among replicas and new with each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterId(pub u64);

/// Key of a request: the router that placed it, and the id from this router.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey {
    /// The router that placed the request; updates from other routers are ignored.
    pub router: RouterId,
    id: Arc<str>,
}

impl RequestKey {
    /// The key of a router's request with this id.
    ///
    /// # Errors
    /// If the id is empty or longer than [`REQUEST_ID_BYTES_MAX`].
    pub fn new(router: RouterId, id: &str) -> Result<Self, ConfigError> {
        Self::of_shared(router, id.into())
    }

    /// [`RequestKey::new`] for an already shared id.
    ///
    /// # Errors
    /// As [`RequestKey::new`].
    pub fn of_shared(router: RouterId, id: Arc<str>) -> Result<Self, ConfigError> {
        check(!id.is_empty(), "request id", "is required")?;
        check(id.len() <= REQUEST_ID_BYTES_MAX, "request id", "is longer than 256 bytes")?;
        Ok(Self { router, id })
    }

    /// The request id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The request id as a shared string.
    #[must_use]
    pub fn shared_id(&self) -> Arc<str> {
        Arc::clone(&self.id)
    }

    /// Lower bound of a router's keys.
    pub(super) fn first_of(router: RouterId) -> Self {
        Self::before(router, "")
    }

    /// Lower bound of a router's keys after `id`, which may be empty.
    pub(super) fn before(router: RouterId, id: &str) -> Self {
        Self { router, id: id.into() }
    }
}
