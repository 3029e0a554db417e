//! Records requests as a trace for what-if analyses: arrival time, block hashes, lengths, durations and worker. It
//! contains no tokens and no text.
//!
//! One JSON object per line, in the format of the Mooncake traces with additional fields:
//!
//! - `timestamp`: milliseconds since the start of the recording.
//! - `input_length`, `output_length`: in tokens.
//! - `hash_ids`: sequence hashes of the prompt's complete blocks, of `block_size` tokens each.
//! - `block_size`, `model`, `worker`, `queue_ms`.
//! - `ttft_ms`: null without a token.
//! - `total_ms`.
//! - `cached_tokens`: null if the engine reported none.
//! - `fetch_blocks`: blocks that the worker was to fetch from peers; `fetch_ms`: expected duration of the fetch.
//!
//! Recording never delays a request: if the queue is full, the record is dropped and counted.

use crate::output::{OutputMetrics, Pace};
use kvasir_proto::types::{PartitionKey, WorkerKey};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use router_client::HashedPrompt;
use router_client::router::Choice;
use serde::Serialize;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum records that wait to be written.
const QUEUE_MAX: usize = 4_096;
/// Maximum records written in one batch.
const BATCH_MAX: usize = 256;
/// Maximum length of a line: readers of traces reject longer ones.
const LINE_BYTES_MAX: usize = (1 << 20) - 1;
/// Maximum size of a file in bytes. Later records are dropped.
const FILE_BYTES_MAX: u64 = 16 << 30;
/// Maximum active requests that are tracked until they end.
const OPEN_MAX: usize = 65_536;
/// Minimum number of new requests between two searches for abandoned ones.
const SEARCH_MIN: usize = 256;

/// Accepts records of requests. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Recorder {
    entries: Option<mpsc::Sender<Entry>>,
    began: Instant,
    counts: Counts,
}

#[derive(Debug, Clone, Default)]
struct Counts {
    written: Counter,
    dropped: Counter,
}

/// Writes records to a file.
#[derive(Debug)]
pub struct RecordWriter {
    entries: mpsc::Receiver<Entry>,
    file: BufWriter<File>,
    bytes: u64,
    counts: Counts,
}

/// Record of an active request.
#[derive(Debug, Clone)]
pub struct Recorded {
    arrived: Instant,
    queue: Duration,
    first_token: Option<Instant>,
    output_tokens: u64,
    input_tokens: u64,
    hashes: Vec<u64>,
    block_size: u32,
    model: String,
    worker: String,
    fetch_blocks: u32,
    fetch: Duration,
}

/// Active requests by model, tenant and id, for callers that know only the id. Measures their latency, and records them
/// if recording is enabled.
#[derive(Debug)]
pub struct OpenRequests {
    recorder: Recorder,
    metrics: OutputMetrics,
    lease: Duration,
    requests: Mutex<Map>,
}

#[derive(Debug, Default)]
struct Map {
    open: HashMap<(PartitionKey, String), Open>,
    /// Number of requests until the next search for abandoned ones.
    until_search: usize,
}

#[derive(Debug)]
struct Open {
    /// `None` without recording.
    request: Option<Recorded>,
    pace: Pace,
    touched: Instant,
}

/// A line of the file.
#[derive(Debug, Serialize)]
struct Entry {
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
    block_size: u32,
    model: String,
    worker: String,
    queue_ms: f64,
    ttft_ms: Option<f64>,
    total_ms: f64,
    cached_tokens: Option<u64>,
    fetch_blocks: u32,
    fetch_ms: f64,
}

// === impl Recorder ===

