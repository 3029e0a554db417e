use crate::Role;
use std::sync::Arc;

/// Why a call is denied. The texts name only what the caller has sent and what its own identity lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The identity lacks the role.
    #[error("identity {principal:?} lacks the role {role}")]
    Role {
        /// Name of the identity.
        principal: Arc<str>,
        /// The role that the call needs.
        role: Role,
    },
    /// The identity may not use the tenant's model.
    #[error("identity {principal:?} may not use tenant {tenant:?}, model {model:?}")]
    Partition {
        /// Name of the identity.
        principal: Arc<str>,
        /// As the caller named it.
        tenant: Box<str>,
        /// As the caller named it.
        model: Box<str>,
    },
    /// The worker is not one of the identity's own.
    #[error("identity {principal:?} does not speak for worker {worker:?}")]
    Worker {
        /// Name of the identity.
        principal: Arc<str>,
        /// As the caller named it.
        worker: Box<str>,
    },
    /// The identity may not use a model of an adapter's name.
    #[error(
        "identity {principal:?} may not announce adapter {adapter:?} (lora_names): list it in the identity's models"
    )]
    Adapter {
        /// Name of the identity.
        principal: Arc<str>,
        /// As the caller named it.
        adapter: Box<str>,
    },
    /// The call concerns all tenants and models.
    #[error("identity {principal:?} is not admin of all tenants and models")]
    All {
        /// Name of the identity.
        principal: Arc<str>,
    },
}
