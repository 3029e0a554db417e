//! Events by NATS: what sources publish on the subjects of their workers, and questions to their agents
//! by request and reply. Names are `kvasir_proto::broker`'s.
//!
//! - [`connect`]: a connection, with word of its state.
//! - `inlet`: one message after the other becomes batches of sessions, as `PublishEvents` streams are.
//! - `core`: what is published now; what is missed is asked for at the agents.
//! - `log`: the stream of JetStream, read in order from where the checkpoint stood.
//! - `position`: how far of the stream is in the index: pure.
//! - [`LocalByBroker`]: asks agents.
//! - [`ShardMaps`]: the map of shards.

mod config;
mod connect;
mod core;
mod inlet;
mod local;
mod log;
mod metrics;
mod position;
mod shard_map;
mod subjects;

pub use config::{BrokerConfig, Delivery, StreamConfig};
pub use connect::{Connection, connect};
pub use local::LocalByBroker;
pub use metrics::BrokerMetrics;
pub use position::{Position, Reached};
pub use shard_map::ShardMaps;

use crate::{ingest::Ingest, telemetry::NotReady};
use inlet::Inlet;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Takes in what sources say, until `stop` is cancelled. `not_ready` is let go once the index has what a
/// server that has just started can have.
pub async fn run(
    connection: Connection,
    config: BrokerConfig,
    ingest: Arc<Ingest>,
    position: Position,
    metrics: BrokerMetrics,
    not_ready: NotReady,
    stop: CancellationToken,
) {
    let inlet = Inlet::new(Arc::clone(&ingest), metrics.clone());
    match config.delivery {
        Delivery::Core => core::run(connection, inlet, not_ready, stop).await,
        Delivery::Jetstream => {
            log::Reader { connection, config: config.stream, inlet, position, metrics }
                .run(not_ready, stop)
                .await;
        }
    }
}
