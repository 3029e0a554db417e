//! NATS: receives events from the subjects of workers, and sends requests to agents. `kvasir_proto::broker` has the
//! names.
//!
//! - [`Connection`]: a connection and its state.
//! - `inlet`: converts messages to batches of sessions, as a `PublishEvents` stream does.
//! - `core`: receives current messages. Missed messages are requested from the agents.
//! - `log`: reads the JetStream stream in order, from the checkpoint's position on.
//! - `position`: tracks the stream position of the index. Pure.
//! - [`LocalByBroker`]: queries agents.
//! - [`ShardMaps`]: the map of shards.
//! - [`Snapshots`]: snapshots in the object store, with a `bucket` for each shard. `coverage` (pure) decides when to
//!   upload them, and which messages the stream may purge.

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

use crate::ingest::Ingest;
use crate::snapshot::SharedStore;
use async_nats::ConnectError;
use connect::connect;
use inlet::Inlet;
use kvasir_process::telemetry::{NotReady, Readiness};
use kvasir_proto::shard::ShardPlace;
use metrics::BrokerMetrics;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Components that receive events over NATS. They receive events only while [`run`](Self::run) runs.
#[derive(Debug)]
pub struct Broker {
    config: BrokerConfig,
    connection: Connection,
    position: Position,
    metrics: BrokerMetrics,
    not_ready: NotReady,
}

impl Broker {
    /// Creates the broker's connection, which is established as soon as the broker is reachable. Holds readiness back
    /// until then.
    ///
    /// # Errors
    /// If the address is invalid.
    pub async fn attach(
        config: BrokerConfig,
        registry: &mut Registry,
        readiness: &Readiness,
    ) -> Result<Self, ConnectError> {
        let metrics = BrokerMetrics::register(registry);
        let connection = connect(&config.servers, metrics.clone()).await?;
        let not_ready = readiness.hold(format!("waiting for the broker at {}", config.servers));
        let position = Position::default();
        Ok(Self { config, connection, position, metrics, not_ready })
    }

    /// Returns a clone of the connection, for other users.
    #[must_use]
    pub fn connection(&self) -> Connection {
        self.connection.clone()
    }

    /// Stream position of the index. `None` if no stream is read.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        let reads = self.config.delivery == Delivery::Jetstream;
        reads.then(|| self.position.clone())
    }

    /// Snapshots of a shard, made from the checkpoints in `shared_store`.
    #[must_use]
    pub fn snapshots(&self, shared_store: SharedStore, place: Option<ShardPlace>) -> Snapshots {
        Snapshots::new(self.connection(), shared_store, place, self.config.snapshot_threshold)
    }

    /// Whether stream, snapshots and checkpoint must be deleted before anything else.
    #[must_use]
    pub const fn resets(&self) -> bool {
        self.config.reset
    }

    /// Receives events until `stop` is cancelled. The server is not ready until the index has caught up.
    pub async fn run(self, ingest: Arc<Ingest>, stop: CancellationToken) {
        let Self { config, connection, position, metrics, not_ready } = self;
        let in_order = config.delivery == Delivery::Jetstream;
        let inlet =
            Inlet::new(ingest, in_order, Arc::clone(&connection.namespace), metrics.clone());
        match config.delivery {
            Delivery::Core => core::run(connection, inlet, not_ready, stop).await,
            Delivery::Jetstream => {
                let config = config.stream;
                let end = position.clone();
                let reader = log::Reader { connection, config, inlet, position, metrics };
                Box::pin(reader.run(not_ready, stop)).await;
                end.freeze();
            }
        }
    }
}
