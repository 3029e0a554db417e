//! Reads the load of ranks from their agents, over `WorkerLoads` streams.

use crate::discovery::agents;
use crate::fleet::Listing;
use crate::reports::KvMetricsAggregator;
use kvasir_proto::convert::{WorkerAddress, WorkerLoad};
use kvasir_proto::pb;
use kvasir_proto::pb::worker_loads_client::WorkerLoadsClient;
use kvasir_proto::types::{PartitionKey, WorkerId};
use kvasir_tls::Dialer;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};
use tonic::{Status, Streaming};

/// Maximum agents whose streams are read; further agents report only over NATS.
const AGENTS_MAX: usize = 1_024;
/// Backoff before a broken stream is reopened.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// A stream that lasted this long and ended without an error is reopened immediately: agents end streams of old
/// connections.
const ORDERLY_END_MIN: Duration = Duration::from_millis(500);

/// Reads the loads of all agents that the index lists, until the future is dropped.
pub async fn run(
    mut listed: watch::Receiver<Arc<Listing>>,
    reports: Arc<KvMetricsAggregator>,
    dialer: Dialer,
) {
    let mut readers = JoinSet::new();
    let mut running: BTreeMap<(String, PartitionKey, WorkerId), AbortHandle> = BTreeMap::new();
    loop {
        let now = agents(&listed.borrow_and_update());
        running.retain(|at, reader| {
            let stays = now.contains(at);
            if !stays {
                reader.abort();
            }
            stays
        });
        for at in now.into_iter().take(AGENTS_MAX) {
            let start =
                || readers.spawn(follow_loads(at.clone(), Arc::clone(&reports), dialer.clone()));
            running.entry(at.clone()).or_insert_with(start);
        }
        while readers.try_join_next().is_some() {}
        // The sender lives as long as the process.
        if listed.changed().await.is_err() {
            return;
        }
    }
}

/// Reads the loads of one agent. Opens the stream again when it ends, after a pause. Returns immediately if the agent's
/// address is invalid.
async fn follow_loads(
    (url, partition, worker): (String, PartitionKey, WorkerId),
    reports: Arc<KvMetricsAggregator>,
    dialer: Dialer,
) {
    let channel = match dialer.lazy(&url) {
        Ok(channel) => channel,
        Err(error) => {
            tracing::warn!(%url, %worker, %error, "the agent's address cannot be used: its loads are not read");
            return;
        }
    };
    let mut client = WorkerLoadsClient::new(channel);
    let own = WorkerAddress { partition: partition.clone(), worker: worker.clone() };
    loop {
        let request = pb::WatchLoadsRequest {
            model: partition.model().to_owned(),
            tenant: partition.tenant().to_owned(),
            worker_id: worker.as_str().to_owned(),
            min_interval_ms: None,
        };
        let began = Instant::now();
        let ended = match client.watch_loads(request).await {
            Ok(stream) => take_reports(stream.into_inner(), &own, &reports).await,
            Err(error) => Err(error),
        };
        match ended {
            Ok(()) if began.elapsed() >= ORDERLY_END_MIN => continue,
            Ok(()) => {}
            Err(error) => tracing::debug!(%url, %error, "an agent's loads are not read"),
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Stores reports until the agent ends the stream. Ignores reports about another worker.
async fn take_reports(
    mut stream: Streaming<pb::WatchLoadsResponse>,
    own: &WorkerAddress,
    reports: &KvMetricsAggregator,
) -> Result<(), Status> {
    while let Some(answer) = stream.message().await? {
        let loads = answer.loads.into_iter().map(WorkerLoad::try_from);
        // An agent may report only its own worker.
        for load in loads.flatten().filter(|load| load.address == *own) {
            // Reports beyond the limit on ranks are dropped.
            let _taken = reports.report(load);
        }
    }
    Ok(())
}
