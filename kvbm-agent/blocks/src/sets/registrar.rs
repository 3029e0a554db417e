use super::{MemoryRegion, RegistrarError};
use std::fmt::Debug;
use std::sync::Arc;

/// A backend's number for a region that is registered with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegistrationKey(pub u64);

/// What a transfer backend does to make memory reachable for peers, as `nixl_register` does.
///
/// No lock of the registry is held when it is called.
pub trait Registrar: Debug + Send + Sync {
    /// Makes a region reachable. The memory stays where it is until [`Registrar::deregister`].
    ///
    /// # Errors
    /// [`RegistrarError`] if the backend does not accept it.
    fn register(&self, region: &MemoryRegion) -> Result<RegistrationKey, RegistrarError>;

    /// Ends that. It is called once for each registration, when no transfer touches the region any more: what keeps
    /// the memory may go.
    fn deregister(&self, key: RegistrationKey);
}

/// A region that is registered. Dropping it is the one way to deregister it.
#[derive(Debug)]
pub(super) struct RegisteredRegion {
    registrar: Arc<dyn Registrar>,
    key: RegistrationKey,
}

impl RegisteredRegion {
    pub(super) fn new(
        registrar: &Arc<dyn Registrar>,
        region: &MemoryRegion,
    ) -> Result<Self, RegistrarError> {
        let key = registrar.register(region)?;
        Ok(Self { registrar: Arc::clone(registrar), key })
    }
}

impl Drop for RegisteredRegion {
    fn drop(&mut self) {
        self.registrar.deregister(self.key);
    }
}
