//! Options of a run, and the placement of a request.

use crate::engine::timed::{EngineOptions, Nanos, TransferModel};
use router_client::route::{CostConfig, Fetch};

/// Time of a message between routers: routers send every few milliseconds.
pub const SYNC_NANOS: Nanos = 5_000_000;

/// Engines of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClusterOptions {
    /// Number of engines.
    pub engines: usize,
    /// Options of each engine.
    pub engine: EngineOptions,
    /// Cost weights of mode `kv`.
    pub cost: CostConfig,
    /// Time until a replica of the router receives another replica's message, in nanoseconds.
    pub sync_delay: Nanos,
    /// Duration of a transfer of a prompt's keys and values from a prefill engine to a decode engine.
    pub transfer: TransferModel,
    /// Whether engines report their number of blocks to routers.
    pub states_capacity: bool,
}

/// Engines chosen for a request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Placement {
    /// Number of the engine that answers.
    pub engine: usize,
    /// Number of the engine that computes the prompt, if it differs.
    pub prefill: Option<usize>,
    /// Number of the prompt's leading blocks that the router expects in the cache of the engine that computes it.
    pub predicted_blocks: u32,
    /// Blocks that this engine first fetches from others. Candidates are numbers of engines.
    pub fetch: Option<Fetch>,
}
