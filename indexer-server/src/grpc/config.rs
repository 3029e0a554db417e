use super::EndpointRules;
use kvasir_process::access::Guard;
use kvasir_process::port::{PortConfig, UNTAKEN_TIMEOUT};
use std::{net::SocketAddr, time::Duration};

/// The gRPC port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Who gets in.
    pub guard: Guard,
    /// What its calls may take.
    pub port: PortConfig,
    /// Where the endpoints of registrations may lie.
    pub endpoints: EndpointRules,
}

/// Chunks of one dump that wait to be sent.
pub(super) const CHUNKS_QUEUED_MAX: usize = 2;
/// A dump whose reader takes nothing for this long is given up.
pub(super) const DUMP_STALL_TIMEOUT: Duration = Duration::from_secs(20);
// A client that resumes reading in time gets the end of its dump; then its connection is closed.
const _: () = assert!(DUMP_STALL_TIMEOUT.as_secs() < UNTAKEN_TIMEOUT.as_secs());
