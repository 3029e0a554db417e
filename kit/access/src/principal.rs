use crate::{Denied, Names, Rate, Role};
use std::sync::Arc;

/// Who calls, and what they may do.
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
    /// The caller of a server without identities: may do everything.
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

    /// How much it may ask; none for any number of queries.
    #[must_use]
    pub const fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Its name in the file, for the log.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has a role; an admin has all.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.iter().any(|own| *own == role || *own == Role::Admin)
    }

    /// Checks that it has a role.
    ///
    /// # Errors
    /// If it does not.
    pub fn check_role(&self, role: Role) -> Result<(), Denied> {
        if self.has(role) { Ok(()) } else { Err(self.denied_role(role)) }
    }

    fn denied_role(&self, role: Role) -> Denied {
        Denied::Role { principal: Arc::clone(&self.name), role }
    }

    /// Whether it may use a tenant's model. Whether anything is there does not matter.
    #[must_use]
    pub fn sees(&self, tenant: &str, model: &str) -> bool {
        self.tenants.contain(tenant) && self.models.contain(model)
    }

    /// Checks that it may use a tenant's model.
    ///
    /// # Errors
    /// If it may not, whether or not anything is there.
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

    /// Whether it may use all tenants and models, and so may see what is counted over all of them.
    #[must_use]
    pub const fn sees_all(&self) -> bool {
        self.tenants.are_all() && self.models.are_all()
    }

    /// Checks that it may publish for a worker of a tenant's model, or change its registration: a publisher for its own workers, an
    /// admin for all.
    ///
    /// # Errors
    /// If it may not.
    pub fn check_worker(&self, tenant: &str, model: &str, worker: &str) -> Result<(), Denied> {
        self.check_role(Role::Publish)?;
        self.check_partition(tenant, model)?;
        if self.has(Role::Admin) || self.workers.contain(worker) {
            return Ok(());
        }
        Err(Denied::Worker { principal: Arc::clone(&self.name), worker: worker.into() })
    }

    /// Checks that it may say of a worker that it has loaded an adapter: gateways serve an adapter as a model of the
    /// tenant.
    ///
    /// # Errors
    /// If it may not use a model of that name.
    pub fn check_adapter(&self, tenant: &str, adapter: &str) -> Result<(), Denied> {
        if self.sees(tenant, adapter) {
            return Ok(());
        }
        Err(Denied::Adapter { principal: Arc::clone(&self.name), adapter: adapter.into() })
    }

    /// Checks that it may change what concerns all tenants, such as checkpoints.
    ///
    /// # Errors
    /// If it is not an admin of all tenants and models.
    pub fn check_admin_of_all(&self) -> Result<(), Denied> {
        self.check_role(Role::Admin)?;
        if self.sees_all() {
            return Ok(());
        }
        Err(Denied::All { principal: Arc::clone(&self.name) })
    }
}
