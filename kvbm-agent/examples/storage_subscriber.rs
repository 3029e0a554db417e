//! A subscriber of storage events in one file, for storage providers. It follows the blocks of all agents over NATS, and
//! prints each location with its blocks, bytes and least recently used leaf (a candidate for demotion).
//!
//! `cargo run -p kvbm-agent --example storage_subscriber -- nats://127.0.0.1:4222`
//!
//! Run the agents with `--storage-events`. If they have a `--nats-namespace`, add it as the second argument.
//! [`StorageIndex`] is the part to build on: tiering policies read it, and agents do not depend on it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example")]
#![allow(clippy::missing_errors_doc, reason = "an example")]

use async_nats::connection::State as ConnectionState;
use async_nats::{Client, Event, Message, Subscriber as Messages};
use futures::StreamExt;
use kvasir_process::nats::{NatsAccess, NatsServers};
use kvasir_proto::broker::{
    Namespace, STORAGE_ALL, STORAGE_SNAPSHOTS, storage_snapshots_subject as snapshots_subject,
};
use kvasir_proto::codec::decode;
use kvasir_proto::convert::{
    StorageBatch, StorageBlock, StorageChange, StorageContent, StorageImagePart, WorkerAddress,
};
use kvasir_proto::pb;
use kvasir_proto::types::{Incarnation, PartitionKey, SequenceHash};
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, Interval, interval};
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Maximum number of blocks and places. A block counts once for each place that has it. The program ends if agents have
/// more.
const ENTRIES_MAX: usize = 4_000_000;
/// Maximum number of received messages in memory, each up to a megabyte. Further messages are lost, and then replaced by
/// an image.
const MESSAGES_QUEUED_MAX: usize = 256;
/// Minimum time between two image requests to one agent.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a message after which a place expires: several times the agents' `--storage-events interval=`.
const PLACE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two checks for missing batches and silent places.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// A storage location of one worker. A named volume is reported by each worker that uses it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The worker.
    pub address: WorkerAddress,
    /// `host`, `disk`, `volume` or `volume:NAME`.
    pub location: String,
}

/// A block in a place.
#[derive(Debug)]
pub struct Block {
    /// The preceding block of the prompt; `None` for a first block.
    pub prefix: Option<SequenceHash>,
    /// Size of the block.
    pub bytes: u64,
    /// Time of the last STORE of this block, or of a block that continues it. Agents publish no events for cache hits.
    pub used: Duration,
    /// Number of the latest image that listed the block.
    image: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// Batches are missing: an image is needed.
    #[default]
    Incomplete,
    /// An image has begun, and its last part is still to come.
    ReadingImage,
    /// All published batches were applied.
    Exact,
}

/// A place's blocks, and the position in its numbered batches.
#[derive(Debug, Default)]
struct Stream {
    blocks: BTreeMap<SequenceHash, Block>,
    incarnation: Option<Incarnation>,
    /// Number of the next batch.
    next: u64,
    state: State,
    /// Number of images begun.
    image: u64,
    last_message: Duration,
    last_request: Option<Duration>,
}

/// The stored blocks of all agents, by place. Applies batches in the order of their numbers, and lists the agents to
/// request images from. Pure: time is an argument.
#[derive(Debug, Default)]
pub struct StorageIndex {
    places: BTreeMap<Place, Stream>,
}

impl StorageIndex {
    /// Applies a batch. After a gap, ignores the place's batches until an image.
    pub fn apply(&mut self, batch: StorageBatch, now: Duration) {
        let place = Place { address: batch.address, location: batch.location };
        let stream = self.places.entry(place).or_default();
        stream.last_message = now;
        if stream.incarnation != Some(batch.incarnation) {
            // The agent has restarted. The place's blocks stay until its first image.
            stream.incarnation = Some(batch.incarnation);
            stream.next = 1;
            stream.state = State::Incomplete;
            stream.last_request = None;
        }
        if batch.sequence < stream.next {
            return; // A duplicate, or late.
        }
        let is_next = batch.sequence == stream.next;
        stream.next = batch.sequence.saturating_add(1);
        stream.state = match batch.content {
            StorageContent::Image(part)
                if part.begins || (is_next && stream.state == State::ReadingImage) =>
            {
                stream.apply_image(&part, now)
            }
            StorageContent::Changes(changes) if is_next && stream.state == State::Exact => {
                changes.iter().for_each(|change| stream.apply_change(change, now));
                State::Exact
            }
            StorageContent::Image(_) | StorageContent::Changes(_) => State::Incomplete,
        };
    }

