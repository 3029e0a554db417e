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

/// A stream whose oldest batch has no answer for so long is replaced. An index that fetches what it
/// missed answers late.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// A stream that lasted so long and ended without an error is opened again at once: the index ends streams of old
/// connections. One that always ends earlier would otherwise keep both busy.
const ORDERLY_END_MIN: Duration = Duration::from_millis(500);

/// What to do for a peer that lacks batches which the journal does not retain any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overrun {
    /// Send it the oldest that are retained; it asks the agent's `LocalIndexer` for the rest.
    Skip,
    /// Publish all that is held in a new incarnation: for a peer that cannot fetch a dump, and a feed that has no other
    /// reader.
    Republish,
}

/// Where an uplink leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UplinkConfig {
    /// The indexer: `http://host:port`, or `https://host:port`.
    pub endpoint: String,
    /// What connects to it.
    pub dialer: Dialer,
    /// How often it is sent a heartbeat; not 0.
    pub heartbeat_interval: Duration,
    /// How the worker is registered before each stream; none if it is registered elsewhere.
    pub registration: Option<Registration>,
    /// Whether the worker is removed when the uplink stops.
    pub deregister: bool,
    /// What it does once the journal has lost what the peer lacks.
    pub overrun: Overrun,
}

/// How far an uplink has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UplinkStatus {
    /// A stream is open.
    pub connected: bool,
    /// The incarnation that is published.
    pub incarnation: Incarnation,
    /// The last batch of that incarnation that the index has.
    pub acknowledged: Option<u64>,
    /// Batches that the journal had lost before they could be sent: the index asks for a dump.
    pub skipped_batches: u64,
    /// Times that all that is held was published again, in a new incarnation.
    pub retold: u64,
    /// Block operations that the index did not take: it credits less.
    pub rejected_blocks: u64,
    /// Streams opened since start.
    pub streams: u64,
    /// Why the last stream ended or could not be opened; none once the index has accepted one again.
    pub error: Option<Arc<str>>,
    /// Whether that is a refusal, which will be the same until one side is configured otherwise.
    pub refused: bool,
}

impl UplinkStatus {
    /// Nothing is known of the index yet.
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

/// Keeps a stream of a source open to an indexer, and reports its progress in `status`. Once `stop` is cancelled it
/// sends what the journal has, waits for the answers and ends; without a stream it ends at once.
pub async fn run_uplink(
    feed: Arc<Feed>,
    config: UplinkConfig,
    status: watch::Sender<UplinkStatus>,
    stop: CancellationToken,
) {
    let runner = Runner { feed, config, status, stop, has_place: AtomicBool::new(false) };
    select! {
        () = runner.stop.cancelled() => return runner.leave().await,
        () = runner.feed.until_settled() => {}
    }
    let mut pauses = Pauses::default();
    loop {
        let before = runner.progress();
        let began = Instant::now();
        match runner.stream().await {
            Ok(End::Stopped) => return runner.leave().await,
            Ok(End::NewIncarnation) => pauses.reset(),
            Err(UplinkError::Closed) if began.elapsed() >= ORDERLY_END_MIN => {
                runner.status.send_modify(|status| status.connected = false);
                pauses.reset();
            }
            Err(error) => {
                if runner.progress() != before {
                    pauses.reset();
                }
                runner.note(&error, pauses.admit_line());
                if !pauses.wait(&runner.stop).await {
                    return runner.leave().await;
                }
            }
        }
    }
}

/// How a stream came to its end.
enum End {
    Stopped,
    NewIncarnation,
}

struct Runner {
    feed: Arc<Feed>,
    config: UplinkConfig,
    status: watch::Sender<UplinkStatus>,
    stop: CancellationToken,
    /// The worker is this agent's, as far as is known: a stream was accepted, and since then no other agent is known
    /// to have taken its place.
    has_place: AtomicBool,
}

/// One stream of one incarnation.
struct Position {
    incarnation: Incarnation,
    /// Number of the next batch to send; none once the last was sent.
    next: Option<u64>,
    /// When the oldest batch under way was sent, or the last answer came.
    since: Instant,
    /// Changes of the source's state and reasons for which heartbeats were hurried.
    changes: u64,
    /// A heartbeat is due.
    owes_heartbeat: bool,
}

impl Runner {
    /// What shows that a stream made progress.
    fn progress(&self) -> (Incarnation, Option<u64>) {
        let status = self.status.borrow();
        (status.incarnation, status.acknowledged)
    }

    /// Notes why there is no stream, and logs it if that is to be; then so many times were left out.
    fn note(&self, error: &UplinkError, line: Option<u64>) {
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

    /// Opens a stream and uses it to its end.
    async fn stream(&self) -> Result<End, UplinkError> {
        let mut news = self.feed.news();
        let hello = self.feed.hello();
        let incarnation = hello.incarnation;
        let first = hello.first_sequence.unwrap_or_default();
        let mut uplink = select! {
            () = self.stop.cancelled() => return Ok(End::Stopped),
            uplink = self.open(hello) => uplink?,
        };
        self.accepted(incarnation, uplink.applied());
        let next = uplink.applied().map_or(Some(first), |applied| applied.checked_add(1));
        let changes = news.borrow_and_update().changes;
        let mut position =
            Position { incarnation, next, since: Instant::now(), changes, owes_heartbeat: true };
        let mut heartbeats = interval(self.config.heartbeat_interval);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // The first heartbeat goes before any batch: without one, an index shows the source as exact.
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
                // The source outlives its uplinks.
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

    /// Opens a stream of a worker that is registered.
    async fn open(&self, mut hello: Hello) -> Result<Uplink, UplinkError> {
        let to = self.to();
        if let Some(registration) = &self.config.registration {
            let copy_mode = hello.copy_mode;
            let registration = Registration { copy_mode, ..registration.clone() };
            register(to, &registration).await?;
            hello.local_indexer = registration.local_indexer;
        }
        Uplink::open_as(to, hello).await
    }

    /// The worker goes with its agent; not one that is another agent's.
    async fn leave(&self) {
        if !self.config.deregister || !self.has_place.load(Ordering::Acquire) {
            return;
        }
        let endpoint = &self.config.endpoint;
        if let Err(error) = remove(self.to(), self.feed.address()).await {
            tracing::info!(endpoint, %error, "the worker is left to its lease");
        }
    }

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

    /// Sends a heartbeat, if one is due and there is room; else it stays due.
    fn heartbeat_if_due(&self, uplink: &Uplink, position: &mut Position) {
        if position.owes_heartbeat {
            let heartbeat = self.feed.heartbeat(position.incarnation);
            position.owes_heartbeat =
                !heartbeat.is_none_or(|heartbeat| uplink.heartbeat(heartbeat));
        }
    }

    /// Sends what there is and may be under way.
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
                    self.skip(next, oldest);
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

    fn republish(&self, present: Incarnation) {
        let source = self.feed.name();
        let endpoint = &self.config.endpoint;
        tracing::warn!(
            source,
            endpoint,
            "the peer lacks batches that the journal has lost: all that is held is published again"
        );
        self.feed.republish(present, new_incarnation());
        self.status.send_modify(|status| status.retold += 1);
    }

    /// Batches that are not retained any more cannot be sent: the index sees a gap.
    fn skip(&self, next: u64, oldest: u64) {
        let batches = oldest.saturating_sub(next);
        let source = self.feed.name();
        let endpoint = &self.config.endpoint;
        tracing::warn!(source, endpoint, batches, "the journal does not have what the index lacks");
        self.status.send_modify(|status| status.skipped_batches += batches);
    }
}
