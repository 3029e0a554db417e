use crate::wire::BlockDescription;
use kvasir_proto::types::WorkerId;
use kvasir_tls::Dialer;

/// Who fetches, and how it connects.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// The worker, for the logs of owners.
    pub worker: WorkerId,
    /// What its blocks are.
    pub blocks: BlockDescription,
    /// Connects to peers, with the token for them.
    pub dialer: Dialer,
}
