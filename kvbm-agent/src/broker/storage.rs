//! Publishes storage events over core NATS. They are not retained: a subscriber that lacks events requests an image.

use super::connection::Connection;
use super::error::BrokerError;
use crate::blocks::Blocks;
use crate::storage::{Outbox, StorageBook, Work};
use async_nats::Subscriber;
use async_nats::client::PublishErrorKind;
use futures::StreamExt;
use futures::stream::{Select, select as either};
use kvasir_feed::pause::Pauses;
use kvasir_process::nats::NatsServers;
use kvasir_proto::broker::{STORAGE_SNAPSHOTS, storage_snapshots_subject, storage_subject};
use kvasir_proto::convert::{StorageBatch, StorageContent, WorkerAddress};
use kvasir_proto::pb;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Number of image batches, each up to half a megabyte, that are sent before the server confirms them.
const IMAGE_BATCHES_AHEAD_MAX: usize = 8;

/// Publishes where a block manager stores blocks.
#[derive(Debug)]
pub struct StoragePublisher {
    address: WorkerAddress,
    blocks: Arc<Blocks>,
    book: Arc<StorageBook>,
    servers: NatsServers,
    began: Instant,
}

impl StoragePublisher {
    /// Creates the publisher of the storage events of `blocks`; `None` if they are off.
    #[must_use]
    pub fn new(address: WorkerAddress, blocks: Arc<Blocks>, servers: NatsServers) -> Option<Self> {
        let book = Arc::clone(blocks.storage()?);
        Some(Self { address, blocks, book, servers, began: Instant::now() })
    }

    /// Publishes storage events over a separate connection until `stop` is cancelled, then publishes waiting events, if
    /// there is a connection. Reconnects with backoff.
    pub async fn run(self, stop: CancellationToken) {
        let mut outbox = self.blocks.outbox(self.address.clone(), self.book.config());
        let mut pauses = Pauses::default();
        loop {
            let before = self.book.stats().batches;
            let Err(error) = self.connection(&mut outbox, &stop).await else { return };
            self.book.note(|stats| stats.is_connected = false);
            if self.book.stats().batches != before {
                pauses.reset();
            }
            if let Some(num_suppressed) = pauses.admit_line() {
                tracing::warn!(%error, num_suppressed, "no storage events are published");
            }
            if !pauses.wait(&stop).await {
                return;
            }
        }
    }

    /// Connects, and publishes images and events until the connection breaks (an error), or until everything is
    /// published after a stop.
    async fn connection(
        &self,
        outbox: &mut Outbox,
        stop: &CancellationToken,
    ) -> Result<(), BrokerError> {
        let connection = select! {
            () = stop.cancelled() => return Ok(()),
            connection = Connection::connect(&self.servers) => connection?,
        };
        let mut requests = self.subscribe(&connection).await?;
        // It is unknown which events arrived over an earlier connection.
        self.book.demand_image();
        self.book.note(|stats| stats.is_connected = true);
        tracing::info!("storage events are published over NATS");
        let mut is_stopping = false;
        loop {
            let (work, next_at) = self.book.next(self.began.elapsed());
            match work {
                Work::Image => {
                    self.publish_image(&connection, outbox).await?;
                    continue;
                }
                Work::Events { events, ends_round } => {
                    let mut batches = outbox.changes(&events);
                    if ends_round {
                        batches.extend(outbox.signs_of_life());
                    }
                    for batch in &batches {
                        self.publish(&connection, batch).await?;
                    }
                    connection.flush().await?;
                    if is_stopping && ends_round {
                        return Ok(());
                    }
                    continue;
                }
                Work::Nothing => {}
            }
            select! {
                () = connection.closed() => return Err(BrokerError::Lost),
                () = stop.cancelled(), if !is_stopping => {
                    is_stopping = true;
                    self.book.hurry();
                }
                () = self.book.filled() => {}
                () = sleep_until(self.at(next_at)) => {}
                request = requests.next() => match request {
                    Some(_asks) => self.book.demand_image(),
                    None => return Err(BrokerError::Lost),
                },
            }
        }
    }

    fn at(&self, time: Duration) -> Instant {
        self.began.checked_add(time).unwrap_or(self.began)
    }

    /// Subscribes to requests for this worker, and for all workers.
    async fn subscribe(
        &self,
        connection: &Connection,
    ) -> Result<Select<Subscriber, Subscriber>, BrokerError> {
        let namespace = self.servers.namespace();
        let client = connection.client();
        let own = namespace.subject(storage_snapshots_subject(&self.address));
        let all = namespace.subject(STORAGE_SNAPSHOTS);
        let refused = |error: async_nats::SubscribeError| BrokerError::Subscribe(error.to_string());
        let own = connection.with(client.subscribe(own)).await?.map_err(refused)?;
        let all = connection.with(client.subscribe(all)).await?.map_err(refused)?;
        connection.flush().await?;
        Ok(either(own, all))
    }

    /// Publishes an image: all stored blocks, as batches. Waits for the server after every [`IMAGE_BATCHES_AHEAD_MAX`]
    /// batches.
    async fn publish_image(
        &self,
        connection: &Connection,
        outbox: &mut Outbox,
    ) -> Result<(), BrokerError> {
        let blocks = Arc::clone(&self.blocks);
        // Sorts up to millions of blocks, so it runs on a blocking thread.
        let image = spawn_blocking(move || blocks.registrations()).await;
        // A panic is in the log.
        let image = image.map_err(|_panic| BrokerError::Publish("there is no image".to_owned()))?;
        self.book.image_taken(image.watermark);
        for (index, batch) in outbox.image(&image).enumerate() {
            self.publish(connection, &batch).await?;
            if index % IMAGE_BATCHES_AHEAD_MAX == IMAGE_BATCHES_AHEAD_MAX - 1 {
                connection.flush().await?;
            }
        }
        connection.flush().await?;
        self.book.note(|stats| stats.images += 1);
        Ok(())
    }

    /// Publishes a batch, and counts its events. Ignores a refusal because of the batch's size: subscribers notice the
    /// gap.
    async fn publish(
        &self,
        connection: &Connection,
        batch: &StorageBatch,
    ) -> Result<(), BrokerError> {
        let subject = storage_subject(&batch.address, &batch.location);
        let subject = self.servers.namespace().subject(subject);
        let message = pb::StorageBatch::from(batch).encode_to_vec();
        let sent = connection.with(connection.client().publish(subject, message.into())).await?;
        match sent.map_err(|error| (error.kind(), error.to_string())) {
            // Subscribers notice the gap. Such a small limit of the server is reported for each connection.
            Ok(()) | Err((PublishErrorKind::MaxPayloadExceeded, _)) => {}
            Err((_, error)) => return Err(BrokerError::Publish(error)),
        }
        self.book.note(|stats| {
            stats.batches += 1;
            match &batch.content {
                StorageContent::Changes(changes) => stats.events += changes.len() as u64,
                StorageContent::Image(part) => stats.image_blocks += part.blocks.len() as u64,
            }
        });
        Ok(())
    }
}
