use kvasir_blocks::sets::{MemoryRegion, Registrar, RegistrarError, RegistrationKey};

/// Over TCP the owner reads its memory itself: nothing is to be registered.
#[derive(Debug)]
pub(crate) struct NoRegistrar;

impl Registrar for NoRegistrar {
    fn register(&self, region: &MemoryRegion) -> Result<RegistrationKey, RegistrarError> {
        Ok(RegistrationKey(region.range.address))
    }

    fn deregister(&self, _key: RegistrationKey) {}
}
