use crate::Role;
use std::sync::Arc;

/// Why a call is denied. The texts name only values from the caller's own request, and rights that its identity lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The identity lacks the role.
    #[error("identity {principal:?} lacks the role {role}")]
    Role {
        /// Name of the identity.
        principal: Arc<str>,
        /// The required role.
        role: Role,
    },
    /// The identity may not use this model of the tenant.
    #[error("identity {principal:?} may not use tenant {tenant:?}, model {model:?}")]
    Partition {
        /// Name of the identity.
        principal: Arc<str>,
        /// Tenant, as the caller wrote it.
        tenant: Box<str>,
        /// Model, as the caller wrote it.
        model: Box<str>,
    },
    /// The worker is not in the identity's list of workers.
    #[error("identity {principal:?} may not act for worker {worker:?}")]
    Worker {
        /// Name of the identity.
        principal: Arc<str>,
        /// Worker, as the caller wrote it.
        worker: Box<str>,
    },
    /// The identity may not use a model with the adapter's name.
    #[error(
        "identity {principal:?} may not announce adapter {adapter:?} (lora_names): list it in the identity's models"
    )]
    Adapter {
        /// Name of the identity.
        principal: Arc<str>,
        /// Adapter, as the caller wrote it.
        adapter: Box<str>,
    },
    /// The call affects all tenants and models, and the identity is limited to some.
    #[error("identity {principal:?} is not admin of all tenants and models")]
    All {
        /// Name of the identity.
        principal: Arc<str>,
    },
}
