use super::export::expose;
use super::reads::Reads;
use crate::exposed::Exposed;
use kvasir_memory::Arena;
use kvasir_memory::nixl::{Library, NixlError, Plugin};
use std::path::PathBuf;
use std::sync::Arc;

/// How NIXL is used.
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

    /// Makes an arena reachable for peers that get its metadata.
    pub(crate) fn expose(&self, name: &str, arena: &Arc<Arena>) -> Result<Exposed, NixlError> {
        expose(&Library::load(&self.library)?, name, &self.plugin(), arena)
    }

    /// Starts the thread that reads into an arena.
    pub(crate) fn reads(&self, name: &str, arena: &Arc<Arena>) -> Result<Reads, NixlError> {
        Reads::start(Library::load(&self.library)?, name, self.plugin(), Arc::clone(arena))
    }
}
