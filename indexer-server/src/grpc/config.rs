use super::EndpointRules;
use kvasir_process::access::Guard;
use kvasir_process::port::{PortConfig, UNTAKEN_TIMEOUT};
use std::net::SocketAddr;
use std::time::Duration;

/// Configuration of the gRPC port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcConfig {
    /// Address to listen on. `None`: only callers in this process reach the index.
    pub listen: Option<SocketAddr>,
    /// Authentication and authorisation.
    pub guard: Guard,
    /// Limits on calls and connections.
    pub port: PortConfig,
    /// Allowed endpoints in registrations.
    pub endpoints: EndpointRules,
}

/// Maximum number of queued chunks per dump.
pub(super) const CHUNKS_QUEUED_MAX: usize = 2;
/// A dump is cancelled if its client reads nothing for this long.
pub(super) const DUMP_STALL_TIMEOUT: Duration = Duration::from_secs(20);
// A client that resumes reading in time gets the end of its dump. Then its connection is closed.
const _: () = assert!(DUMP_STALL_TIMEOUT.as_secs() < UNTAKEN_TIMEOUT.as_secs());
