//! Backend that reads an owner's memory by NIXL.

use super::config::ClientConfig;
use super::tcp::TcpBackend;
use crate::backend::{FetchRequest, Fetched, FetchedParts, PartsRequest, TransferBackend};
use crate::counters::TransferCounters;
use crate::nixl::{NixlError, NixlOptions, agent_name};
use futures::future::BoxFuture;
use kvasir_blocks::sets::BlockSetRegistry;
use kvasir_memory::Arena;
use std::sync::Arc;

/// Fetches blocks by NIXL. It requests them over the connections of [`TcpBackend`], with their TLS and identities.
#[derive(Debug)]
pub struct NixlBackend(TcpBackend);

impl NixlBackend {
    /// Creates a backend that imports peers' sets into `registry`, and reads blocks into the slots of `arena`. All
    /// fetching sessions must use this arena. Blocks the thread while the library is loaded.
    ///
    /// # Errors
    /// [`NixlError`] if NIXL can't be used.
    pub fn new(
        config: ClientConfig,
        registry: BlockSetRegistry,
        counters: Arc<TransferCounters>,
        arena: &Arc<Arena>,
        options: &NixlOptions,
    ) -> Result<Self, NixlError> {
        let name = agent_name(config.worker.as_str(), registry.epoch(), "reader");
        let reads = options.reads(&name, arena)?;
        let backend = TcpBackend::new(config, registry, counters).with_reads(reads);
        Ok(Self(backend))
    }
}

impl TransferBackend for NixlBackend {
    fn name(&self) -> &'static str {
        "nixl"
    }

    fn fetch<'a>(&'a self, request: FetchRequest<'a>) -> BoxFuture<'a, Fetched> {
        self.0.fetch(request)
    }

    fn fetch_parts<'a>(&'a self, request: PartsRequest<'a>) -> BoxFuture<'a, FetchedParts> {
        self.0.fetch_parts(request)
    }

    fn close_idle(&self) {
        self.0.close_idle();
    }
}
