//! Measures the staleness of answers: the time from an engine's batch to the first answer of the index that includes
//! it. Measured for stored and removed blocks, while the engine stores and removes other blocks at a constant rate.

use super::cores::Cores;
use super::index::Index;
use super::report::Record;
use super::stream::{EVENT_BLOCKS, NAME, Stream};
use super::way::{To, Way};
use crate::load::closed::Window;
use crate::load::open::pace;
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use kvasir_proto::pb;
use kvasir_sim::client::Indexer;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Paths from an engine to the index, each measured at all [`RATES`].
pub const WAYS: [To; 4] = [To::ServerAlone, To::ServerByGrpc, To::Server, To::ServerByNats];
/// Rates in blocks stored and removed per second, and stored events per batch.
pub const RATES: [(f64, u64); 3] = [(100_000.0, 1), (250_000.0, 4), (500_000.0, 8)];

/// Maximum number of batches that are due and not sent yet.
const DUE_MAX: usize = 1 << 16;
/// Minimum time between two probes.
const PROBE_PAUSE: Duration = Duration::from_millis(2);
/// Timeout of one probe.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum recorded latency, in nanoseconds.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// The rate counts as sustained if 99 of 100 batches were sent at most this late.
const HELD_LATE_MAX: Duration = Duration::from_millis(5);

/// A stored or removed block, and the time when its batch was sent.
struct Probe {
    question: pb::FindMatchesRequest,
    is_stored: bool,
    sent: Instant,
}

/// Times from sending a batch to the first answer that includes it.
struct Seen {
    stored: Histogram<u64>,
    removed: Histogram<u64>,
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_max(LATENCY_MAX_NS, 3).context("a histogram")
}

fn record(times: &mut Histogram<u64>, time: Duration) {
    times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// Queries each probe repeatedly until the answer is right; reports each.
async fn ask(
    mut indexer: Indexer,
    mut probes: mpsc::Receiver<Probe>,
    seen: mpsc::Sender<()>,
) -> Result<Seen> {
    let mut times = Seen { stored: histogram()?, removed: histogram()? };
    while let Some(Probe { question, is_stored, sent }) = probes.recv().await {
        loop {
            let answer = indexer.find_matches(question.clone()).await?.into_inner();
            if answer.matches.iter().any(|at| at.matched_blocks > 0) == is_stored {
                break;
            }
            ensure!(sent.elapsed() < PATIENCE, "a probe is never answered");
        }
        record(if is_stored { &mut times.stored } else { &mut times.removed }, sent.elapsed());
        if seen.send(()).await.is_err() {
            break;
        }
    }
    Ok(times)
}

/// Sends probes one after the other: stores a block and, once that is visible, removes it.
struct Prober {
    probes: mpsc::Sender<Probe>,
    seen: mpsc::Receiver<()>,
    /// The task that queries.
    asking: JoinSet<Result<Seen>>,
    /// Number of sent probes. Odd ones are removals.
    sent: u64,
    is_waiting: bool,
    next: Instant,
}

impl Prober {
    fn start(indexer: Indexer) -> Self {
        let ((probes, to_ask), (answered, seen)) = (mpsc::channel(1), mpsc::channel(1));
        let mut asking = JoinSet::new();
        asking.spawn(ask(indexer, to_ask, answered));
        Self { probes, seen, asking, sent: 0, is_waiting: false, next: Instant::now() }
    }

    /// Sends the next probe, if it is due.
    async fn go_on(&mut self, way: &mut Way) -> Result<()> {
        if self.is_waiting && self.seen.try_recv().is_ok() {
            (self.is_waiting, self.next) = (false, Instant::now() + PROBE_PAUSE);
        }
        if self.is_waiting || Instant::now() < self.next {
            return Ok(());
        }
        let is_stored = self.sent.is_multiple_of(2);
        let (batch, local) = way.stream.probe(self.sent / 2, is_stored);
        let question = pb::FindMatchesRequest {
            model: NAME.to_owned(),
            local_hashes: vec![local],
            ..Default::default()
        };
        let sent = Instant::now();
        way.publish(batch).await?;
        self.probes.send(Probe { question, is_stored, sent }).await.context("it has ended")?;
        (self.sent, self.is_waiting) = (self.sent + 1, true);
        Ok(())
    }

    async fn end(mut self) -> Result<Seen> {
        drop(self.probes);
        // Wait until the task has ended.
        while self.seen.recv().await.is_some() {}
        self.asking.join_next().await.context("a task")??
    }
}

/// Measures one path at one rate.
pub async fn freshness(
    (to, rate, batch_events, held): (To, f64, u64, u64),
    length: Duration,
    cores: &Cores,
) -> Result<Record> {
    let stream = Stream::new(batch_events, held);
    let mut way = Way::start(to, Index::default(), stream, cores).await?;
    way.say_while(|stream| stream.held() + batch_events * EVENT_BLOCKS <= held).await?;
    way.settle().await?;
    let batches = rate / (2 * batch_events * EVENT_BLOCKS) as f64;
    let mut prober = Prober::start(way.indexer().await?);
    let (sender, mut due) = mpsc::channel(DUE_MAX);
    let pacer = pace(batches, Window::after_warm_up(length), sender)?;
    let mut late = histogram()?;
    while let Some((_, at)) = due.recv().await {
        way.say().await?;
        record(&mut late, at.elapsed());
        prober.go_on(&mut way).await?;
    }
    let lost = pacer.join().map_err(|_panic| anyhow::anyhow!("the pace is lost"))?;
    let seen = timeout(PATIENCE, prober.end()).await.context("a probe is never answered")??;
    way.settle().await?;
    way.stop().await?;
    let late_p99 = Duration::from_nanos(late.value_at_quantile(0.99));
    let is_held = lost == 0 && late_p99 <= HELD_LATE_MAX;
    let mut record = Record::new("freshness", format!("{}, {rate} blocks a second", to.name()))
        .with("is_held", f64::from(u8::from(is_held)))
        .with("late_p99_us", late_p99.as_secs_f64() * 1e6)
        .with("probes", (seen.stored.len() + seen.removed.len()) as f64);
    for (name, times) in [("stored", &seen.stored), ("removed", &seen.removed)] {
        for (quantile, value) in [("p50", 50.0), ("p99", 99.0), ("max", 100.0)] {
            let microseconds = times.value_at_percentile(value) as f64 / 1e3;
            record = record.with(&format!("{name}_{quantile}_us"), microseconds);
        }
    }
    Ok(record)
}
