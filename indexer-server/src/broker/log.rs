use super::core::{RETRY_PAUSE, SWEEP_INTERVAL};
use super::inlet::Inlet;
use super::starting::Starting;
use super::subjects::{self, subscribe};
use super::{BrokerMetrics, Connection, Position, StreamConfig};
use crate::snapshot::StreamPosition;
use async_nats::Subscriber;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType, Stream};
use async_nats::jetstream::{self, Context, Message};
use futures::StreamExt;
use futures::stream::SelectAll;
use kvasir_process::telemetry::NotReady;
use kvasir_proto::broker::{DUPLICATES_WITHIN, EVENTS_ALL, Namespace, STREAM};
use kvasir_proto::limits::UNANSWERED_BATCHES_MAX;
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::select;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

/// Reads the stream in order, from the stored position on, without end. Acknowledges no messages: the checkpoint stores
/// the position.
pub(super) struct Reader {
    pub(super) connection: Connection,
    pub(super) config: StreamConfig,
    pub(super) inlet: Inlet,
    pub(super) position: Position,
    pub(super) metrics: BrokerMetrics,
}

/// Maximum pending batches in the stream before its sources count as behind. Equal to the unanswered batches of a
/// direct stream.
const PENDING_MAX: u64 = UNANSWERED_BATCHES_MAX as u64;
/// Without messages for this time, the reader checks the stream.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The open stream.
struct Reading {
    batches: Ordered,
    heartbeats: SelectAll<Subscriber>,
    stream: Stream,
    /// Creation time of the stream.
    created_unix_ns: i64,
    is_behind: bool,
    last: u64,
    /// Time of the last read, or of opening.
    read_at: Instant,
}

/// Error of a request to the broker.
type Fault = async_nats::Error;

impl Reader {
    /// Reads the stream until `stop` is cancelled. After an error, the sources count as behind, and the stream is
    /// reopened after a pause.
    pub(super) async fn run(mut self, not_ready: NotReady, stop: CancellationToken) {
        let mut starting = Some(Starting::new(not_ready, &self.inlet));
        self.inlet.fall_behind().await;
        loop {
            self.close_fenced(&mut starting, false).await;
            let reading = select! {
                () = stop.cancelled() => return,
                reading = self.open_stream() => reading,
            };
            let ended = match reading {
                Ok(reading) => self.read_stream(reading, &mut starting, &stop).await,
                Err(error) => Err(error),
            };
            match ended {
                Ok(()) if stop.is_cancelled() => return,
                // The buckets have changed, or the broker was unreachable.
                Ok(()) => {}
                Err(error) => {
                    let stream = self.stream_name();
                    tracing::warn!(%error, stream, "the stream cannot be read: retrying");
                    if let Some(starting) = &starting {
                        starting.report(format!("the stream cannot be read: {error}"));
                    }
                    self.inlet.fall_behind().await;
                    select! {
                        () = stop.cancelled() => return,
                        () = sleep(RETRY_PAUSE) => {}
                    }
                }
            }
        }
    }

