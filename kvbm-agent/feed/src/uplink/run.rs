use super::register::{register, remove};
use super::window::UNACKED_BATCHES_MAX;
use super::{Acknowledged, Uplink, UplinkError};
use crate::feed::{Feed, new_incarnation};
use crate::journal::RangeError;
use crate::pause::Pauses;
use kvasir_proto::convert::{Hello, Registration};
use kvasir_proto::types::Incarnation;
use kvasir_tls::Dialer;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;

/// Maximum wait for the answer to the oldest batch, after which the stream is replaced. It is long because an index
/// that fetches missing batches answers late.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// A stream that lasted this long and ended without an error is reopened immediately, because indexes close old
/// connections. Shorter streams are reopened with backoff, to keep the load low on both sides.
const ORDERLY_END_MIN: Duration = Duration::from_millis(500);

/// What to do for a peer that lacks batches which were evicted from the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overrun {
    /// Send the oldest retained batches. The peer requests the rest from the agent's `LocalIndexer`.
    Skip,
    /// Republish all held blocks in a new incarnation. Use it for a peer that cannot fetch a dump, and a feed without
    /// other readers.
    Republish,
}

/// Configuration of an uplink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UplinkConfig {
    /// Endpoint of the indexer: `http://host:port`, or `https://host:port`.
    pub endpoint: String,
    /// Dialer that connects to the indexer.
    pub dialer: Dialer,
    /// Time between two heartbeats; not 0.
    pub heartbeat_interval: Duration,
    /// Registration of the worker before each stream; `None` if it is registered elsewhere.
    pub registration: Option<Registration>,
    /// Whether the worker is removed when the uplink stops.
    pub deregister: bool,
    /// What to do if the journal has evicted batches that the peer lacks.
    pub overrun: Overrun,
}

/// Progress of an uplink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UplinkStatus {
    /// Whether a stream is open.
    pub connected: bool,
    /// The published incarnation.
    pub incarnation: Incarnation,
    /// Last batch of the incarnation that the index has.
    pub acknowledged: Option<u64>,
    /// Batches evicted from the journal before they could be sent. The index requests a dump.
    pub skipped_batches: u64,
    /// Number of times that all held blocks were republished, in a new incarnation.
    pub retold: u64,
    /// Block operations that the index rejected, so that it reports fewer blocks.
    pub rejected_blocks: u64,
    /// Number of streams opened since start.
    pub streams: u64,
    /// Why the last stream ended or could not be opened; `None` once the index has accepted another.
    pub error: Option<Arc<str>>,
    /// Whether `error` is a refusal, which remains until one side is configured differently.
    pub refused: bool,
}

impl UplinkStatus {
    /// Initial status, before any contact with the index.
    #[must_use]
    pub const fn new(incarnation: Incarnation) -> Self {
        Self {
            connected: false,
            incarnation,
            acknowledged: None,
            skipped_batches: 0,
            retold: 0,
            rejected_blocks: 0,
            streams: 0,
            error: None,
            refused: false,
        }
    }
}

/// Keeps a stream of a source open to an indexer, with backoff after errors, and reports its progress in `status`. Once
/// `stop` is cancelled, sends the rest of the journal, waits for the answers, and deregisters the worker if configured.
pub async fn run_uplink(
    feed: Arc<Feed>,
    config: UplinkConfig,
    status: watch::Sender<UplinkStatus>,
    stop: CancellationToken,
) {
    let runner = Runner { feed, config, status, stop, has_place: AtomicBool::new(false) };
    select! {
        () = runner.stop.cancelled() => return runner.deregister_worker().await,
        () = runner.feed.until_settled() => {}
    }
    let mut pauses = Pauses::default();
    loop {
        let before = runner.progress();
        let began = Instant::now();
        match runner.stream().await {
            Ok(End::Stopped) => return runner.deregister_worker().await,
            Ok(End::NewIncarnation) => pauses.reset(),
            Err(UplinkError::Closed) if began.elapsed() >= ORDERLY_END_MIN => {
                runner.status.send_modify(|status| status.connected = false);
                pauses.reset();
            }
            Err(error) => {
                if runner.progress() != before {
                    pauses.reset();
                }
                runner.record_error(&error, pauses.admit_line());
                if !pauses.wait(&runner.stop).await {
                    return runner.deregister_worker().await;
                }
            }
        }
    }
}

