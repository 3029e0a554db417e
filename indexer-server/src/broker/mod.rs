//! Events by NATS: what sources publish on the subjects of their workers, and requests to their agents
//! by request and reply. Names are `kvasir_proto::broker`'s.
//!
//! - [`Connection`]: a connection, with word of its state.
//! - `inlet`: one message after the other becomes batches of sessions, as `PublishEvents` streams are.
//! - `core`: what is published now; what is missed is asked for at the agents.
//! - `log`: the stream of JetStream, read in order from where the checkpoint stood.
//! - `position`: how far of the stream is in the index: pure.
//! - [`LocalByBroker`]: asks agents.
//! - [`ShardMaps`]: the map of shards.
//! - [`Snapshots`]: the index in the object store, by shards in a `bucket` each; `coverage` (pure) says when,
//!   and what the stream need not keep.

mod bucket;
mod config;
mod connect;
mod core;
mod coverage;
mod inlet;
mod local;
mod log;
mod metrics;
mod position;
mod shard_map;
mod snapshots;
mod starting;
mod subjects;

pub use config::{BrokerConfig, StreamConfig};
pub use connect::Connection;
pub use kvasir_proto::broker::Delivery;
pub use local::LocalByBroker;
pub use position::Position;
pub use shard_map::ShardMaps;
pub use snapshots::Snapshots;

use crate::{ingest::Ingest, snapshot::SharedStore};
use async_nats::ConnectError;
use connect::connect;
use inlet::Inlet;
use kvasir_process::telemetry::{NotReady, Readiness};
use kvasir_proto::shard::ShardPlace;
use metrics::BrokerMetrics;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What is needed to take in what comes by NATS. Nothing comes before it runs.
#[derive(Debug)]
pub struct Broker {
    config: BrokerConfig,
    connection: Connection,
    position: Position,
    metrics: BrokerMetrics,
    not_ready: NotReady,
}

impl Broker {
    /// Connects, as soon as the broker is there.
    ///
    /// # Errors
    /// If the address cannot be understood.
    pub async fn attach(
        config: BrokerConfig,
        registry: &mut Registry,
        readiness: &Readiness,
    ) -> Result<Self, ConnectError> {
        let metrics = BrokerMetrics::register(registry);
        let connection = connect(config.url.expose(), metrics.clone()).await?;
        let not_ready = readiness.hold(format!("waiting for the broker at {}", config.url));
        let position = Position::default();
        Ok(Self { config, connection, position, metrics, not_ready })
    }

    /// Another user of the connection.
    #[must_use]
    pub fn connection(&self) -> Connection {
        self.connection.clone()
    }

    /// How far of the stream is in the index; none if no stream is read.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        let reads = self.config.delivery == Delivery::Jetstream;
        reads.then(|| self.position.clone())
    }

    /// Snapshots of a shard whose checkpoints `shared_store` has.
    #[must_use]
    pub fn snapshots(&self, shared_store: SharedStore, place: Option<ShardPlace>) -> Snapshots {
        Snapshots::new(self.connection(), shared_store, place, self.config.snapshot_threshold)
    }

    /// Whether stream, snapshots and checkpoint are to be emptied before anything else.
    #[must_use]
    pub const fn resets(&self) -> bool {
        self.config.reset
    }

    /// Takes in what sources say, until `stop` is cancelled. Ready once the index has what a server that
    /// has just started can have.
    pub async fn run(self, ingest: Arc<Ingest>, stop: CancellationToken) {
        let Self { config, connection, position, metrics, not_ready } = self;
        let in_order = config.delivery == Delivery::Jetstream;
        let inlet = Inlet::new(ingest, in_order, metrics.clone());
        match config.delivery {
            Delivery::Core => core::run(connection, inlet, not_ready, stop).await,
            Delivery::Jetstream => {
                let config = config.stream;
                let end = position.clone();
                let reader = log::Reader { connection, config, inlet, position, metrics };
                reader.run(not_ready, stop).await;
                end.freeze();
            }
        }
    }
}
