//! What a run is made of, and where a request goes.

use crate::engine::timed::{EngineOptions, Nanos, TransferModel};
use router_client::route::{CostConfig, Fetch};

/// Time that a message of one router takes to another: routers send every few milliseconds.
pub const SYNC_NANOS: Nanos = 5_000_000;

/// Engines of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClusterOptions {
    /// How many there are.
    pub engines: usize,
    /// Each of them.
    pub engine: EngineOptions,
    /// What the cost of mode `kv` consists of.
    pub cost: CostConfig,
    /// How long a replica of the router takes to hear what another one tells, in nanoseconds.
    pub sync_delay: Nanos,
    /// How long the keys and values of a prompt take from a prefill engine to a decode engine.
    pub transfer: TransferModel,
    /// Whether engines state to routers how many blocks they have.
    pub states_capacity: bool,
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Placement {
    /// The number of the engine that answers it.
    pub engine: usize,
    /// The number of the engine that computes its prompt, if that is another one.
    pub prefill: Option<usize>,
    /// Leading blocks of the prompt that the router expects in the cache of the engine that computes it.
    pub predicted_blocks: u32,
    /// Blocks that this engine fetches from others first. Candidates are engines by their numbers.
    pub fetch: Option<Fetch>,
}
