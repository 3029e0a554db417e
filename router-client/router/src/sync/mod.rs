//! NATS connection: replica sync between routers, and load reports from agents.
//!
//! Messages are fire-and-forget. Without a connection they are not stored; digests repair the loss.

mod status;
mod wire;

pub use status::SyncStatus;

use crate::fleet::{Fleet, Partition};
use crate::reports::KvMetricsAggregator;
use async_nats::{Client, Event, Message, Subscriber};
use futures::StreamExt;
use kvasir_process::nats::NatsServers;
use kvasir_proto::broker::{LOADS_ALL, ROUTERS_ALL, routers_subject};
use kvasir_proto::codec::decode;
use kvasir_proto::convert::WorkerLoad;
use kvasir_proto::limits::BROKER_MESSAGE_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_proto::types::PartitionKey;
use kvasir_tasks::causes::causes;
use prost::Message as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Interval of sending changes.
const FLUSH_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum unread messages of one subscription; beyond it, the newest are lost.
const MESSAGES_QUEUED_MAX: usize = 8_192;
/// Backoff before the next connection attempt.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Inputs of the NATS task.
#[derive(Debug)]
pub struct Parts {
    /// All routers.
    pub fleet: Arc<Fleet>,
    /// Receives the agents' load reports.
    pub reports: Arc<KvMetricsAggregator>,
    /// Connection status for the operator.
    pub status: Arc<SyncStatus>,
    /// The NATS servers.
    pub servers: NatsServers,
}

/// The two subscriptions of a connection.
struct Subscriptions {
    routers: Subscriber,
    loads: Subscriber,
}

/// Exchanges loads with other routers until the future is dropped. Reconnects after a lost connection.
pub async fn run(parts: Parts) {
    loop {
        match connect(&parts).await {
            Ok((client, subscriptions)) => {
                tracing::info!(nats = %parts.servers, "connected");
                exchange(&parts, &client, subscriptions).await;
            }
            Err(error) => parts.status.lost(&error),
        }
        sleep(RECONNECT_PAUSE).await;
    }
}

/// Connects to NATS, and subscribes to other routers and to load reports.
async fn connect(parts: &Parts) -> Result<(Client, Subscriptions), String> {
    let status = Arc::clone(&parts.status);
    let note = move |event| {
        if matches!(event, Event::Connected) {
            status.connected();
        } else if matches!(event, Event::Disconnected | Event::Closed) {
            status.lost("the connection is lost");
        } else if matches!(event, Event::SlowConsumer(_)) {
            status.slow();
        }
        async {}
    };
    let options = parts.servers.options(|| true);
    let options = options.event_callback(note).subscription_capacity(MESSAGES_QUEUED_MAX);
    let client = options.connect(parts.servers.addresses()).await;
    let client = client.map_err(|error| parts.servers.explain(&causes(&error)))?;
    let namespace = parts.servers.namespace();
    let subscribe = async |subject: &str| {
        client.subscribe(namespace.subject(subject)).await.map_err(|error| error.to_string())
    };
    let subscriptions = Subscriptions {
        routers: subscribe(ROUTERS_ALL).await?,
        loads: subscribe(LOADS_ALL).await?,
    };
    parts.status.connected();
    Ok((client, subscriptions))
}

/// Sends and receives over a connection, which reconnects by itself, until it is closed for good.
async fn exchange(parts: &Parts, client: &Client, mut subscriptions: Subscriptions) {
    let mut flushes = interval(FLUSH_INTERVAL);
    flushes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        select! {
            message = subscriptions.routers.next() => match message {
                Some(message) => learn(parts, &message),
                None => return,
            },
            message = subscriptions.loads.next() => match message {
                Some(message) => take_load(parts, &message),
                None => return,
            },
            _ = flushes.tick() => flush(parts, client).await,
        }
    }
}

/// Publishes the changes of all routers. Drops and counts the changes while the connection is down: digests repair the
/// difference later.
async fn flush(parts: &Parts, client: &Client) {
    for (key, partition) in parts.fleet.partitions() {
        for (is_prefill, router) in partition.routers_by_pool() {
            for message in router.flush_sync() {
                // Without a connection, the message would wait and then be outdated.
                if !parts.status.is_connected() {
                    parts.status.unsent();
                    continue;
                }
                let encoded = wire::encode(&key, is_prefill, &message).encode_to_vec();
                debug_assert!(encoded.len() <= BROKER_MESSAGE_BYTES_MAX, "{}", encoded.len());
                let subject = parts.servers.namespace().subject(routers_subject(&key));
                if let Err(error) = client.publish(subject, encoded.into()).await {
                    tracing::debug!(%error, "a message to replicas is lost");
                    parts.status.unsent();
                }
            }
        }
    }
}

/// Applies a message of another router. Ignores a message about an unknown partition, and counts a malformed one.
fn learn(parts: &Parts, message: &Message) {
    let read = || {
        let sync: pb::RouterSync = decode(message.payload.clone()).ok()?;
        let key = PartitionKey::new(&sync.model, &sync.tenant).ok()?;
        let is_prefill = sync.prefill_pool;
        Some((key, is_prefill, wire::decode(sync)?))
    };
    let Some((key, is_prefill, message)) = read() else {
        parts.status.malformed();
        return;
    };
    // Workers of other partitions are unknown here; once they are known, digests bring their requests.
    let partition = parts.fleet.partition(&key);
    if let Some(router) = partition.as_ref().map(|at| Partition::pool(at, is_prefill)) {
        router.receive_sync(&message);
    }
}

fn take_load(parts: &Parts, message: &Message) {
    let load = decode::<pb::WorkerLoad>(message.payload.clone()).ok();
    match load.and_then(|load| WorkerLoad::try_from(load).ok()) {
        // Reports beyond the limit on ranks are dropped.
        Some(load) => drop(parts.reports.report(load)),
        None => parts.status.malformed(),
    }
}