impl Recorder {
    /// Opens a recorder that appends to a file. If `path` is `None`, the recorder ignores all records.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: Option<&Path>) -> io::Result<(Self, Option<RecordWriter>)> {
        let counts = Counts::default();
        let began = Instant::now();
        let Some(path) = path else { return Ok((Self { entries: None, began, counts }, None)) };
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let bytes = file.metadata()?.len();
        let (entries, waiting) = mpsc::channel(QUEUE_MAX);
        let file = BufWriter::new(file);
        let writer = RecordWriter { entries: waiting, file, bytes, counts: counts.clone() };
        Ok((Self { entries: Some(entries), began, counts }, Some(writer)))
    }

    /// Registers the counters, which stay 0 without recording.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("recorder");
        let help = "Requests written to the recording file";
        registry.register("written", help, self.counts.written.clone());
        let help = "Requests missing from the recording file: queue full, line too long, or file full or broken";
        registry.register("dropped", help, self.counts.dropped.clone());
    }

    /// Starts the record of a request that arrived at `arrived` and has a worker. Returns `None` if recording is off.
    #[must_use]
    pub fn begin(
        &self,
        arrived: Instant,
        prompt: &HashedPrompt,
        choice: &Choice,
    ) -> Option<Recorded> {
        self.entries.as_ref()?;
        let hashes = prompt.sequence_hashes().into_iter().map(|hash| hash.0).collect();
        let plan = choice.decision.fetch.as_ref().ok();
        Some(Recorded {
            arrived,
            queue: choice.queued.map_or(Duration::ZERO, |at| at.waited),
            first_token: None,
            output_tokens: 0,
            input_tokens: prompt.input_tokens,
            hashes,
            block_size: prompt.block_size,
            model: prompt.model.clone(),
            worker: name(&choice.decision.worker),
            fetch_blocks: plan.map_or(0, |plan| plan.blocks),
            fetch: plan.map_or(Duration::ZERO, |plan| plan.expected),
        })
    }

    /// Ends a request and queues its record. Drops and counts the record if the queue is full.
    pub fn end(&self, request: Recorded, cached_tokens: Option<u64>) {
        let Some(entries) = &self.entries else { return };
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let since = |at: Instant| millis(at.saturating_duration_since(request.arrived));
        let arrived = request.arrived.saturating_duration_since(self.began);
        let entry = Entry {
            timestamp: u64::try_from(arrived.as_millis()).unwrap_or(u64::MAX),
            input_length: request.input_tokens,
            output_length: request.output_tokens,
            hash_ids: request.hashes,
            block_size: request.block_size,
            model: request.model,
            worker: request.worker,
            queue_ms: millis(request.queue),
            ttft_ms: request.first_token.map(since),
            total_ms: since(Instant::now()),
            cached_tokens,
            fetch_blocks: request.fetch_blocks,
            fetch_ms: millis(request.fetch),
        };
        if entries.try_send(entry).is_err() {
            self.counts.dropped.inc();
        }
    }
}

/// A worker's id, with the rank unless it is 0.
fn name(worker: &WorkerKey) -> String {
    if worker.rank == 0 { worker.worker.as_str().to_owned() } else { worker.to_string() }
}

// === impl Recorded ===

impl Recorded {
    /// Records the first token.
    pub fn first_token(&mut self) {
        self.first_token.get_or_insert_with(Instant::now);
    }

    /// Records the total number of output tokens so far.
    pub fn output_tokens(&mut self, tokens: u64) {
        if tokens > 0 {
            self.first_token();
        }
        self.ends_with(tokens);
    }

    /// Records the total number of output tokens if the time of the first token is unknown.
    pub fn ends_with(&mut self, tokens: u64) {
        self.output_tokens = self.output_tokens.max(tokens);
    }
}

// === impl RecordWriter ===

