//! NATS client: applies received batches to the tree, and requests images.

use crate::metrics::AdvisorMetrics;
use crate::state::{Streams, Tree};
use async_nats::{Client, Event, Message};
use futures::StreamExt;
use kvasir_process::nats::NatsServers;
use kvasir_proto::broker::{STORAGE_ALL, STORAGE_SNAPSHOTS, storage_snapshots_subject};
use kvasir_proto::codec::decode;
use kvasir_proto::convert::StorageBatch;
use kvasir_proto::pb;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

/// Maximum number of queued messages, each up to a megabyte. Messages beyond it are lost, and replaced by an image.
const MESSAGES_QUEUED_MAX: usize = 256;
/// Maximum number of commands queued for the connection's task.
const COMMANDS_QUEUED_MAX: usize = 64;
/// Maximum time to send a request. Requests are useless without a connection.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two checks for missing batches and silent places.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// State of the advisor.
#[derive(Debug)]
pub struct Known {
    /// Blocks, and the places that have them.
    pub tree: Tree,
    /// Progress of each place's batches.
    pub streams: Streams,
}

/// Follows the storage events of all agents.
#[derive(Debug)]
pub struct Subscriber {
    /// NATS servers on which agents publish.
    pub servers: NatsServers,
    /// State to update.
    pub known: Arc<Mutex<Known>>,
    /// Counters to update.
    pub metrics: Arc<AdvisorMetrics>,
    /// Start of the times in `known`.
    pub began: Instant,
    /// Minimum time between two image requests to one agent.
    pub ask_interval: Duration,
    /// Time without a message after which a location's blocks expire.
    pub worker_timeout: Duration,
}

impl Subscriber {
    /// Follows events until `stop` is cancelled. After each outage, requests images from all agents.
    ///
    /// # Errors
    /// If the client library fails permanently. No outage causes that.
    pub async fn run(self, stop: CancellationToken) -> Result<(), async_nats::Error> {
        let connected = Arc::new(Notify::new());
        let client = self.connect(&connected).await?;
        let namespace = self.servers.namespace().clone();
        let mut batches = client.subscribe(namespace.subject(STORAGE_ALL)).await?;
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            select! {
                () = stop.cancelled() => return Ok(()),
                batch = batches.next() => match batch {
                    Some(message) => self.take(&message),
                    None => return Err("the subscription ended".into()),
                },
                () = connected.notified() => {
                    let _is_asked = self.ask(&client, namespace.subject(STORAGE_SNAPSHOTS)).await;
                }
                _ = looks.tick() => self.look(&client).await,
            }
        }
    }

    async fn connect(&self, connected: &Arc<Notify>) -> Result<Client, async_nats::Error> {
        let metrics = Arc::clone(&self.metrics);
        let connected = Arc::clone(connected);
        let servers = self.servers.clone();
        let note = move |event: Event| {
            match &event {
                Event::Connected => {
                    tracing::info!("connected to NATS");
                    metrics.set_outage(None);
                    connected.notify_one();
                }
                Event::Disconnected | Event::Closed => {
                    tracing::warn!("the connection to NATS is lost");
                    metrics.set_outage(Some("there is no connection to NATS".to_owned()));
                }
                Event::ClientError(error) => {
                    let error = servers.explain(&error.to_string());
                    tracing::warn!(error, "NATS");
                }
                Event::SlowConsumer(_)
                | Event::LameDuckMode
                | Event::Draining
                | Event::ServerError(_) => tracing::warn!(%event, "NATS"),
            }
            async {}
        };
        let connecting = self
            .servers
            .reconnecting()
            .name("storage-advisor")
            .subscription_capacity(MESSAGES_QUEUED_MAX)
            .client_capacity(COMMANDS_QUEUED_MAX)
            .event_callback(note)
            .connect(self.servers.addresses());
        Ok(connecting.await?)
    }

    fn take(&self, message: &Message) {
        let decoded = decode::<pb::StorageBatch>(message.payload.clone());
        let batch = decoded
            .map_err(|status| status.message().to_owned())
            .and_then(|batch| StorageBatch::try_from(batch).map_err(|error| error.to_string()));
        match batch {
            Ok(batch) => {
                let now = self.began.elapsed();
                let known = &mut *self.known.lock();
                self.metrics.applied(known.streams.apply(&mut known.tree, &batch, now));
            }
            Err(error) => {
                tracing::debug!(error, subject = %message.subject, "a batch is malformed");
                self.metrics.malformed();
            }
        }
    }

    /// Requests missing images, and drops silent places.
    async fn look(&self, client: &Client) {
        let now = self.began.elapsed();
        let (workers, expired) = {
            let Known { tree, streams } = &mut *self.known.lock();
            let expired = streams.expire(tree, now, self.worker_timeout);
            (streams.due_requests(tree, now, self.ask_interval), expired)
        };
        self.metrics.expired(expired);
        if self.metrics.outage().is_some() {
            return;
        }
        for worker in workers {
            let subject = storage_snapshots_subject(&worker);
            if !self.ask(client, self.servers.namespace().subject(subject)).await {
                // The next requests would fail, too.
                return;
            }
        }
    }

    /// Requests images from an agent. Returns whether the server has received the request.
    async fn ask(&self, client: &Client, subject: String) -> bool {
        let sending = async {
            client.publish(subject, Default::default()).await?;
            Ok::<_, async_nats::Error>(client.flush().await?)
        };
        match timeout(SEND_TIMEOUT, sending).await {
            Ok(Ok(())) => {
                self.metrics.asked();
                return true;
            }
            Ok(Err(error)) => tracing::debug!(%error, "images are asked for later"),
            Err(_late) => tracing::debug!("images are asked for later"),
        }
        false
    }
}
