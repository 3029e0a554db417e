//! Open loops: queries at a constant rate, independent of the server. A latency begins when its query was due, not when
//! it was sent, so a stall counts for all delayed queries.

use super::closed::{Tally, Window};
use super::raw::Caller;
use super::shapes::Question;
use anyhow::{Context, Result};
use futures::StreamExt;
use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep, set_current_timer_slack};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

/// Maximum number of queries that are due and not sent yet; more count as failures.
const DUE_MAX: usize = 1 << 16;

/// A query's number, and the time when it was due.
pub type Due = (usize, Instant);

/// Reports queries that are due, until the end of the window, from a separate thread: timers of the runtime are exact
/// only to a millisecond. Returns the number of queries without room in the queue.
pub fn pace(rate: f64, window: Window, due: mpsc::Sender<Due>) -> Result<JoinHandle<u64>> {
    let interval = Duration::from_secs_f64(1.0 / rate);
    let run = move || {
        // If the system call fails, sleeps are exact to 50 us.
        let _exact = set_current_timer_slack(NonZeroU64::new(1_000));
        let mut lost = 0;
        let mut number = 0_u32;
        let begin = Instant::now();
        loop {
            let at = begin + interval * number;
            if at >= window.end {
                return lost;
            }
            let wait = at.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                sleep(wait);
            }
            lost += u64::from(due.try_send((number as usize, at)).is_err());
            number += 1;
        }
    };
    std::thread::Builder::new().name("pace".to_owned()).spawn(run).context("a thread")
}

fn sleep(wait: Duration) {
    let Ok(mut left) = Timespec::try_from(wait) else { return };
    while let NanosleepRelativeResult::Interrupted(rest) = nanosleep(&left) {
        left = rest;
    }
}

fn finish(mut tally: Tally, pacer: JoinHandle<u64>) -> Result<Tally> {
    let Ok(lost) = pacer.join() else { anyhow::bail!("the pace is lost") };
    tally.failures += lost;
    Ok(tally)
}

/// Runs calls with one answer each, `rate` per second.
pub async fn unary(
    caller: &Caller,
    questions: &Arc<[Question]>,
    rate: f64,
    window: Window,
) -> Result<Tally> {
    let (sender, mut due) = mpsc::channel(DUE_MAX);
    let pacer = pace(rate, window, sender)?;
    let mut tally = Tally::new()?;
    let mut calls = JoinSet::new();
    while let Some((number, at)) = due.recv().await {
        while let Some(counted) = calls.try_join_next() {
            let (times, right) = counted?;
            tally.due(window, times, right);
        }
        let mut caller = caller.clone();
        let questions = Arc::clone(questions);
        calls.spawn(async move {
            let Some(question) = questions.get(number % questions.len()) else {
                return ((at, at), false);
            };
            let answer = caller.ask(question.message.clone()).await;
            let right = answer.is_ok_and(|answer| question.expected.accepts(&answer, false));
            ((at, Instant::now()), right)
        });
    }
    while let Some(counted) = calls.join_next().await {
        let (times, right) = counted?;
        tally.due(window, times, right);
    }
    finish(tally, pacer)
}

/// Runs one stream with `rate` queries per second.
pub async fn stream(
    caller: &Caller,
    questions: &Arc<[Question]>,
    rate: f64,
    window: Window,
) -> Result<Tally> {
    let (sender, due) = mpsc::channel(DUE_MAX);
    let (sent, mut under_way) = mpsc::channel::<Due>(DUE_MAX);
    let pacer = pace(rate, window, sender)?;
    let asked = Arc::clone(questions);
    let requests = ReceiverStream::new(due).filter_map(move |(number, at): Due| {
        let question = asked.get(number % asked.len()).map(|question| question.message.clone());
        // If its due time cannot be queued, the query is not sent.
        futures::future::ready(question.filter(|_| sent.try_send((number, at)).is_ok()))
    });
    let mut tally = Tally::new()?;
    let mut answers = caller.clone().open(requests).await?;
    while let Some(answer) = answers.message().await? {
        let (number, at) = under_way.recv().await.context("an answer to nothing")?;
        let question = questions.get(number % questions.len()).context("a question")?;
        let right = question.expected.accepts(&answer, true);
        tally.due(window, (at, Instant::now()), right);
    }
    finish(tally, pacer)
}
