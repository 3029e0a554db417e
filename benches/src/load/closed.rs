//! Closed loops: a fixed number of queries in flight. Each answer is followed by the next query.

use super::child::cpu_time;
use super::raw::Caller;
use super::shapes::Question;
use anyhow::{Context, Result};
use bytes::Bytes;
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

/// Duration of the unmeasured load at the beginning.
const WARM_UP: Duration = Duration::from_millis(150);
/// Maximum recorded latency, in nanoseconds.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Time window of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Start of the window.
    pub begin: Instant,
    /// End of the window.
    pub end: Instant,
}

impl Window {
    /// A window of this length, after warming up.
    pub fn after_warm_up(length: Duration) -> Self {
        let begin = Instant::now() + WARM_UP;
        Self { begin, end: begin + length }
    }

    /// Whether a moment lies in the window.
    pub fn has(self, at: Instant) -> bool {
        (self.begin..self.end).contains(&at)
    }

    /// Waits for the end. Returns the process's processor time within the window.
    pub async fn cpu_time(self, process_id: u32) -> Result<Duration> {
        sleep_until(self.begin).await;
        let before = cpu_time(process_id)?;
        sleep_until(self.end).await;
        Ok(cpu_time(process_id)?.saturating_sub(before))
    }
}

/// Results of the queries of one window.
#[derive(Debug, Clone)]
pub struct Tally {
    /// Latencies of correct answers within the window, in nanoseconds.
    pub latencies: Histogram<u64>,
    /// Number of correct answers that arrived within the window, whenever their queries were due.
    pub served: u64,
    /// Number of wrong answers and errors, at any time.
    pub failures: u64,
}

impl Tally {
    /// Creates an empty result.
    pub fn new() -> Result<Self> {
        let latencies = Histogram::new_with_max(LATENCY_MAX_NS, 3).context("a histogram")?;
        Ok(Self { latencies, served: 0, failures: 0 })
    }

    /// Counts an answer that arrived now, in a closed loop. It belongs to the window by its arrival.
    pub fn answered(&mut self, window: Window, asked: Instant, right: bool) {
        let now = Instant::now();
        let within = window.has(now);
        self.served += u64::from(within && right);
        self.count(within, now - asked, right);
    }

    /// Counts an answer of an open loop. It belongs to the window by the time its query was due, so that late answers
    /// are included.
    pub fn due(&mut self, window: Window, (due, answered): (Instant, Instant), right: bool) {
        self.served += u64::from(window.has(answered) && right);
        self.count(window.has(due), answered - due, right);
    }

    fn count(&mut self, within: bool, taken: Duration, right: bool) {
        if !right {
            self.failures += 1;
        } else if within {
            let taken = u64::try_from(taken.as_nanos()).unwrap_or(LATENCY_MAX_NS);
            self.latencies.saturating_record(taken);
        }
    }

    /// Adds another result.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.latencies.add(&other.latencies).context("equal bounds")?;
        self.served += other.served;
        self.failures += other.failures;
        Ok(())
    }
}

/// Runs calls with one answer each.
pub async fn unary(
    caller: &Caller,
    questions: &Arc<[Question]>,
    in_flight: usize,
    window: Window,
) -> Result<Tally> {
    let mut tasks = JoinSet::new();
    for task in 0..in_flight {
        let mut caller = caller.clone();
        let questions = Arc::clone(questions);
        tasks.spawn(async move {
            let mut tally = Tally::new()?;
            for question in questions.iter().cycle().skip(task * questions.len() / in_flight) {
                let asked = Instant::now();
                if asked >= window.end {
                    break;
                }
                let answer = caller.ask(question.message.clone()).await;
                let right = answer.is_ok_and(|answer| question.expected.accepts(&answer, false));
                tally.answered(window, asked, right);
            }
            anyhow::Ok(tally)
        });
    }
    let mut sum = Tally::new()?;
    while let Some(tally) = tasks.join_next().await {
        sum.merge(&tally??)?;
    }
    Ok(sum)
}

/// Runs one stream with `in_flight` active queries.
pub async fn stream(
    caller: &Caller,
    questions: &Arc<[Question]>,
    in_flight: usize,
    window: Window,
) -> Result<Tally> {
    let (sender, receiver) = mpsc::channel::<Bytes>(in_flight);
    let mut tally = Tally::new()?;
    let mut asked: VecDeque<(&Question, Instant)> = VecDeque::with_capacity(in_flight);
    let mut next = questions.iter().cycle();
    let mut ask = |asked: &mut VecDeque<_>| {
        let Some(question) = next.next() else { return };
        // There is room: a query is removed before its answer arrives.
        if sender.try_send(question.message.clone()).is_ok() {
            asked.push_back((question, Instant::now()));
        }
    };
    (0..in_flight).for_each(|_| ask(&mut asked));
    let mut caller = caller.clone();
    let mut answers = caller.open(ReceiverStream::new(receiver)).await?;
    while let Some((question, at)) = asked.pop_front() {
        let answer = answers.message().await?.context("the stream ended early")?;
        tally.answered(window, at, question.expected.accepts(&answer, true));
        if Instant::now() < window.end {
            ask(&mut asked);
        }
    }
    Ok(tally)
}
