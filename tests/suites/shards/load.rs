//! A closed loop of questions; each answer is compared with the whole one.

use crate::fleet::Fleet;
use futures::future::join_all;
use kvasir_proto::types::WorkerKey;
use router_client::{Answer, ShardedClient};
use std::cell::RefCell;
use std::fmt;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Questions under way at a time.
const ASKERS: usize = 4;
/// Faults that are kept for the message of the test that fails.
const FAULTS_MAX: usize = 5;

/// What was found by all askers.
#[derive(Default)]
pub(crate) struct Load {
    asked: watch::Sender<u64>,
    faults: RefCell<Vec<String>>,
    times: RefCell<Vec<Duration>>,
}

/// How long questions took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) most: Duration,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50, p99, most } = self;
        write!(f, "p50 {p50:.1?}, p99 {p99:.1?}, most {most:.1?}")
    }
}

/// What an answer says of who holds what.
fn held(answer: &Answer) -> Vec<(&WorkerKey, u32)> {
    answer.overlaps.iter().map(|at| (&at.worker, at.blocks)).collect()
}

/// What is wrong with an answer.
pub(crate) fn fault(answer: &Answer, whole: &Answer) -> Option<String> {
    if !answer.missing_shards.is_empty() {
        return Some(format!("shards are missing: {:?}", answer.missing_shards));
    }
    if held(answer) != held(whole) || answer.best_overlap_blocks != whole.best_overlap_blocks {
        return Some(format!("{:?} instead of {:?}", held(answer), held(whole)));
    }
    None
}

impl Load {
    /// Asks in several loops until `during` is over, and returns what that says. Every answer is to
    /// be a whole one.
    pub(crate) async fn during<R>(
        &self,
        fleet: &Fleet,
        client: &ShardedClient,
        wholes: &[Answer],
        during: impl Future<Output = R>,
    ) -> R {
        let askers = join_all((0..ASKERS).map(|asker| self.ask(fleet, client, wholes, asker)));
        tokio::select! {
            over = during => over,
            _ = askers => unreachable!("they go on"),
        }
    }

    async fn ask(&self, fleet: &Fleet, client: &ShardedClient, wholes: &[Answer], asker: usize) {
        for number in (asker..).step_by(ASKERS) {
            let number = number % fleet.prompts();
            let begun = Instant::now();
            let outcome = client.find(&fleet.prompt(number)).await;
            self.times.borrow_mut().push(begun.elapsed());
            self.asked.send_modify(|asked| *asked += 1);
            let fault = match outcome {
                Ok(answer) => fault(&answer, &wholes[number]),
                Err(error) => Some(error.to_string()),
            };
            if let Some(fault) = fault {
                self.note(fault);
            }
            // The engines and the server's keeper run on the same thread.
            tokio::task::yield_now().await;
        }
    }

    fn note(&self, fault: String) {
        let mut faults = self.faults.borrow_mut();
        if faults.len() < FAULTS_MAX {
            faults.push(fault);
        }
    }

    /// Waits until so many more questions were answered.
    pub(crate) async fn progress(&self, questions: u64) {
        let mut asked = self.asked.subscribe();
        let until = *asked.borrow() + questions;
        asked.wait_for(|asked| *asked >= until).await.expect("we hold the sender");
    }

    #[track_caller]
    pub(crate) fn assert_faultless(&self, when: &str) {
        let faults = self.faults.borrow();
        assert!(faults.is_empty(), "{when}: after {} questions: {faults:#?}", *self.asked.borrow());
    }

    /// Times of all questions since the last call.
    pub(crate) fn times(&self) -> Times {
        let mut times = self.times.take();
        times.sort_unstable();
        let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
        Times { p50: at(50), p99: at(99), most: at(100) }
    }
}
