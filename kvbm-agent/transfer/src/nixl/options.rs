use super::export::expose;
use super::reads::Reads;
use crate::exposed::Exposed;
use kvasir_memory::Arena;
use kvasir_memory::nixl::{Library, NixlError, Plugin};
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Configuration of NIXL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NixlOptions {
    /// `libnixl_capi.so`: a path, or a name that the loader searches for.
    pub library: PathBuf,
    /// Parameters of NIXL's plugin UCX. UCX itself is configured by its own variables, such as `UCX_TLS`.
    pub parameters: Vec<(String, String)>,
}

impl Default for NixlOptions {
    fn default() -> Self {
        Self { library: PathBuf::from("libnixl_capi.so"), parameters: Vec::new() }
    }
}

impl NixlOptions {
    fn plugin(&self) -> Plugin {
        Plugin { name: "UCX".to_owned(), parameters: self.parameters.clone() }
    }

    /// Makes an arena accessible to peers that receive its metadata.
    pub(crate) fn expose(&self, name: &str, arena: &Arc<Arena>) -> Result<Exposed, NixlError> {
        expose(&Library::load(&self.library)?, name, &self.plugin(), arena)
    }

    /// Starts the thread that reads into an arena.
    pub(crate) fn reads(&self, name: &str, arena: &Arc<Arena>) -> Result<Reads, NixlError> {
        Reads::start(Library::load(&self.library)?, name, self.plugin(), Arc::clone(arena))
    }
}

/// A unique name for a NIXL agent, because a peer treats agents with equal names as the same agent.
pub(crate) fn agent_name(worker: &str, epoch: u64, role: &str) -> String {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    format!("{worker}-{epoch}-{}-{number}-{role}", process::id())
}
