//! Measures the latency that the agent adds to a batch, compared with a direct subscriber of the engine.

use super::cores::Cores;
use super::index::Index;
use super::report::Record;
use super::stream::{EVENT_BLOCKS, Stream};
use super::way::{To, Way};
use crate::load::closed::Window;
use crate::load::open::pace;
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use kvasir_engine::zmtp::{Attach, Limits, SubEvent, SubSocket};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Maximum number of batches that are due and not sent yet.
const DUE_MAX: usize = 1 << 16;
/// Interval of batches until the subscriber receives them.
const FIRST_EVERY: Duration = Duration::from_millis(20);
/// Timeout for batches in flight.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum recorded latency, in nanoseconds.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Arrival times of batches at a direct subscriber of the engine, by number.
type Arrivals = Arc<Mutex<BTreeMap<u64, Instant>>>;

async fn listen(mut socket: SubSocket, arrivals: Arrivals) {
    loop {
        match socket.next().await {
            SubEvent::Message(message) => {
                let now = Instant::now();
                let number = message.get(1).and_then(|number| number.as_ref().try_into().ok());
                let number = u64::from_be_bytes(number.unwrap_or_default());
                arrivals.lock().unwrap_or_else(PoisonError::into_inner).insert(number, now);
            }
            SubEvent::Connected => {}
            // Missing batches are reported elsewhere.
            SubEvent::Disconnected(_) => return,
        }
    }
}

fn has(arrivals: &Arrivals, number: u64) -> bool {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&number)
}

/// Latencies at a constant rate of blocks stored and removed per second. A latency begins when its batch was due.
pub async fn latency(
    (rate, batch_events, held): (f64, u64, u64),
    length: Duration,
    cores: &Cores,
) -> Result<Record> {
    let index = Index::noting();
    let stream = Stream::new(batch_events, held);
    let mut way = Way::start(To::Bare, index.clone(), stream, cores).await?;
    way.say_while(|stream| stream.held() + batch_events * EVENT_BLOCKS <= held).await?;
    way.settle().await?;
    let attach = Attach::parse(&way.engine.endpoints().live, false)?;
    let socket = SubSocket::new(attach, bytes::Bytes::new(), Limits::default());
    let direct = Arrivals::default();
    let mut listening = JoinSet::new();
    listening.spawn(listen(socket, Arc::clone(&direct)));
    // The subscription is active once the first batch arrives.
    loop {
        way.say().await?;
        sleep(FIRST_EVERY).await;
        if way.engine.last_sequence().is_some_and(|last| has(&direct, last)) {
            break;
        }
    }
    way.settle().await?;
    drop(index.take_arrivals());

    // In a steady state, each new block replaces an old one.
    let batches = rate / (2 * batch_events * EVENT_BLOCKS) as f64;
    let window = Window::after_warm_up(length);
    let (sender, mut due) = mpsc::channel(DUE_MAX);
    let pacer = pace(batches, window, sender)?;
    let mut dues = BTreeMap::new();
    let before = way.mark()?;
    while let Some((_, at)) = due.recv().await {
        let number = way.engine.last_sequence().map_or(0, |last| last + 1);
        way.say().await?;
        dues.insert(number, at);
    }
    way.settle().await?;
    let cost = way.mark()?.since(before);
    let lost = pacer.join().map_err(|_panic| anyhow::anyhow!("the pace is lost"))?;
    ensure!(lost == 0, "{lost} batches were not sent in time");
    let last = way.engine.last_sequence().context("batches were sent")?;
    let begin = Instant::now();
    while !has(&direct, last) {
        ensure!(begin.elapsed() < PATIENCE, "batch {last} does not come without an agent either");
        sleep(Duration::from_millis(1)).await;
    }
    let stream = &way.stream;
    let came = index.take_arrivals().into_iter();
    let came: BTreeMap<u64, Instant> =
        came.map(|(block, at)| (stream.batch_of(block), at)).collect();
    let direct = std::mem::take(&mut *direct.lock().unwrap_or_else(PoisonError::into_inner));
    let record = compare(&dues, &direct, &came, window)?;
    way.stop().await?;
    Ok(record.with("cores", cost.cpu_seconds / cost.wall_seconds))
}

fn compare(
    dues: &BTreeMap<u64, Instant>,
    direct: &BTreeMap<u64, Instant>,
    came: &BTreeMap<u64, Instant>,
    window: Window,
) -> Result<Record> {
    let histogram = || Histogram::<u64>::new_with_max(LATENCY_MAX_NS, 3).context("a histogram");
    let mut without = histogram()?;
    let mut by_agent = histogram()?;
    let mut added = histogram()?;
    for (number, due) in dues.iter().filter(|(_, due)| window.has(**due)) {
        let alone = *direct.get(number).with_context(|| format!("batch {number}, direct"))?;
        let late = *came.get(number).with_context(|| format!("batch {number}, by agent"))?;
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        without.saturating_record(nanoseconds(alone.saturating_duration_since(*due)));
        by_agent.saturating_record(nanoseconds(late.saturating_duration_since(*due)));
        added.saturating_record(nanoseconds(late.saturating_duration_since(alone)));
    }
    let mut record = Record::new("latency", "bare".to_owned()).with("batches", added.len() as f64);
    for (name, all) in [("direct", &without), ("agent", &by_agent), ("added", &added)] {
        for (quantile, value) in [("p50", 50.0), ("p99", 99.0), ("p999", 99.9)] {
            let microseconds = all.value_at_percentile(value) as f64 / 1e3;
            record = record.with(&format!("{name}_{quantile}_us"), microseconds);
        }
    }
    Ok(record)
}
