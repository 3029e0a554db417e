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

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The source breaks the contract.
    #[error("source: {0}")]
    Source(#[from] ConvertError),
    /// The journal's folder cannot be used.
    #[error("journal-dir: {0}")]
    Disk(#[from] DiskError),
    /// Reading the journal on disk panicked.
    #[error(
        "journal-dir: the reader of the journal crashed: empty the folder, or start without --journal-dir"
    )]
    DiskPanic,
    /// The volume's name cannot be the id of a pool.
    #[error("blocks-volume name: {0}")]
    Pool(#[source] ConvertError),
    /// The configuration of the sources is inconsistent.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// An engine cannot be relayed.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// The block manager cannot start.
    #[error(transparent)]
    Blocks(#[from] BlocksError),
    /// The configuration of loads is refused.
    #[error(transparent)]
    Loads(#[from] LoadError),
    /// `EventIngest` is enabled without a port.
    #[error("EventIngest needs an address to listen on")]
    NoPort,
    /// Too many indexers are configured.
    #[error("{count} indexers are given, the limit is {limit}")]
    TooManyIndexers {
        /// Number of indexers.
        count: usize,
        /// Maximum number of indexers.
        limit: usize,
    },
    /// The address of an indexer is not valid.
    #[error("indexers: {0}")]
    Indexer(#[from] DialError),
    /// The registration over NATS is not for this source, or breaks the contract.
    #[error("broker: {0}")]
    Broker(#[source] ConvertError),
    /// Events cannot be published over ZMQ.
    #[error(transparent)]
    Zmq(#[from] ZmqConfigError),
    /// The port cannot be opened.
    #[error("listen: cannot listen on {address}: {error}; choose another address with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Underlying error.
        error: io::Error,
    },
}
