//! Makes an owner's memory accessible to peers.

use kvasir_blocks::sets::{MemoryRegion, Registrar, RegistrarError, RegistrationKey};
use std::sync::Arc;

/// For TCP: the owner reads its memory itself, so no registration is needed.
#[derive(Debug)]
struct NoRegistrar;

impl Registrar for NoRegistrar {
    fn register(&self, region: &MemoryRegion) -> Result<RegistrationKey, RegistrarError> {
        Ok(RegistrationKey(region.range.address))
    }

    fn deregister(&self, _key: RegistrationKey) {}
}

/// How peers access an owner's memory.
#[derive(Debug)]
pub(crate) struct Exposed {
    pub(crate) registrar: Arc<dyn Registrar>,
    /// Address of the first slot; 0 if peers name blocks by their hashes and need no addresses.
    pub(crate) address: u64,
    /// Metadata of the NIXL agent; empty without an agent.
    pub(crate) metadata: Vec<u8>,
}

impl Exposed {
    /// Access over TCP only.
    pub(crate) fn nothing() -> Self {
        Self { registrar: Arc::new(NoRegistrar), address: 0, metadata: Vec::new() }
    }
}