    /// Opens the stream after the stored position. Starts at the beginning of a recreated stream.
    async fn open_stream(&self) -> Result<Reading, Fault> {
        let context = jetstream::new(self.connection.client.clone());
        let stream = self.stream(&context).await?;
        let info = stream.cached_info();
        let made = i64::try_from(info.created.unix_timestamp_nanos()).unwrap_or(i64::MAX);
        let state = &info.state;
        let after = match self.position.reached() {
            Some(at) if at.stream_created_unix_ns == made && at.sequence <= state.last_sequence => {
                at.sequence
            }
            before => {
                if let Some(StreamPosition { sequence, .. }) = before {
                    tracing::warn!(
                        sequence,
                        "the stream was recreated: reading it from its beginning"
                    );
                }
                let sequence = state.first_sequence.saturating_sub(1);
                self.position.begin(StreamPosition { stream_created_unix_ns: made, sequence });
                sequence
            }
        };
        if after + 1 < state.first_sequence {
            let lost = state.first_sequence - after - 1;
            tracing::warn!(lost, "the stream purged messages before they were read");
        }
        let buckets = self.inlet.buckets();
        let config = OrderedConfig {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: after + 1 },
            filter_subjects: subjects::events(&self.connection.namespace, &buckets),
            ..OrderedConfig::default()
        };
        let consumer = stream.create_consumer(config).await?;
        let last = state.last_sequence;
        let is_behind = consumer.cached_info().num_pending > 0;
        let batches = consumer.messages().await?;
        let heartbeats = subjects::heartbeats(&self.connection.namespace, &buckets);
        let heartbeats = subscribe(&self.connection, heartbeats).await?;
        tracing::info!(stream = self.stream_name(), after, last, "reading the stream");
        let created_unix_ns = made;
        let read_at = Instant::now();
        Ok(Reading { batches, heartbeats, stream, created_unix_ns, is_behind, last, read_at })
    }

    /// Gets the stream, or creates it. Changes the limits of a stream that an agent has created to this server's
    /// limits.
    async fn stream(&self, context: &Context) -> Result<Stream, Fault> {
        let wanted = stream_config(&self.connection.namespace, self.config);
        let stream = context.get_or_create_stream(&wanted).await?;
        let found = &stream.cached_info().config;
        let bounds = |at: &Config| (at.max_age, at.max_bytes, at.duplicate_window);
        if bounds(found) == bounds(&wanted) {
            return Ok(stream);
        }
        tracing::info!(
            before = ?bounds(found), now = ?bounds(&wanted),
            "changing the stream's limits to this server's"
        );
        let Config { max_age, max_bytes, duplicate_window, .. } = wanted;
        let now = Config { max_age, max_bytes, duplicate_window, ..found.clone() };
        context.update_stream(now).await?;
        Ok(context.get_stream(self.stream_name()).await?)
    }

    fn stream_name(&self) -> String {
        self.connection.namespace.stored(STREAM)
    }

    /// Handles the stream's messages until `stop` is cancelled or the stream must be reopened: the connection is lost,
    /// the map of shards changes, or the stream was recreated.
    async fn read_stream(
        &mut self,
        mut reading: Reading,
        starting: &mut Option<Starting>,
        stop: &CancellationToken,
    ) -> Result<(), Fault> {
        let mut changes = self.inlet.ingest().map_changes();
        let mut link = self.connection.link.clone();
        if !link.borrow_and_update().up {
            return Ok(());
        }
        let mut ticks = interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.report_progress(reading.is_behind, reading.last, starting.as_ref()).await;
        loop {
            let done = select! {
                () = stop.cancelled() => return Ok(()),
                Ok(()) = changes.changed() => return Ok(()),
                Ok(()) = link.changed() => {
                    self.inlet.fall_behind().await;
                    // Reopen the stream once the broker is back.
                    return Ok(());
                }
                message = reading.batches.next() => match message {
                    Some(message) => self.handle_message(message?, &mut reading).await,
                    None => return Ok(()),
                },
                Some(heartbeat) = reading.heartbeats.next() => {
                    let subject = heartbeat.subject;
                    let payload = heartbeat.payload;
                    let _none = self.inlet.handle_message(&subject, payload, Duration::ZERO).await;
                    ControlFlow::Continue(())
                }
                _ = ticks.tick() => {
                    self.close_fenced(starting, !reading.is_behind).await;
                    if reading.read_at.elapsed() >= CHECK_INTERVAL && !is_same(&mut reading).await? {
                        return Ok(());
                    }
                    ControlFlow::Continue(())
                }
            };
            if done.is_break() {
                self.report_progress(reading.is_behind, reading.last, starting.as_ref()).await;
            }
        }
    }

    /// Closes fenced sessions and updates readiness. `receives`: current messages arrive.
    async fn close_fenced(&mut self, starting: &mut Option<Starting>, receives: bool) {
        self.inlet.close_fenced().await;
        if starting.as_mut().is_some_and(|starting| starting.is_over(&self.inlet, receives)) {
            *starting = None;
        }
    }

    /// Marks the sources as behind, and shows the stream's end `last` in readiness, while the stream `is_behind`.
    /// Otherwise marks the sources as caught up.
    async fn report_progress(&mut self, is_behind: bool, last: u64, starting: Option<&Starting>) {
        if is_behind {
            self.inlet.fall_behind().await;
            if let Some(starting) = starting {
                starting.report(format!("reading the stream up to {last}"));
            }
        } else {
            self.inlet.caught_up().await;
        }
    }

    /// Handles the next message and records its position. Breaks if reading has just fallen behind or caught up.
    async fn handle_message(&mut self, message: Message, reading: &mut Reading) -> ControlFlow<()> {
        let Ok((sequence, pending, age)) = message.info().map(|info| {
            (info.stream_sequence, info.pending, age(info.published.unix_timestamp_nanos()))
        }) else {
            return ControlFlow::Continue(());
        };
        reading.read_at = Instant::now();
        let async_nats::Message { subject, payload, .. } = message.message;
        let answer = self.inlet.handle_message(&subject, payload, age).await;
        self.position.record_message(sequence, answer);
        self.metrics.pending.set(i64::try_from(pending).unwrap_or(i64::MAX));
        let was_behind = reading.is_behind;
        reading.is_behind = is_behind(was_behind, pending);
        if reading.is_behind == was_behind {
            return ControlFlow::Continue(());
        }
        if reading.is_behind {
            reading.last = sequence + pending;
            tracing::info!(stream = self.stream_name(), pending, "reading does not keep up");
        }
        ControlFlow::Break(())
    }
}

