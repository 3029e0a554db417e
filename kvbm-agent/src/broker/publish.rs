use super::config::BrokerStatus;
use super::connection::Connection;
use super::error::BrokerError;
use super::message::Envelope;
use super::session::{End, NatsSession, Position};
use super::{BrokerConfig, Delivery, jetstream, plain};
use kvasir_feed::feed::Feed;
use kvasir_feed::pause::Pauses;
use kvasir_proto::convert::ConvertError;
use kvasir_proto::types::Incarnation;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Publishes a source's batches and heartbeats over NATS.
#[derive(Debug)]
pub struct NatsPublisher {
    feed: Arc<Feed>,
    config: BrokerConfig,
    envelope: Envelope,
    heartbeat_interval: Duration,
    status: Arc<watch::Sender<BrokerStatus>>,
    stop: CancellationToken,
}

impl NatsPublisher {
    /// Creates the publisher of a source, which reports its progress in `status`. Heartbeats are sent every
    /// `heartbeat_interval`, which is not 0.
    ///
    /// # Errors
    /// If the registration is not for this source, or breaks the contract.
    pub fn new(
        feed: Arc<Feed>,
        config: BrokerConfig,
        heartbeat_interval: Duration,
        status: Arc<watch::Sender<BrokerStatus>>,
    ) -> Result<Self, ConvertError> {
        let envelope = Envelope::new(&config, &feed)?;
        let stop = CancellationToken::new();
        Ok(Self { feed, config, envelope, heartbeat_interval, status, stop })
    }

    /// Publishes the feed until `stop` is cancelled, then publishes the rest of the journal, if there is a connection.
    /// Reconnects with backoff. Publishes nothing if stopped before the incarnation is settled.
    pub async fn run(mut self, stop: CancellationToken) {
        self.stop = stop;
        select! {
            () = self.stop.cancelled() => return,
            () = self.feed.until_settled() => {}
        }
        let mut pauses = Pauses::default();
        loop {
            let before = self.progress();
            let Err(error) = self.connection().await else { return };
            if self.progress() != before {
                pauses.reset();
            }
            self.record_error(&error, pauses.admit_line());
            if !pauses.wait(&self.stop).await {
                return;
            }
        }
    }

    /// Published position, which shows whether a connection made progress.
    fn progress(&self) -> (Incarnation, Option<u64>) {
        let status = self.status.borrow();
        (status.incarnation, status.published)
    }

    /// Records in the status why there is no connection. Logs the error if `line` is set: it is the number of
    /// suppressed lines.
    fn record_error(&self, error: &BrokerError, line: Option<u64>) {
        let text: Arc<str> = error.to_string().into();
        if let Some(num_suppressed) = line {
            let source = self.feed.name();
            let error = &*text;
            tracing::warn!(source, error, num_suppressed, "publishing to the broker failed");
        }
        self.status.send_modify(|status| {
            (status.connected, status.error) = (false, Some(text));
        });
    }

    /// Connects, and publishes until the connection breaks (an error), or until everything is published after a stop.
    async fn connection(&self) -> Result<(), BrokerError> {
        let connection = select! {
            () = self.stop.cancelled() => return Ok(()),
            connection = Connection::connect(&self.config.servers) => connection?,
        };
        let stream = match self.config.delivery {
            Delivery::Core => None,
            Delivery::Jetstream => {
                Some(jetstream::open_stream(&connection, self.config.servers.namespace()).await?)
            }
        };
        let source = self.feed.name();
        tracing::info!(source, delivery = ?self.config.delivery, "connected to NATS");
        self.status.send_modify(|status| {
            (status.connected, status.error) = (true, None);
            status.connections += 1;
        });
        let mut heartbeats = interval(self.heartbeat_interval);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let changes = self.feed.news().borrow().changes;
        let mut session = NatsSession {
            feed: &self.feed,
            status: &self.status,
            stop: &self.stop,
            connection,
            heartbeats,
            changes,
        };
        loop {
            let mut position = self.position();
            let end = match &stream {
                None => plain::publish(&mut session, &mut position).await?,
                Some(stream) => jetstream::publish(&mut session, &mut position, stream).await?,
            };
            match end {
                End::Stopped => {
                    if self.config.deregister {
                        session.send(position.envelope.goodbye()).await?;
                    }
                    return session.connection.flush().await;
                }
                // Indexes receive a heartbeat of the new incarnation immediately.
                End::NewIncarnation => session.heartbeats.reset_immediately(),
            }
        }
    }

    /// Returns the position at which to continue in the current incarnation: after the last published batch, or at this
    /// agent's first one. An earlier agent has published the batches before it.
    fn position(&self) -> Position {
        let hello = self.feed.hello();
        let incarnation = hello.incarnation;
        let first = hello.first_sequence.unwrap_or_default();
        // An earlier agent has published its batches. Indexes request missing ones.
        let own_first = self.feed.status().own_first;
        let mut published = None;
        self.status.send_modify(|status| {
            if status.incarnation != incarnation {
                (status.incarnation, status.published) = (incarnation, None);
            }
            published = status.published;
        });
        let next = published.map_or(Some(own_first), |published| published.checked_add(1));
        Position { incarnation, next, envelope: self.envelope.with_incarnation(incarnation, first) }
    }
}
