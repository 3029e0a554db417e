use crate::{Denied, Names, Rate, Role};
use std::sync::Arc;

/// An authenticated caller and its permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub(crate) name: Arc<str>,
    pub(crate) roles: Vec<Role>,
    pub(crate) tenants: Names,
    pub(crate) models: Names,
    pub(crate) workers: Names,
    pub(crate) rate: Option<Rate>,
}

impl Principal {
    /// Returns the caller of a server without identities, which may do everything.
    #[must_use]
    pub fn anyone() -> Self {
        Self {
            name: "anyone".into(),
            roles: vec![Role::Admin],
            tenants: Names::All,
            models: Names::All,
            workers: Names::All,
            rate: None,
        }
    }

    /// Rate limit of the caller's queries; `None` is unlimited.
    #[must_use]
    pub const fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Name of the identity in the file, for the log.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the caller has a role. An admin has all roles.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.iter().any(|own| *own == role || *own == Role::Admin)
    }

    /// Checks that the caller has a role.
    ///
    /// # Errors
    /// If the caller lacks the role.
    pub fn check_role(&self, role: Role) -> Result<(), Denied> {
        if self.has(role) { Ok(()) } else { Err(self.denied_role(role)) }
    }

    fn denied_role(&self, role: Role) -> Denied {
        Denied::Role { principal: Arc::clone(&self.name), role }
    }

    /// Whether the caller may use a tenant's model, whether or not the model exists.
    #[must_use]
    pub fn sees(&self, tenant: &str, model: &str) -> bool {
        self.tenants.contain(tenant) && self.models.contain(model)
    }

    /// Checks that the caller may use a tenant's model.
    ///
    /// # Errors
    /// If the caller lacks this right, whether or not the model exists.
    pub fn check_partition(&self, tenant: &str, model: &str) -> Result<(), Denied> {
        if self.sees(tenant, model) {
            return Ok(());
        }
        Err(Denied::Partition {
            principal: Arc::clone(&self.name),
            tenant: tenant.into(),
            model: model.into(),
        })
    }

    /// Whether the caller may use all tenants and models, and thus see fleet-wide totals.
    #[must_use]
    pub const fn sees_all(&self) -> bool {
        self.tenants.are_all() && self.models.are_all()
    }

    /// Checks that the caller may publish for a worker of a tenant's model, or change the worker's registration. A
    /// publisher may do this for its own workers, an admin for all.
    ///
    /// # Errors
    /// If the caller may not.
    pub fn check_worker(&self, tenant: &str, model: &str, worker: &str) -> Result<(), Denied> {
        self.check_role(Role::Publish)?;
        self.check_partition(tenant, model)?;
        if self.has(Role::Admin) || self.workers.contain(worker) {
            return Ok(());
        }
        Err(Denied::Worker { principal: Arc::clone(&self.name), worker: worker.into() })
    }

    /// Checks that the caller may report that a worker has loaded an adapter. Gateways serve an adapter as a model of
    /// the tenant.
    ///
    /// # Errors
    /// If the caller may not use a model with the adapter's name.
    pub fn check_adapter(&self, tenant: &str, adapter: &str) -> Result<(), Denied> {
        if self.sees(tenant, adapter) {
            return Ok(());
        }
        Err(Denied::Adapter { principal: Arc::clone(&self.name), adapter: adapter.into() })
    }

    /// Checks that the caller may change state of all tenants, such as checkpoints.
    ///
    /// # Errors
    /// If the caller is not an admin of all tenants and models.
    pub fn check_admin_of_all(&self) -> Result<(), Denied> {
        self.check_role(Role::Admin)?;
        if self.sees_all() {
            return Ok(());
        }
        Err(Denied::All { principal: Arc::clone(&self.name) })
    }
}
