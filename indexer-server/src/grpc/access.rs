//! Identifies callers, and restricts the contents of errors to the caller's rights.

use crate::query::QueryError;
use kvasir_access::Principal;
use kvasir_process::access::check_partition;
use kvasir_process::net::Peer;
use kvasir_process::port::{principal, quota, take_query};
use kvasir_process::quota::Quota;
use kvasir_proto::types::PartitionKey;
use std::sync::Arc;
use tonic::{Request, Status};

/// The caller of a request.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) principal: Arc<Principal>,
    /// The caller's connection.
    pub(super) peer: Option<Arc<Peer>>,
    /// Rate limits for the caller's queries.
    quota: Option<Quota>,
}

impl Caller {
    /// Reads the caller from a request's extensions, set by the port.
    pub(super) fn from_request<T>(request: &Request<T>) -> Result<Self, Status> {
        let peer = request.extensions().get::<Arc<Peer>>().map(Arc::clone);
        Ok(Self { principal: principal(request)?, peer, quota: quota(request) })
    }

    /// Checks that the caller may query a partition, and counts one query against its rate limits.
    ///
    /// # Errors
    /// If the caller has no permission, or exceeds its rate limits.
    pub(super) fn admit_query(&self, partition: &PartitionKey) -> Result<(), Status> {
        check_partition(&self.principal, partition)?;
        take_query(self.quota.as_ref(), partition.tenant())
    }
}

/// Restricts an error to the caller's rights: it names only models that the caller may use.
pub(super) fn for_principal(error: QueryError, principal: &Principal) -> QueryError {
    match error {
        QueryError::UnknownPartition { key, mut models } => {
            models.retain(|model| principal.sees(key.tenant(), model));
            QueryError::UnknownPartition { key, models }
        }
        QueryError::BlockSize { .. }
        | QueryError::TooManyBlocks(_)
        | QueryError::Index(_)
        | QueryError::Stopping(_) => error,
    }
}