/// Whether the stream is behind, with `pending` batches after the current one. Hysteresis: a stream that was behind
/// must reach the end.
const fn is_behind(was_behind: bool, pending: u64) -> bool {
    pending > if was_behind { 0 } else { PENDING_MAX }
}

/// Age of a message by its publication time, in nanoseconds since 1970. Zero for a time in the future.
#[expect(clippy::disallowed_methods, reason = "what the broker stamps is wall time")]
fn age(published_unix_ns: i128) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let published = u64::try_from(published_unix_ns).map_or(Duration::ZERO, Duration::from_nanos);
    now.saturating_sub(published)
}

/// Whether the open stream still exists, and its remaining messages still arrive. Checked after a time without
/// messages: a consumer continues in a recreated stream of the same name, and the messages that it waits for may be
/// purged.
async fn is_same(reading: &mut Reading) -> Result<bool, Fault> {
    reading.read_at = Instant::now();
    let created = reading.stream.get_info().await?.created.unix_timestamp_nanos();
    Ok(created == i128::from(reading.created_unix_ns) && !reading.is_behind)
}

/// Builds the configuration of a new stream from the server's limits.
fn stream_config(namespace: &Namespace, config: StreamConfig) -> Config {
    Config {
        name: namespace.stored(STREAM),
        subjects: vec![namespace.subject(EVENTS_ALL)],
        max_age: config.age_max,
        max_bytes: i64::try_from(config.bytes_max).unwrap_or(i64::MAX),
        discard: DiscardPolicy::Old,
        storage: StorageType::File,
        duplicate_window: DUPLICATES_WITHIN.min(config.age_max),
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_behind_until_it_is_read_to_its_end() {
        for (was_behind, pending, expected) in [
            (false, 0, false),
            (false, PENDING_MAX, false),
            (false, PENDING_MAX + 1, true),
            (true, PENDING_MAX, true),
            (true, 1, true),
            (true, 0, false),
        ] {
            assert_eq!(is_behind(was_behind, pending), expected, "{was_behind} {pending}");
        }
    }
}
