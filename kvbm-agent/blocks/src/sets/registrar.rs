use super::{MemoryRegion, RegistrarError};
use std::fmt::Debug;
use std::sync::Arc;

/// A backend's key of a registered region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegistrationKey(pub u64);

/// Makes memory accessible for peers; implemented by transfer backends, for example with `nixl_register`.
///
/// The registry calls it without holding a lock.
pub trait Registrar: Debug + Send + Sync {
    /// Registers a region. The caller keeps the memory in place until [`Registrar::deregister`].
    ///
    /// # Errors
    /// [`RegistrarError`] if the backend refuses the region.
    fn register(&self, region: &MemoryRegion) -> Result<RegistrationKey, RegistrarError>;

    /// Deregisters a region. It is called once per registration, after the last transfer of the region. Afterwards the
    /// memory may be freed.
    fn deregister(&self, key: RegistrationKey);
}

/// A registered region. Only its drop deregisters it.
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
