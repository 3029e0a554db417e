//! Named tasks that are always joined (structured concurrency).

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::HashMap;
use std::future::pending;
use std::time::Duration;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, timeout_at};

/// A set of named tasks. Dropping the set aborts them.
#[derive(Debug, Default)]
pub struct Tasks {
    set: JoinSet<anyhow::Result<()>>,
    names: HashMap<Id, &'static str>,
}

/// Result type of a task.
pub trait Outcome {
    /// Converts the result.
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

/// A finished task and its result.
#[derive(Debug)]
pub struct Ended {
    /// Name of the task.
    pub name: &'static str,
    /// Result of the task.
    pub outcome: anyhow::Result<()>,
}

/// Why a program ends without a signal.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// A task failed that should run until the program stops.
    #[error("task {name:?} failed: {error:#}")]
    Fault {
        /// The task.
        name: &'static str,
        /// Error of the task.
        error: anyhow::Error,
    },
    /// Stopping exceeded the drain timeout.
    #[error("drain-timeout: stopping took longer than {0:?}")]
    DrainTimeout(Duration),
}

/// The result of a program: the failure of the task that ended early, if one did; else whether the program stopped in
/// time.
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

    /// The next task that ends with a fault. Tasks named `passing` count only if they fail. None when all tasks have
    /// ended.
    pub async fn next_fault(&mut self, passing: &str) -> Option<Ended> {
        loop {
            let ended = self.next_ended().await?;
            if ended.name != passing || ended.outcome.is_err() {
                return Some(ended);
            }
        }
    }

    /// Waits for the first fault in several sets. Never returns if all tasks have ended well.
    pub async fn first_fault(sets: &mut [&mut Self], passing: &str) -> Ended {
        let mut faults: FuturesUnordered<_> =
            sets.iter_mut().map(|tasks| tasks.next_fault(passing)).collect();
        loop {
            match faults.next().await {
                Some(Some(fault)) => return fault,
                // This set is empty; others remain.
                Some(None) => {}
                None => pending().await,
            }
        }
    }

    /// The next task to end; none when all have ended. A panic is an error.
    pub async fn next_ended(&mut self) -> Option<Ended> {
        let (id, outcome) = match self.set.join_next_with_id().await? {
            Ok((id, outcome)) => (id, outcome),
            Err(error) => (error.id(), Err(error.into())),
        };
        let name = self.names.remove(&id).unwrap_or("?");
        Some(Ended { name, outcome })
    }

    /// Aborts all tasks, which still have to be joined.
    pub fn abort_all(&mut self) {
        self.set.abort_all();
    }

    /// Joins all tasks and aborts those that still run at `deadline`. Returns true if all tasks ended by themselves,
    /// without a failure.
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
            tracing::warn!(tasks = ?self.names.values(), "tasks did not stop in time: cancelled");
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
