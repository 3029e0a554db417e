//! Who calls, and what a caller may know of an error.

use crate::query::QueryError;
use kvasir_access::Principal;
use kvasir_process::{
    access::check_partition,
    net::Peer,
    port::{principal, quota, take_query},
    quota::Quota,
};
use kvasir_proto::types::PartitionKey;
use std::sync::Arc;
use tonic::{Request, Status};

/// Who makes a call.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) principal: Arc<Principal>,
    /// Its connection.
    pub(super) peer: Option<Arc<Peer>>,
    /// What limits its queries.
    quota: Option<Quota>,
}

impl Caller {
    /// Of a request, as the port has left it.
    pub(super) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        let peer = request.extensions().get::<Arc<Peer>>().map(Arc::clone);
        Ok(Self { principal: principal(request)?, peer, quota: quota(request) })
    }

    /// Checks that the caller may ask about a partition, and takes one query from its rates.
    ///
    /// # Errors
    /// If it may not, or not now.
    pub(super) fn ask(&self, partition: &PartitionKey) -> Result<(), Status> {
        check_partition(&self.principal, partition)?;
        take_query(self.quota.as_ref(), partition.tenant())
    }
}

/// The error as the caller may know it: it names only models that the caller may use.
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
