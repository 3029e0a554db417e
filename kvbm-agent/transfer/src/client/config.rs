use crate::wire::BlockDescription;
use kvasir_proto::types::WorkerId;
use kvasir_tls::Dialer;

/// Configuration of the fetching side.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// This agent's worker, for the owners' logs.
    pub worker: WorkerId,
    /// Description of this agent's blocks.
    pub blocks: BlockDescription,
    /// Connects to peers. Contains the bearer token for peers.
    pub dialer: Dialer,
}
