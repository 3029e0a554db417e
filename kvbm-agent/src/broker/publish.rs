use super::config::BrokerStatus;
use super::connection::Connection;
use super::error::BrokerError;
use super::message::{Envelope, LifeEnvelope};
use super::{BrokerConfig, Delivery, jetstream, plain};
use async_nats::client::PublishErrorKind;
use bytes::Bytes;
use futures::FutureExt;
use kvasir_feed::feed::{Feed, News};
use kvasir_feed::journal::{Batch, RangeError};
use kvasir_feed::pause::Pauses;
use kvasir_proto::convert::ConvertError;
use kvasir_proto::types::{Incarnation, SourceState};
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Publishes what a source says.
#[derive(Debug)]
pub struct Publisher {
    pub(super) feed: Arc<Feed>,
    config: BrokerConfig,
    envelope: Envelope,
    heartbeat_interval: Duration,
    pub(super) status: Arc<watch::Sender<BrokerStatus>>,
    pub(super) stop: CancellationToken,
}

/// How a life's publishing came to its end.
pub(super) enum End {
    Stopped,
    NewLife,
}

/// How far a life is published.
pub(super) struct Position {
    pub(super) life: Incarnation,
    /// Number of the next batch to publish; none once the last was.
    pub(super) next: Option<u64>,
    pub(super) envelope: LifeEnvelope,
}

impl Publisher {
    /// What publishes a source, and tells in `status` how far it has come. Heartbeats go out every
    /// `heartbeat_interval`, which is not 0.
    ///
    /// # Errors
    /// If the registration is not of this source, or breaks the contract.
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

    /// Publishes until `stop` is cancelled; then what the journal has still goes out, if there is a
    /// connection.
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
            self.note(&error, pauses.admit_line());
            if !pauses.wait(&self.stop).await {
                return;
            }
        }
    }

    /// What tells that a connection was of use.
    fn progress(&self) -> (Incarnation, Option<u64>) {
        let status = self.status.borrow();
        (status.incarnation, status.published)
    }

    /// Notes why there is no connection, and logs it if that is to be; then so many times were left out.
    fn note(&self, error: &BrokerError, line: Option<u64>) {
        let text: Arc<str> = error.to_string().into();
        if let Some(num_suppressed) = line {
            let (source, error) = (self.feed.name(), &*text);
            tracing::warn!(source, error, num_suppressed, "nothing is published");
        }
        self.status.send_modify(|status| {
            (status.connected, status.error) = (false, Some(text));
        });
    }

    /// Makes a connection and uses it until it breaks, or all is done.
    async fn connection(&self) -> Result<(), BrokerError> {
        let connection = select! {
            () = self.stop.cancelled() => return Ok(()),
            connection = Connection::open(&self.config.url) => connection?,
        };
        let stream = match self.config.delivery {
            Delivery::Core => None,
            Delivery::Jetstream => Some(jetstream::open(&connection).await?),
        };
        let source = self.feed.name();
        tracing::info!(source, delivery = ?self.config.delivery, "connected to NATS");
        self.status.send_modify(|status| {
            (status.connected, status.error) = (true, None);
            status.connections += 1;
        });
        let mut heartbeats = interval(self.heartbeat_interval);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let state = self.feed.news().borrow().state;
        let mut session = Session { publisher: self, connection, heartbeats, state };
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
                // Indexes hear of it at once, whatever it has to say.
                End::NewLife => session.heartbeats.reset_immediately(),
            }
        }
    }

    /// Where the present life stands.
    fn position(&self) -> Position {
        let hello = self.feed.hello();
        let (life, first) = (hello.incarnation, hello.first_sequence.unwrap_or_default());
        // What an agent before this one said was published then; what was not is asked for.
        let own_first = self.feed.status().own_first;
        let mut published = None;
        self.status.send_modify(|status| {
            if status.incarnation != life {
                (status.incarnation, status.published) = (life, None);
            }
            published = status.published;
        });
        let next = published.map_or(Some(own_first), |published| published.checked_add(1));
        Position { life, next, envelope: self.envelope.of_life(life, first) }
    }

    /// The next batches of a life, perhaps none yet; none at all once it is over.
    pub(super) fn take(
        &self,
        position: &mut Position,
        batches_max: usize,
    ) -> Result<Option<Vec<Arc<Batch>>>, BrokerError> {
        while let Some(next) = position.next {
            match self.feed.range(position.life, next..=u64::MAX, batches_max) {
                Ok(range) => return Ok(Some(range.batches)),
                Err(RangeError::TooOld { oldest, .. }) => {
                    let lost = oldest.saturating_sub(next);
                    tracing::warn!(source = self.feed.name(), lost, "the journal was overrun");
                    self.status.send_modify(|status| status.skipped_batches += lost);
                    position.next = Some(oldest);
                }
                Err(RangeError::WrongIncarnation { .. }) => return Ok(None),
                Err(error @ RangeError::Ahead { .. }) => return Err(error.into()),
            }
        }
        Ok(Some(Vec::new()))
    }

    /// A batch that the server refuses would be refused for ever.
    pub(super) fn skip(&self, batch: &Batch, error: &str) {
        let (source, sequence) = (self.feed.name(), batch.sequence());
        tracing::warn!(source, sequence, error, "a batch is not published");
        let text = format!("batch {sequence} is not published: {error}");
        self.status.send_modify(|status| {
            status.skipped_batches += 1;
            status.error = Some(text.into());
        });
    }

    /// A life is published up to a batch.
    pub(super) fn published(&self, sequence: u64) {
        self.status.send_modify(|status| status.published = Some(sequence));
    }
}

/// One connection in use.
pub(super) struct Session<'a> {
    pub(super) publisher: &'a Publisher,
    pub(super) connection: Connection,
    pub(super) heartbeats: Interval,
    /// How far the source can be trusted, as far as heartbeats were hurried for it.
    state: SourceState,
}

impl Session<'_> {
    /// Says that the source is there, if it is time to.
    pub(super) async fn beat_if_due(&mut self, position: &Position) -> Result<(), BrokerError> {
        match self.heartbeats.tick().now_or_never() {
            Some(_due) => self.beat(position).await,
            None => Ok(()),
        }
    }

    /// Says that the source is there, and how far it is.
    pub(super) async fn beat(&self, position: &Position) -> Result<(), BrokerError> {
        match self.publisher.feed.heartbeat(position.life) {
            Some(heartbeat) => self.send(position.envelope.heartbeat(heartbeat)).await,
            None => Ok(()),
        }
    }

    /// Takes what is new; says at once if that is how far the source can be trusted.
    pub(super) fn hear(&mut self, news: &mut watch::Receiver<News>) {
        let state = news.borrow_and_update().state;
        if mem::replace(&mut self.state, state) != state {
            self.heartbeats.reset_immediately();
        }
    }

    /// Sends what is no batch.
    async fn send(&self, (subject, message): (String, Bytes)) -> Result<(), BrokerError> {
        let sent = self.connection.with(self.connection.client().publish(subject, message)).await?;
        // A server with so small a limit is complained of for batches.
        sent.or_else(|error| match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => Ok(()),
            PublishErrorKind::InvalidSubject | PublishErrorKind::Send => {
                Err(BrokerError::Publish(error.to_string()))
            }
        })
    }
}