    /// Agents with missing batches, to request images from. Records the requests.
    pub fn due_requests(&mut self, now: Duration) -> BTreeSet<WorkerAddress> {
        let mut due = BTreeSet::new();
        for (place, stream) in &mut self.places {
            let is_recent = |at: Duration| now.saturating_sub(at) < REQUEST_INTERVAL;
            let was_requested = stream.last_request.is_some_and(is_recent);
            if stream.state == State::Incomplete && !was_requested {
                stream.last_request = Some(now);
                due.insert(place.address.clone());
            }
        }
        due
    }

    /// Drops places without a message for [`PLACE_TIMEOUT`].
    pub fn expire(&mut self, now: Duration) {
        self.places.retain(|_, stream| now.saturating_sub(stream.last_message) <= PLACE_TIMEOUT);
    }

    /// Number of blocks and places.
    pub fn entries(&self) -> usize {
        self.places.values().map(|stream| stream.blocks.len() + 1).sum()
    }

    /// All places, each with its blocks, and whether all published batches were applied.
    pub fn places(&self) -> impl Iterator<Item = (&Place, &BTreeMap<SequenceHash, Block>, bool)> {
        self.places
            .iter()
            .map(|(place, stream)| (place, &stream.blocks, stream.state == State::Exact))
    }

    /// Places that have a block.
    pub fn holders(&self, partition: &PartitionKey, block: SequenceHash) -> Vec<&Place> {
        let has_block = |(place, stream): &(&Place, &Stream)| {
            place.address.partition == *partition && stream.blocks.contains_key(&block)
        };
        self.places.iter().filter(has_block).map(|(place, _)| place).collect()
    }

    /// One line for each place.
    pub fn report(&self, now: Duration) -> String {
        let mut report = String::new();
        for (place, blocks, is_exact) in self.places() {
            let bytes: u64 = blocks.values().map(|block| block.bytes).fold(0, u64::saturating_add);
            let state = if is_exact { "" } else { ", incomplete" };
            let line = format!("{} {}: {} blocks", place.address, place.location, blocks.len());
            report.push_str(&format!("{line}, {bytes} bytes{state}"));
            if let Some((hash, block)) = demotion_candidate(blocks) {
                let idle = now.saturating_sub(block.used).as_secs();
                let copies = self.holders(&place.address.partition, hash).len();
                let leaf = format!("{hash}, unused for {idle} s, copies: {copies}");
                report.push_str(&format!("; least recently used leaf: {leaf}"));
            }
            report.push('\n');
        }
        report
    }
}

/// An example of a policy: demote the least recently used leaf. A leaf is a block that no block of the place continues.
fn demotion_candidate(blocks: &BTreeMap<SequenceHash, Block>) -> Option<(SequenceHash, &Block)> {
    let inner: BTreeSet<_> = blocks.values().filter_map(|block| block.prefix).collect();
    let leaves = blocks.iter().filter(|(hash, _)| !inner.contains(hash));
    leaves.min_by_key(|(_, block)| block.used).map(|(hash, block)| (*hash, block))
}

impl Stream {
    fn apply_image(&mut self, part: &StorageImagePart, now: Duration) -> State {
        if part.begins {
            self.image += 1;
        }
        part.blocks.iter().for_each(|block| self.insert(block, now));
        if !part.ends {
            return State::ReadingImage;
        }
        let latest = self.image;
        self.blocks.retain(|_, block| block.image == latest);
        State::Exact
    }

