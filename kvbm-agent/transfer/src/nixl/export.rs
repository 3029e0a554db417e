use crate::exposed::Exposed;
use kvasir_blocks::sets::{MemoryKind, MemoryRegion, Registrar, RegistrarError, RegistrationKey};
use kvasir_memory::Arena;
use kvasir_memory::nixl::{Agent, Library, NixlError, Plugin};
use parking_lot::Mutex;
use std::sync::Arc;

/// Keeps an owner's memory registered until its set and the last loan have ended.
#[derive(Debug)]
struct NixlRegistrar {
    /// Address of the arena, and its size in bytes.
    range: (u64, u64),
    agent: Mutex<Option<Agent<()>>>,
}

/// Registers an arena with a new NIXL agent, so that peers can read it.
pub(super) fn expose(
    library: &Library,
    name: &str,
    plugin: &Plugin,
    arena: &Arc<Arena>,
) -> Result<Exposed, NixlError> {
    let mut agent = Agent::new(library, name, plugin)?;
    let address = agent.register(arena)?;
    let metadata = agent.metadata()?;
    let bytes = arena.layout().bytes().map_or(0, |bytes| bytes as u64);
    let registrar = NixlRegistrar { range: (address, bytes), agent: Mutex::new(Some(agent)) };
    Ok(Exposed { registrar: Arc::new(registrar), address, metadata })
}

impl Registrar for NixlRegistrar {
    fn register(&self, region: &MemoryRegion) -> Result<RegistrationKey, RegistrarError> {
        let range = (region.range.address, region.range.bytes);
        let is_registered = region.kind == MemoryKind::Dram && range == self.range;
        if is_registered && self.agent.lock().is_some() {
            return Ok(RegistrationKey(region.range.address));
        }
        Err(RegistrarError { reason: "it is not the memory of NIXL's agent".to_owned() })
    }

    /// Destroys the agent: no peer can read the memory afterwards.
    fn deregister(&self, _key: RegistrationKey) {
        drop(self.agent.lock().take());
    }
}
