//! The connection to NATS: batches into the tree, requests for images out.

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

/// Messages that wait to be read, of up to a megabyte. What does not fit is lost, and asked for.
const MESSAGES_QUEUED_MAX: usize = 256;
/// Commands that wait for the connection's task.
const COMMANDS_QUEUED_MAX: usize = 64;
/// Longest time that a request may wait to be sent: while there is no connection it is not needed.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked what is lacking, and who is silent.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// What is known.
#[derive(Debug)]
pub struct Known {
    /// The blocks.
    pub tree: Tree,
    /// Where they come from.
    pub streams: Streams,
}

/// Follows the storage events of all agents.
#[derive(Debug)]
pub struct Subscriber {
    /// Where agents publish.
    pub servers: NatsServers,
    /// What is known.
    pub known: Arc<Mutex<Known>>,
    /// What is counted.
    pub metrics: Arc<AdvisorMetrics>,
    /// When the times of `known` began.
    pub began: Instant,
    /// Least time between two requests to an agent.
    pub ask_interval: Duration,
    /// How long a location may be silent.
    pub worker_timeout: Duration,
}

impl Subscriber {
    /// Follows until `stop` is cancelled. After each outage it asks all agents for images.
    ///
    /// # Errors
    /// If the client library gives up, which it does for no outage.
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

    /// Asks for what is lacking, and forgets who is silent.
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
                // Nor would the next ones arrive.
                return;
            }
        }
    }

    /// Asks for an image. Returns whether the server has the request.
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
