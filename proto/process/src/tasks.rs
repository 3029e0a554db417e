//! Tasks by name, each joined.

use std::collections::HashMap;
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
    /// How that is told.
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

    /// The next task to end other than `passing` by doing its work; none once all have.
    pub async fn next_fault(&mut self, passing: &str) -> Option<Ended> {
        loop {
            let ended = self.next_ended().await?;
            if ended.name != passing || ended.outcome.is_err() {
                return Some(ended);
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

    /// Joins all, and cuts off those that are not done by `deadline`. Whether all were, and none failed.
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
