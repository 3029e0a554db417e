use crate::route::error::{ConfigError, check};
use std::sync::Arc;

/// Longest id of a request, in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 256;

/// One router among replicas, unique among them and new with each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterId(pub u64);

/// A request, by the router that placed it and the id that this router gave it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey {
    /// The router that placed it: updates from other routers do not count.
    pub router: RouterId,
    id: Arc<str>,
}

impl RequestKey {
    /// The request that a router calls by this id.
    ///
    /// # Errors
    /// If the id is empty or longer than [`REQUEST_ID_BYTES_MAX`].
    pub fn new(router: RouterId, id: &str) -> Result<Self, ConfigError> {
        Self::of_shared(router, id.into())
    }

    /// The same of an id that is shared already.
    ///
    /// # Errors
    /// As [`RequestKey::new`].
    pub fn of_shared(router: RouterId, id: Arc<str>) -> Result<Self, ConfigError> {
        check(!id.is_empty(), "request id", "is required")?;
        check(id.len() <= REQUEST_ID_BYTES_MAX, "request id", "is longer than 256 bytes")?;
        Ok(Self { router, id })
    }

    /// The id that the router gave it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The id, for others to keep.
    #[must_use]
    pub fn shared_id(&self) -> Arc<str> {
        Arc::clone(&self.id)
    }

    /// The key before all requests of a router.
    pub(super) fn first_of(router: RouterId) -> Self {
        Self::before(router, "")
    }

    /// The key before all requests of a router whose ids come after `id`, which may be empty.
    pub(super) fn before(router: RouterId, id: &str) -> Self {
        Self { router, id: id.into() }
    }
}
