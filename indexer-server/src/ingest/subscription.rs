//! A worker's subscription to the socket of an engine.

use super::presence::Presence;
use crossbeam_utils::atomic::AtomicCell;
use kvasir_engine::link::topics_overlap;
use kvasir_engine::zmtp::{Attach, Endpoint};
use kvasir_proto::convert::EndpointSpec;
use std::net::IpAddr;
use std::sync::Arc;

/// A normalised socket address, independent of the spelling of its host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SocketKey {
    is_bound: bool,
    host: String,
    port: u16,
}

impl SocketKey {
    /// Returns the key of a socket: its host and port. Returns `None` for a port that the system chooses.
    fn from_attach(attach: &Attach) -> Option<Self> {
        let (is_bound, endpoint) = match attach {
            Attach::Connect(endpoint) => (false, endpoint),
            Attach::Bind(endpoint) => (true, endpoint),
        };
        let host = canonical_host(endpoint);
        let port = endpoint.port();
        (port != 0).then_some(Self { is_bound, host, port })
    }
}

/// Returns the host in one spelling, so that equal sockets have equal keys.
fn canonical_host(endpoint: &Endpoint) -> String {
    if let Ok(address) = endpoint.host().parse::<IpAddr>() {
        return address.to_canonical().to_string();
    }
    let name = endpoint.host().trim_end_matches('.').to_ascii_lowercase();
    match name.as_str() {
        "localhost" => "127.0.0.1".to_owned(),
        "*" => "0.0.0.0".to_owned(),
        _ => name,
    }
}

/// A worker's subscription to a socket.
#[derive(Debug, Clone)]
pub(super) struct Subscription {
    /// `None` if the system chooses the port.
    pub(super) key: Option<SocketKey>,
    pub(super) endpoint: String,
    pub(super) topic: String,
    pub(super) presence: Arc<AtomicCell<Presence>>,
}

impl Subscription {
    /// Creates the subscription of a worker to an engine's socket.
    pub(super) fn new(
        attach: &Attach,
        spec: &EndpointSpec,
        presence: Arc<AtomicCell<Presence>>,
    ) -> Self {
        let endpoint = spec.endpoint.clone();
        let topic = spec.topic.clone();
        Self { key: SocketKey::from_attach(attach), endpoint, topic, presence }
    }

    /// Whether both subscriptions can receive the same batch.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.key.is_some()
            && self.key == other.key
            && topics_overlap(self.topic.as_bytes(), other.topic.as_bytes())
    }

    /// Marks the process at the socket as the worker's engine, because the worker was registered again.
    pub(super) fn renew(&self) {
        let _other_state = self.presence.compare_exchange(Presence::Renewed, Presence::There);
    }
}
