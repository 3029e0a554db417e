use crate::fault::Fault;
use kvasir_feed::feed::{Feed, SourceConfig, new_incarnation};
use kvasir_feed::hub::{Hub, HubConfig};
use kvasir_feed::journal::JournalConfig;
use kvasir_feed::publisher::{KvEventPublisher, NewBlocks};
use kvasir_feed::uplink::{Overrun, UplinkConfig, UplinkStatus, run_uplink};
use kvasir_proto::convert::{ConvertError, Registration};
use kvasir_proto::limits::{EVENT_BLOCKS_MAX, WORKER_RANKS_MAX};
use kvasir_proto::pb;
use kvasir_proto::target::{is_tls, read_target};
use kvasir_proto::types::{BlockName, CopyMode, Tier};
use kvasir_tasks::group::TaskGroup;
use kvasir_tls::Dialer;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

const HELD_BLOCKS_DEFAULT: usize = 4 << 20;
const JOURNAL_BYTES_DEFAULT: usize = 32 << 20;
/// Small events take about 200 bytes: the limit on bytes bounds the journal.
const JOURNAL_BATCHES: usize = 1 << 20;
/// Maximum configurable number of blocks: the journal indexes blocks by 32-bit numbers.
const HELD_BLOCKS_MAX: usize = 1 << 31;
/// Heartbeats go out at least this often, and four times in a lease.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait for the thread of a publisher that is freed.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Options of a publisher.
#[derive(Debug)]
pub(crate) struct Config<'a> {
    pub(crate) endpoint: &'a str,
    pub(crate) worker_id: &'a str,
    pub(crate) model: &'a str,
    pub(crate) tenant: &'a str,
    pub(crate) source: Option<&'a str>,
    pub(crate) block_size: u32,
    pub(crate) rank: u32,
    pub(crate) copy_mode: CopyMode,
    pub(crate) lease_ms: u32,
    /// 0 for the default, as for the next field.
    pub(crate) held_blocks_max: usize,
    pub(crate) journal_bytes_max: usize,
}

/// One rank's cached blocks in a journal, and an uplink that sends them to the peer.
#[derive(Debug)]
pub(crate) struct Publisher {
    feed: Arc<Feed>,
    events: KvEventPublisher,
    held_blocks_max: usize,
    /// Held from the check for room until it is taken.
    storing: Mutex<()>,
    dropped_events: AtomicU64,
    uplink: watch::Receiver<UplinkStatus>,
    /// None once it was shut down.
    tasks: Mutex<Option<TaskGroup>>,
    /// None while it is dropped.
    runtime: Option<Runtime>,
}

/// State of a publisher.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) head: u64,
    pub(crate) acknowledged: u64,
    pub(crate) held_blocks: u64,
    pub(crate) dropped_events: u64,
    pub(crate) uplink: UplinkStatus,
}

impl Publisher {
    /// Starts a publisher, and the thread that connects to the peer. The peer need not be running yet.
    pub(crate) fn open(config: &Config<'_>) -> Result<Self, Fault> {
        let endpoint = read_target(config.endpoint);
        let endpoint = endpoint.map_err(|error| Fault::argument("endpoint", error))?;
        if is_tls(&endpoint) {
            let problem = format!(
                "is {endpoint:?}, and this library has no TLS: publish to an agent on this machine, at http://"
            );
            return Err(Fault::argument("endpoint", problem));
        }
        let held_blocks_max = or(config.held_blocks_max, HELD_BLOCKS_DEFAULT);
        if held_blocks_max > HELD_BLOCKS_MAX {
            let problem = format!("is {held_blocks_max}, the limit is {HELD_BLOCKS_MAX}");
            return Err(Fault::argument("held_blocks_max", problem));
        }
        let registration = registration(config)?;
        let feed = Arc::new(feed(config, &registration, held_blocks_max)?);
        let hub = Arc::new(Hub::new(Arc::clone(&feed), HubConfig::DEFAULT)?);
        let events = KvEventPublisher::open(&hub, feed.name(), config.copy_mode, config.rank)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kvasir-publisher")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| Fault::Internal(format!("no thread: {error}")))?;
        let registers = registration.lease.is_some();
        let quarter = registration.lease.map(|lease| lease / 4);
        let uplink = UplinkConfig {
            endpoint,
            dialer: Dialer::default(),
            heartbeat_interval: quarter.unwrap_or(HEARTBEAT_INTERVAL).min(HEARTBEAT_INTERVAL),
            registration: registers.then_some(registration),
            deregister: registers,
            overrun: Overrun::Republish,
        };
        let (sender, status) = watch::channel(UplinkStatus::new(feed.status().incarnation));
        let mut tasks = TaskGroup::default();
        let entered = runtime.enter();
        tasks.spawn("uplink", run_uplink(Arc::clone(&feed), uplink, sender, tasks.token()));
        drop(entered);
        Ok(Self {
            feed,
            events,
            held_blocks_max,
            storing: Mutex::new(()),
            dropped_events: AtomicU64::new(0),
            uplink: status,
            tasks: Mutex::new(Some(tasks)),
            runtime: Some(runtime),
        })
    }

