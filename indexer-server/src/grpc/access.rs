//! What a caller may know of an error.

use crate::query::QueryError;
use kvasir_access::Principal;

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
