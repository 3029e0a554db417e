//! Tasks by name, each joined.

use futures::{StreamExt, stream::FuturesUnordered};
use std::collections::HashMap;
use std::future::pending;
use std::time::Duration;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, timeout_at};

/// Tasks, by name; they end when this is dropped.
#[derive(Debug, Default)]
pub struct Tasks {
    set: JoinSet<anyhow::Result<()>>,
    names: HashMap<Id, &'static str>,
}

/// What a task ends with.
pub trait Outcome {
    /// As a result.
    ///
    /// # Errors
    /// If the task failed.
    fn into_result(self) -> anyhow::Result<()>;
}

impl Outcome for () {
    fn into_result(self) -> anyhow::Result<()> {
        Ok(())
    }
}

impl Outcome for anyhow::Result<()> {
    fn into_result(self) -> anyhow::Result<()> {
        self
    }
}

/// A task that has ended, and how.
#[derive(Debug)]
pub struct Ended {
    /// Its name.
    pub name: &'static str,
    /// How.
    pub outcome: anyhow::Result<()>,
}

/// Why a program ends, other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// A task failed that runs until the program is stopped.
    #[error("task {name:?} failed: {error:#}")]
    Fault {
        /// The task.
        name: &'static str,
        /// Why.
        error: anyhow::Error,
    },
    /// Stopping took longer than it may.
    #[error("drain-timeout: stopping took longer than {0:?}")]
    DrainTimeout(Duration),
}

/// How a program ends: with the task that ended early, if one did; else with whether it stopped in time.
///
/// # Errors
/// If a task ended early, or the program did not stop cleanly within `drain_timeout`.
pub fn end(early: Option<Ended>, is_clean: bool, drain_timeout: Duration) -> Result<(), EndError> {
    if let Some(Ended { name, outcome }) = early {
        let error = outcome.err().unwrap_or_else(|| anyhow::anyhow!("it ended early"));
        return Err(EndError::Fault { name, error });
    }
    if is_clean { Ok(()) } else { Err(EndError::DrainTimeout(drain_timeout)) }
}

impl Tasks {
    /// Starts a task.
    pub fn spawn<T>(&mut self, name: &'static str, task: T)
    where
        T: Future<Output: Outcome> + Send + 'static,
    {
        let id = self.set.spawn(async { task.await.into_result() }).id();
        self.names.insert(id, name);
    }

    /// Whether a task of that name has not ended.
    #[must_use]
    pub fn runs(&self, name: &str) -> bool {
        self.names.values().any(|running| *running == name)
    }

    /// The next task that ends, except `passing` without an error. None once all tasks have ended.
    pub async fn next_fault(&mut self, passing: &str) -> Option<Ended> {
        loop {
            let ended = self.next_ended().await?;
            if ended.name != passing || ended.outcome.is_err() {
                return Some(ended);
            }
        }
    }

    /// The first such fault in several sets. Never ready if all tasks have ended without one.
    pub async fn first_fault(sets: &mut [&mut Self], passing: &str) -> Ended {
        let mut faults: FuturesUnordered<_> =
            sets.iter_mut().map(|tasks| tasks.next_fault(passing)).collect();
        loop {
            match faults.next().await {
                Some(Some(fault)) => return fault,
                // One set is empty: there are others.
                Some(None) => {}
                None => pending().await,
            }
        }
    }

    /// The next task to end; none once all have. A panic is an error.
    pub async fn next_ended(&mut self) -> Option<Ended> {
        let (id, outcome) = match self.set.join_next_with_id().await? {
            Ok((id, outcome)) => (id, outcome),
            Err(error) => (error.id(), Err(error.into())),
        };
        let name = self.names.remove(&id).unwrap_or("?");
        Some(Ended { name, outcome })
    }

    /// Joins all tasks and aborts those that run at `deadline`. True if none was aborted and none failed.
    pub async fn end(&mut self, deadline: Instant) -> bool {
        let mut is_clean = true;
        while let Ok(Some(Ended { name, outcome })) = timeout_at(deadline, self.next_ended()).await
        {
            if let Err(error) = outcome {
                tracing::error!(task = name, "a task failed: {error:#}");
                is_clean = false;
            }
        }
        if !self.set.is_empty() {
            tracing::warn!(tasks = ?self.names.values(), "cut off");
            self.set.shutdown().await;
            is_clean = false;
        }
        is_clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn the_first_fault_of_any_set_is_found() {
        let mut empty = Tasks::default();
        let mut passing = Tasks::default();
        let mut faulty = Tasks::default();
        passing.spawn("passing", async {});
        let (end, ended) = oneshot::channel::<()>();
        faulty.spawn("lasting", async { drop(ended.await) });
        let mut sets = [&mut empty, &mut passing, &mut faulty];
        let fault = async {
            let mut fault = Box::pin(Tasks::first_fault(&mut sets, "passing"));
            assert!(futures::poll!(&mut fault).is_pending());
            drop(end);
            fault.await
        };
        let Ended { name, outcome } = fault.await;
        assert_eq!((name, outcome.is_ok()), ("lasting", true));
        passing.spawn("passing", async { Err(anyhow::anyhow!("broken")) });
        let mut sets = [&mut empty, &mut passing, &mut faulty];
        let Ended { name, outcome } = Tasks::first_fault(&mut sets, "passing").await;
        assert_eq!((name, outcome.is_err()), ("passing", true));
    }

    #[tokio::test]
    async fn a_panic_is_a_fault() {
        let mut tasks = Tasks::default();
        tasks.spawn("reckless", async {
            assert_eq!(1, 2, "a task of this test may panic");
        });
        let Ended { name, outcome } = Tasks::first_fault(&mut [&mut tasks], "").await;
        assert_eq!((name, outcome.is_err()), ("reckless", true));
    }
}