    /// Tokens per block.
    pub(crate) fn block_size(&self) -> u32 {
        self.feed.block_size()
    }

    /// Publishes stored blocks, and returns the event's id. Fails with `Full`, and counts the event as dropped, if
    /// `held_blocks_max` blocks are held.
    pub(crate) fn stored(&self, blocks: &NewBlocks<'_>) -> Result<u64, Fault> {
        let _storing = self.storing.lock();
        // The journal has room for one additional event.
        let count = self.feed.status().held_blocks;
        let limit = self.held_blocks_max;
        if count >= limit {
            self.dropped_events.fetch_add(1, Ordering::Relaxed);
            let fix = "publish what is removed, or give a larger held_blocks_max";
            return Err(Fault::Full { count, what: "blocks are held", limit, fix });
        }
        Ok(self.events.publish_stored(blocks)?)
    }

    pub(crate) fn removed(&self, names: &[BlockName], tier: Tier) -> Result<u64, Fault> {
        Ok(self.events.publish_removed(names, tier)?)
    }

    pub(crate) fn all_cleared(&self) -> Result<u64, Fault> {
        Ok(self.events.publish_all_cleared()?)
    }

    /// Waits until a stream is open.
    pub(crate) fn wait_connected(&self, limit: Duration) -> Result<(), Fault> {
        let mut uplink = self.uplink.clone();
        let connected = async {
            let known = uplink.wait_for(|status| status.connected || status.refused).await;
            settled(known.is_ok_and(|status| status.connected), &self.uplink)
        };
        self.within(Instant::now() + limit, connected, || "there is no stream yet".to_owned())
    }

    /// Waits until the peer has all events published before.
    pub(crate) fn flush(&self, limit: Duration) -> Result<(), Fault> {
        self.flush_until(Instant::now() + limit)
    }

    /// Shuts down: publishes that the engine's blocks are gone, and waits for the peer until `limit`. A second call has
    /// no effect.
    pub(crate) fn shut_down(&self, limit: Duration) -> Result<(), Fault> {
        let deadline = Instant::now() + limit;
        self.events.shutdown();
        let Some(mut tasks) = self.tasks.lock().take() else { return Ok(()) };
        let delivered = self.flush_until(deadline);
        self.runtime()?.block_on(tasks.stop_by(deadline));
        delivered
    }

    /// Returns the progress of the publisher. A number that belongs to an earlier incarnation is replaced by the first
    /// number of the current one, which republishes all blocks.
    pub(crate) fn progress(&self) -> Progress {
        let (journal, uplink) = (self.feed.status(), self.uplink.borrow().clone());
        // Batches below the first of an incarnation belong to earlier incarnations. The new incarnation
        // republishes their blocks.
        let past = |number: Option<u64>| number.map_or(journal.first, |at| at.saturating_add(1));
        let confirmed = uplink.acknowledged.filter(|_| uplink.incarnation == journal.incarnation);
        Progress {
            head: past(journal.head),
            acknowledged: past(confirmed),
            held_blocks: journal.held_blocks as u64,
            dropped_events: self.dropped_events.load(Ordering::Relaxed),
            uplink,
        }
    }

    /// Waits until the peer has all events, or fails at `deadline` with the number of missing batches.
    fn flush_until(&self, deadline: Instant) -> Result<(), Fault> {
        self.within(deadline, self.confirmed(), || {
            let Progress { head, acknowledged, .. } = self.progress();
            format!("{} batches are not acknowledged", head.saturating_sub(acknowledged))
        })
    }

