//! Loads over core NATS: they are not retained, since the next one replaces them.

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

/// Publishes how busy a worker's ranks are.
#[derive(Debug)]
pub struct LoadPublisher {
    /// Whose.
    pub address: WorkerAddress,
    /// What is known.
    pub board: Arc<LoadBoard>,
    /// The servers, as in [`BrokerConfig`](super::BrokerConfig).
    pub servers: NatsServers,
    /// Least time between two loads of a rank that changes.
    pub min_interval: Duration,
    /// How often all ranks are published again; not 0.
    pub refresh_interval: Duration,
    /// How far it has come.
    pub status: Arc<watch::Sender<BrokerStatus>>,
}

impl LoadPublisher {
    /// Publishes until `stop` is cancelled, over a connection of its own.
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

    /// Makes a connection and uses it until it breaks.
    async fn connection(&self) -> Result<Infallible, BrokerError> {
        let connection = Connection::open(&self.servers).await?;
        let subject = self.servers.namespace().subject(loads_subject(&self.address));
        let mut changes = self.board.changes();
        let mut refreshes = interval(self.refresh_interval);
        refreshes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = 0;
        loop {
            select! {
                () = connection.closed() => return Err(BrokerError::Lost),
                // The board outlives its publisher.
                _changed = changes.changed() => {}
                // The first comes at once.
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
