//! Publishes loads over core NATS. They are not retained, because the next load replaces them.

use super::config::BrokerStatus;
use super::connection::Connection;
use super::error::BrokerError;
use crate::load::LoadBoard;
use kvasir_feed::pause::Pauses;
use kvasir_process::nats::NatsServers;
use kvasir_proto::broker::loads_subject;
use kvasir_proto::convert::WorkerAddress;
use prost::Message;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

/// Publishes the loads of a worker's ranks.
#[derive(Debug)]
pub struct LoadPublisher {
    /// Worker whose loads are published.
    pub address: WorkerAddress,
    /// Source of the loads.
    pub board: Arc<LoadBoard>,
    /// NATS servers, as in [`BrokerConfig`](super::BrokerConfig).
    pub servers: NatsServers,
    /// Minimum time between two loads of a rank that changes.
    pub min_interval: Duration,
    /// Time between two publications of all ranks; not 0.
    pub refresh_interval: Duration,
    /// Status to update.
    pub status: Arc<watch::Sender<BrokerStatus>>,
}

impl LoadPublisher {
    /// Publishes loads over a separate connection, with backoff after errors, until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) {
        let mut pauses = Pauses::default();
        loop {
            let before = self.published();
            let Err(error) = select! {
                () = stop.cancelled() => return,
                ended = self.connection() => ended,
            };
            if self.published() != before {
                pauses.reset();
            }
            if let Some(num_suppressed) = pauses.admit_line() {
                tracing::warn!(%error, num_suppressed, "no loads are published");
            }
            if !pauses.wait(&stop).await {
                return;
            }
        }
    }

    fn published(&self) -> u64 {
        self.status.borrow().published_loads
    }

    /// Connects, and publishes each changed load, and all loads at each refresh, until the connection breaks.
    async fn connection(&self) -> Result<Infallible, BrokerError> {
        let connection = Connection::connect(&self.servers).await?;
        let subject = self.servers.namespace().subject(loads_subject(&self.address));
        let mut changes = self.board.changes();
        let mut refreshes = interval(self.refresh_interval);
        refreshes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = 0;
        loop {
            select! {
                () = connection.closed() => return Err(BrokerError::Lost),
                // Cannot fail: the board outlives its publisher.
                _changed = changes.changed() => {}
                // The first tick is immediate.
                _ = refreshes.tick() => seen = 0,
            }
            changes.borrow_and_update();
            let (version, known) = self.board.since(seen);
            for known in &known {
                let load = known.load(&self.address).encode_to_vec();
                let client = connection.client();
                let sent = connection.with(client.publish(subject.clone(), load.into())).await?;
                sent.map_err(|error| BrokerError::Publish(error.to_string()))?;
            }
            if !known.is_empty() {
                connection.flush().await?;
                let count = known.len() as u64;
                self.status.send_modify(|status| status.published_loads += count);
            }
            seen = version;
            connection.with(sleep(self.min_interval)).await?;
        }
    }
}