impl RecordWriter {
    /// Writes records until `stop` is cancelled, then the queued ones.
    ///
    /// # Errors
    /// If the writing thread panicked. If the file cannot be written, this is logged once, and the records count as
    /// dropped.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut has_failed = false;
        loop {
            let mut batch = Vec::new();
            let received = self.entries.recv_many(&mut batch, BATCH_MAX);
            if stop.run_until_cancelled(received).await.is_none() {
                self.entries.close();
                while let Ok(entry) = self.entries.try_recv() {
                    batch.push(entry);
                }
            }
            let is_last = stop.is_cancelled() || batch.is_empty();
            let (writer, written) = spawn_blocking(move || {
                let written = self.write(batch);
                (self, written)
            })
            .await?;
            self = writer;
            if let Err(error) = written
                && !std::mem::replace(&mut has_failed, true)
            {
                tracing::error!(%error, "requests are not recorded");
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Appends entries to the file. Drops and counts entries that have no tokens, are too long, or exceed the file's
    /// limit.
    fn write(&mut self, batch: Vec<Entry>) -> io::Result<()> {
        let mut kept = 0;
        let count = batch.len() as u64;
        let written = batch.into_iter().try_for_each(|entry| {
            let mut line = serde_json::to_vec(&entry)?;
            line.push(b'\n');
            let is_full = self.bytes + line.len() as u64 > FILE_BYTES_MAX;
            if entry.input_length > 0 && line.len() <= LINE_BYTES_MAX && !is_full {
                self.file.write_all(&line)?;
                self.bytes += line.len() as u64;
                kept += 1;
            }
            Ok(())
        });
        let written = written.and_then(|()| self.file.flush());
        if written.is_err() {
            kept = 0;
        }
        self.counts.written.inc_by(kept);
        self.counts.dropped.inc_by(count - kept);
        written
    }
}

// === impl OpenRequests ===

impl OpenRequests {
    /// An empty table. Requests without a report for the lease are removed.
    #[must_use]
    pub fn new(recorder: Recorder, metrics: OutputMetrics, lease: Duration) -> Self {
        Self { recorder, metrics, lease, requests: Mutex::default() }
    }

    /// Starts to track a request that has a worker. Drops and counts it if `OPEN_MAX` requests are tracked. From time
    /// to time, drops requests whose lease is over.
    pub fn begin(
        &self,
        key: (PartitionKey, String),
        arrived: Instant,
        (prompt, choice): (&HashedPrompt, &Choice),
    ) {
        let request = self.recorder.begin(arrived, prompt, choice);
        let pace = Pace::new(arrived);
        let touched = Instant::now();
        let mut requests = self.requests.lock();
        if requests.until_search == 0 {
            requests.open.retain(|_, open| {
                let stays = open.touched.elapsed() < self.lease;
                if !stays {
                    self.dropped(open.request.as_ref());
                }
                stays
            });
            let left = requests.open.len();
            // So the search costs a constant time per request, and finds abandoned requests before the map has doubled.
            requests.until_search = left.max(SEARCH_MIN);
        }
        requests.until_search -= 1;
        if requests.open.len() >= OPEN_MAX {
            self.dropped(request.as_ref());
            return;
        }
        requests.open.insert(key, Open { request, pace, touched });
    }

    /// Counts a request that is removed without being recorded.
    fn dropped(&self, request: Option<&Recorded>) {
        if request.is_some() {
            self.recorder.counts.dropped.inc();
        }
    }

    /// Reports the total number of output tokens of a request so far. Ignores an unknown request.
    pub fn report(&self, key: &(PartitionKey, String), output_tokens: u64) {
        if let Some(open) = self.requests.lock().open.get_mut(key) {
            open.touched = Instant::now();
            open.pace.tokens(output_tokens, &self.metrics);
            if let Some(request) = &mut open.request {
                request.output_tokens(output_tokens);
            }
        }
    }

    /// Reports the first token of a request. Ignores an unknown request.
    pub fn first_token(&self, key: &(PartitionKey, String)) {
        if let Some(open) = self.requests.lock().open.get_mut(key) {
            open.touched = Instant::now();
            open.pace.first_token(&self.metrics);
            if let Some(request) = &mut open.request {
                request.first_token();
            }
        }
    }

    /// Ends a request, and queues its record. Ignores an unknown request.
    pub fn end(&self, key: &(PartitionKey, String), cached_tokens: Option<u64>) {
        let ended = self.requests.lock().open.remove(key);
        let Some(Open { request, pace, .. }) = ended else { return };
        if pace.reported() > 0 {
            self.metrics.ended(pace.reported());
        }
        if let Some(request) = request {
            self.recorder.end(request, cached_tokens);
        }
    }
}

#[cfg(test)]
#[path = "recorder_test.rs"]
mod recorder_test;
