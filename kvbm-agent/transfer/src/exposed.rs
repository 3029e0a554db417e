//! How an owner's memory is reached by peers.

use kvasir_blocks::sets::{MemoryRegion, Registrar, RegistrarError, RegistrationKey};
use std::sync::Arc;

/// Over TCP the owner reads its memory itself: nothing is to be registered.
#[derive(Debug)]
struct NoRegistrar;

impl Registrar for NoRegistrar {
    fn register(&self, region: &MemoryRegion) -> Result<RegistrationKey, RegistrarError> {
        Ok(RegistrationKey(region.range.address))
    }

    fn deregister(&self, _key: RegistrationKey) {}
}

/// How an owner's memory is reached by peers.
#[derive(Debug)]
pub(crate) struct Exposed {
    pub(crate) registrar: Arc<dyn Registrar>,
    /// The address of the first slot; 0 if peers have no use for addresses, because they name blocks by their hashes.
    pub(crate) address: u64,
    /// Metadata of the NIXL agent; empty if there is none.
    pub(crate) metadata: Vec<u8>,
}

impl Exposed {
    /// Over TCP only.
    pub(crate) fn nothing() -> Self {
        Self { registrar: Arc::new(NoRegistrar), address: 0, metadata: Vec::new() }
    }
}
