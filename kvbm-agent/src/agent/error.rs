use crate::blocks::BlocksError;
use crate::load::LoadError;
use crate::relay::RelayError;
use crate::zmq::ZmqConfigError;
use kvasir_feed::disk::DiskError;
use kvasir_feed::hub::HubError;
use kvasir_proto::convert::ConvertError;
use kvasir_tls::DialError;
use std::io;
use std::net::SocketAddr;

/// Why an agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The source breaks the contract.
    #[error("source: {0}")]
    Source(#[from] ConvertError),
    /// The folder of its journal cannot be used.
    #[error("journal-dir: {0}")]
    Disk(#[from] DiskError),
    /// The journal on disk could not be read, for a fault of ours.
    #[error("journal-dir: reading it failed: remove it, or start without")]
    DiskPanic,
    /// The volume's name cannot be the id of a pool.
    #[error("storage-volume-name: {0}")]
    Pool(#[source] ConvertError),
    /// What feeds it does not go together.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// An engine cannot be relayed.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// There is no block manager.
    #[error(transparent)]
    Blocks(#[from] BlocksError),
    /// The configuration of loads is refused.
    #[error(transparent)]
    Loads(#[from] LoadError),
    /// `EventIngest` without a port.
    #[error("EventIngest needs an address to listen on")]
    NoPort,
    /// Too many indexers.
    #[error("{count} indexers are given, the limit is {limit}")]
    TooManyIndexers {
        /// How many.
        count: usize,
        /// The most that are taken.
        limit: usize,
    },
    /// The address of an indexer can be none.
    #[error("indexers: {0}")]
    Indexer(#[from] DialError),
    /// The registration over NATS is not of this source, or breaks the contract.
    #[error("broker: {0}")]
    Broker(#[source] ConvertError),
    /// It cannot be published as an engine would.
    #[error(transparent)]
    Zmq(#[from] ZmqConfigError),
    /// The port cannot be had.
    #[error("listen: cannot listen on {address}: {error}; choose another address with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
}