    /// Waits until the peer has all current events. Fails if the peer refuses the stream.
    async fn confirmed(&self) -> Result<(), Fault> {
        let mut uplink = self.uplink.clone();
        loop {
            let now = self.feed.status();
            let has_all = |status: &UplinkStatus| {
                status.incarnation == now.incarnation && status.acknowledged >= now.head
            };
            // If all blocks are republished as an image, wait for the image's end.
            let is_over = || self.feed.status().incarnation != now.incarnation;
            let known = uplink
                .wait_for(|status| status.refused || has_all(status) || is_over())
                .await
                .map(|status| status.clone());
            match known {
                Ok(status) if !status.refused && !has_all(&status) => {}
                known => return settled(known.is_ok_and(|status| has_all(&status)), &self.uplink),
            }
        }
    }

    /// Waits for `wait` until `deadline`. After the deadline, fails with the text of `problem` and the uplink's error.
    fn within(
        &self,
        deadline: Instant,
        wait: impl Future<Output = Result<(), Fault>>,
        problem: impl FnOnce() -> String,
    ) -> Result<(), Fault> {
        // Create the timer inside the runtime.
        let waited = self.runtime()?.block_on(async { timeout_at(deadline, wait).await });
        waited.unwrap_or_else(|_late| {
            let error = self.uplink.borrow().error.clone();
            let reason = error.map_or_else(String::new, |error| format!("; no stream: {error}"));
            Err(Fault::Timeout(format!("{}{reason}", problem())))
        })
    }

    fn runtime(&self) -> Result<&Runtime, Fault> {
        self.runtime.as_ref().ok_or(Fault::Handle)
    }
}

impl Drop for Publisher {
    /// Ends the thread, even while it waits.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            drop(self.tasks.lock().take());
            runtime.shutdown_timeout(END_TIMEOUT);
        }
    }
}

/// Returns the result of a wait: Ok if `is_there`, else refused or shut down.
fn settled(is_there: bool, uplink: &watch::Receiver<UplinkStatus>) -> Result<(), Fault> {
    if is_there {
        return Ok(());
    }
    let status = uplink.borrow();
    if !status.refused {
        return Err(Fault::ShutDown);
    }
    Err(Fault::Refused(status.error.as_deref().unwrap_or("refused").to_owned()))
}

fn or(given: usize, default: usize) -> usize {
    if given == 0 { default } else { given }
}

/// Builds the worker's registration, and checks it as an index does.
fn registration(config: &Config<'_>) -> Result<Registration, Fault> {
    let request = pb::RegisterWorkerRequest {
        worker_id: config.worker_id.to_owned(),
        model: config.model.to_owned(),
        tenant: config.tenant.to_owned(),
        block_size: config.block_size,
        engine: pb::Engine::Custom.into(),
        lease_ms: config.lease_ms,
        ..Default::default()
    };
    let refused = |error: ConvertError| Fault::Argument(error.to_string());
    let registration = Registration::try_from(request).map_err(refused)?;
    Ok(Registration { copy_mode: config.copy_mode, ..registration })
}

/// Creates the feed of the publisher. Fails if the rank or a limit is out of range.
fn feed(
    config: &Config<'_>,
    registration: &Registration,
    held_blocks_max: usize,
) -> Result<Feed, Fault> {
    let rank = config.rank;
    if usize::try_from(rank).is_ok_and(|rank| rank >= WORKER_RANKS_MAX) {
        let problem = format!("is {rank}, must be below {WORKER_RANKS_MAX}");
        return Err(Fault::argument("dp_rank", problem));
    }
    let journal = JournalConfig {
        copy_mode: config.copy_mode,
        batches_max: JOURNAL_BATCHES,
        bytes_max: or(config.journal_bytes_max, JOURNAL_BYTES_DEFAULT),
        held_blocks_max: held_blocks_max.saturating_add(EVENT_BLOCKS_MAX),
    };
    let source = SourceConfig {
        address: registration.address(),
        name: config.source.map_or_else(|| format!("rank-{rank}"), str::to_owned),
        block_size: config.block_size,
        incarnation: new_incarnation(),
        first_sequence: 0,
        journal,
    };
    Feed::new(source).map_err(|error| Fault::Argument(error.to_string()))
}
