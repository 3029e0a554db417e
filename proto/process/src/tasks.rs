//! Tasks by name, each joined.

use std::collections::HashMap;
use tokio::task::{Id, JoinSet};

/// The tasks that live as long as the process, by name.
#[derive(Debug, Default)]
pub struct Tasks {
    set: JoinSet<anyhow::Result<()>>,
    names: HashMap<Id, &'static str>,
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
    pub fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let id = self.set.spawn(task).id();
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
}