/// How a stream ended.
enum End {
    Stopped,
    NewIncarnation,
}

struct Runner {
    feed: Arc<Feed>,
    config: UplinkConfig,
    status: watch::Sender<UplinkStatus>,
    stop: CancellationToken,
    /// Whether this agent owns the worker at the index: a stream was accepted, and since then no other agent is known
    /// to have taken over.
    has_place: AtomicBool,
}

/// Progress of one stream, within one incarnation.
struct Position {
    incarnation: Incarnation,
    /// Number of the next batch to send; `None` once the last number was sent.
    next: Option<u64>,
    /// When the oldest unanswered batch was sent, or the last answer arrived.
    since: Instant,
    /// Count of the source's changes for which an early heartbeat was requested.
    changes: u64,
    /// Whether a heartbeat is due.
    owes_heartbeat: bool,
}

impl Runner {
    /// Acknowledged position, which shows whether a stream made progress.
    fn progress(&self) -> (Incarnation, Option<u64>) {
        let status = self.status.borrow();
        (status.incarnation, status.acknowledged)
    }

    /// Records in the status why there is no stream. Logs the error if `line` is set: it is the number of suppressed
    /// lines.
    fn record_error(&self, error: &UplinkError, line: Option<u64>) {
        let text: Arc<str> = error.to_string().into();
        if let Some(num_suppressed) = line {
            let source = self.feed.name();
            let endpoint = &self.config.endpoint;
            let error = &*text;
            tracing::warn!(source, endpoint, error, num_suppressed, "the uplink is down");
        }
        self.status.send_modify(|status| {
            (status.connected, status.error) = (false, Some(text));
            status.refused = error.is_refusal();
        });
        if error.is_refusal() || error.is_fenced() {
            self.has_place.store(false, Ordering::Release);
        }
    }