    fn apply_change(&mut self, change: &StorageChange, now: Duration) {
        match change {
            StorageChange::Store(block) => {
                self.insert(block, now);
                for hash in [Some(block.sequence), block.prefix].into_iter().flatten() {
                    self.blocks.entry(hash).and_modify(|block| block.used = now);
                }
            }
            StorageChange::Remove(block) => {
                self.blocks.remove(&block.sequence);
            }
        }
    }

    /// Adds a block, or marks it as listed by the latest image.
    fn insert(&mut self, block: &StorageBlock, now: Duration) {
        let StorageBlock { prefix, bytes, .. } = *block;
        let new = || Block { prefix, bytes, used: now, image: self.image };
        self.blocks.entry(block.sequence).or_insert_with(new).image = self.image;
    }
}

/// A connection to NATS, and the index that it fills.
#[derive(Debug)]
pub struct Subscriber {
    /// The stored blocks, as far as messages have arrived.
    pub index: StorageIndex,
    namespace: Namespace,
    client: Client,
    messages: Messages,
    connected: Arc<Notify>,
    checks: Interval,
    began: Instant,
}

impl Subscriber {
    /// Subscribes to the storage events of all agents. The client library reconnects after an outage.
    pub async fn connect(servers: &NatsServers) -> Result<Self> {
        let connected = Arc::new(Notify::new());
        let connects = Arc::clone(&connected);
        let on_event = move |event: Event| {
            if event == Event::Connected {
                connects.notify_one();
            }
            eprintln!("NATS: {event}");
            async {}
        };
        let options = servers.reconnecting().subscription_capacity(MESSAGES_QUEUED_MAX);
        let client = options.event_callback(on_event).connect(servers.addresses()).await?;
        let namespace = servers.namespace().clone();
        let messages = client.subscribe(namespace.subject(STORAGE_ALL)).await?;
        Ok(Self {
            index: StorageIndex::default(),
            namespace,
            client,
            messages,
            connected,
            checks: interval(CHECK_INTERVAL),
            began: Instant::now(),
        })
    }

    /// Time since the start, as the index counts it.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits for a message, a connection or the next check, and handles it. Not cancel-safe while it sends requests.
    pub async fn step(&mut self) -> Result<()> {
        tokio::select! {
            message = self.messages.next() => {
                let message = message.ok_or("the subscription ended")?;
                match read_batch(&message) {
                    Ok(batch) => self.index.apply(batch, self.now()),
                    Err(error) => eprintln!("malformed batch on {}: {error}", message.subject),
                }
                if self.index.entries() > ENTRIES_MAX {
                    return Err(format!("agents have more than {ENTRIES_MAX} blocks").into());
                }
            }
            // Messages may have been lost: request images from all agents.
            () = self.connected.notified() => self.request_images(STORAGE_SNAPSHOTS).await?,
            _ = self.checks.tick() => {
                self.index.expire(self.now());
                if self.client.connection_state() == ConnectionState::Connected {
                    for worker in self.index.due_requests(self.now()) {
                        self.request_images(&snapshots_subject(&worker)).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn request_images(&self, subject: &str) -> Result<()> {
        let subject = self.namespace.subject(subject);
        Ok(self.client.publish(subject, Default::default()).await?)
    }
}

fn read_batch(message: &Message) -> Result<StorageBatch> {
    let batch: pb::StorageBatch = decode(message.payload.clone())?;
    Ok(StorageBatch::try_from(batch)?)
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let url = arguments.next().ok_or("usage: storage_subscriber NATS_URL [NATS_NAMESPACE]")?;
    let namespace = arguments.next().map_or(Ok(Namespace::default()), |name| name.parse())?;
    let access = NatsAccess { namespace, ..NatsAccess::default() };
    let servers = NatsServers::read(&url.into(), access)?;
    let mut subscriber = Subscriber::connect(&servers).await?;
    let mut next_report = REPORT_INTERVAL;
    loop {
        subscriber.step().await?;
        let now = subscriber.now();
        if now >= next_report {
            next_report = now + REPORT_INTERVAL;
            print!("{}", subscriber.index.report(now));
        }
    }
}