    /// Opens a stream and uses it until it ends. Returns whether it ended because of a stop or a new incarnation.
    async fn stream(&self) -> Result<End, UplinkError> {
        let mut news = self.feed.news();
        let hello = self.feed.hello();
        let incarnation = hello.incarnation;
        let first = hello.first_sequence.unwrap_or_default();
        let mut uplink = select! {
            () = self.stop.cancelled() => return Ok(End::Stopped),
            uplink = self.open_stream(hello) => uplink?,
        };
        self.accepted(incarnation, uplink.applied());
        let next = uplink.applied().map_or(Some(first), |applied| applied.checked_add(1));
        let changes = news.borrow_and_update().changes;
        let mut position =
            Position { incarnation, next, since: Instant::now(), changes, owes_heartbeat: true };
        let mut heartbeats = interval(self.config.heartbeat_interval);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // The first heartbeat precedes all batches: without one, an index shows the source as exact.
            self.heartbeat_if_due(&uplink, &mut position);
            if let Some(end) = self.fill(&mut uplink, &mut position)? {
                return Ok(end);
            }
            let stopping = self.stop.is_cancelled();
            let waiting = !uplink.window().is_empty();
            if stopping && !waiting {
                return Ok(End::Stopped);
            }
            select! {
                answer = uplink.acknowledged() => {
                    let Acknowledged { sequence, rejected, .. } = answer?;
                    position.since = Instant::now();
                    self.status.send_modify(|status| {
                        status.acknowledged = Some(sequence);
                        status.rejected_blocks += rejected;
                    });
                }
                // Cannot fail: the source outlives its uplinks.
                _known = news.changed() => {
                    let changes = news.borrow_and_update().changes;
                    position.owes_heartbeat |= mem::replace(&mut position.changes, changes) != changes;
                }
                _ = heartbeats.tick() => position.owes_heartbeat = true,
                () = self.stop.cancelled(), if !stopping => {}
                () = sleep_until(position.since + ANSWER_TIMEOUT), if waiting => {
                    return Err(UplinkError::Silent(ANSWER_TIMEOUT));
                }
            }
        }
    }

    fn to(&self) -> (&Dialer, &str) {
        (&self.config.dialer, &self.config.endpoint)
    }

    /// Opens a stream. Registers the worker before, if configured.
    async fn open_stream(&self, mut hello: Hello) -> Result<Uplink, UplinkError> {
        let to = self.to();
        if let Some(registration) = &self.config.registration {
            let copy_mode = hello.copy_mode;
            let registration = Registration { copy_mode, ..registration.clone() };
            register(to, &registration).await?;
            hello.local_indexer = registration.local_indexer;
        }
        Uplink::open_as(to, hello).await
    }

    /// Removes the worker from the index, if configured and no other agent has taken over. If the removal fails, the
    /// worker stays until its lease ends.
    async fn deregister_worker(&self) {
        if !self.config.deregister || !self.has_place.load(Ordering::Acquire) {
            return;
        }
        let endpoint = &self.config.endpoint;
        if let Err(error) = remove(self.to(), self.feed.address()).await {
            tracing::info!(endpoint, %error, "the index did not deregister the worker: its lease will expire");
        }
    }

    /// Records an open stream in log and status. `applied` is the last batch that the index has.
    fn accepted(&self, incarnation: Incarnation, applied: Option<u64>) {
        tracing::info!(
            source = self.feed.name(),
            endpoint = self.config.endpoint,
            applied,
            "uplink open"
        );
        self.status.send_modify(|status| {
            (status.connected, status.error, status.refused) = (true, None, false);
            (status.incarnation, status.acknowledged) = (incarnation, applied);
            status.streams += 1;
        });
        self.has_place.store(true, Ordering::Release);
    }

    /// Sends a heartbeat if one is due and there is room. Otherwise it stays due.
    fn heartbeat_if_due(&self, uplink: &Uplink, position: &mut Position) {
        if position.owes_heartbeat {
            let heartbeat = self.feed.heartbeat(position.incarnation);
            position.owes_heartbeat =
                !heartbeat.is_none_or(|heartbeat| uplink.heartbeat(heartbeat));
        }
    }

    /// Sends batches while the window has room. Returns `NewIncarnation` if the journal has begun another incarnation.
    /// Skips or republishes batches that were evicted.
    fn fill(
        &self,
        uplink: &mut Uplink,
        position: &mut Position,
    ) -> Result<Option<End>, UplinkError> {
        while let Some(next) = position.next.filter(|_| uplink.window().has_room()) {
            let range = self.feed.range(position.incarnation, next..=u64::MAX, UNACKED_BATCHES_MAX);
            let batches = match range {
                Ok(range) => range.batches,
                Err(RangeError::TooOld { .. }) if self.config.overrun == Overrun::Republish => {
                    self.republish(position.incarnation);
                    return Ok(Some(End::NewIncarnation));
                }
                Err(RangeError::TooOld { oldest, .. }) => {
                    self.report_skipped(next, oldest);
                    position.next = Some(oldest);
                    continue;
                }
                Err(RangeError::WrongIncarnation { .. }) => return Ok(Some(End::NewIncarnation)),
                Err(RangeError::Ahead { head }) => {
                    let applied = next.saturating_sub(1);
                    return Err(UplinkError::AheadOfJournal { applied, head });
                }
            };
            if batches.is_empty() {
                break;
            }
            if uplink.window().is_empty() {
                position.since = Instant::now();
            }
            for batch in batches {
                if !uplink.window().has_room() {
                    break;
                }
                let numbered = (batch.sequence(), batch.rank(), batch.events());
                uplink.send(numbered, batch.wire_bytes());
                position.next = batch.sequence().checked_add(1);
            }
        }
        Ok(None)
    }

    /// Publishes all held blocks in a new incarnation, and logs it.
    fn republish(&self, present: Incarnation) {
        let source = self.feed.name();
        let endpoint = &self.config.endpoint;
        tracing::warn!(
            source,
            endpoint,
            "the peer lacks batches that the journal has lost: publishing all held blocks again"
        );
        self.feed.republish(present, new_incarnation());
        self.status.send_modify(|status| status.retold += 1);
    }

    /// Logs and counts the evicted batches from `next` to before `oldest`. The index sees them as a gap.
    fn report_skipped(&self, next: u64, oldest: u64) {
        let batches = oldest.saturating_sub(next);
        let source = self.feed.name();
        let endpoint = &self.config.endpoint;
        tracing::warn!(
            source,
            endpoint,
            batches,
            "the journal no longer has the batches that the index lacks"
        );
        self.status.send_modify(|status| status.skipped_batches += batches);
    }
}
