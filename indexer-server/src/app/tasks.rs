use std::collections::HashMap;
use tokio::task::{Id, JoinSet};

/// The tasks that live as long as the process, by name. Nothing else of `app` spawns.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    set: JoinSet<anyhow::Result<()>>,
    names: HashMap<Id, &'static str>,
}

/// A task that has ended, and how.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) name: &'static str,
    pub(super) outcome: anyhow::Result<()>,
}

impl Tasks {
    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let id = self.set.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Whether a task of that name has not ended.
    pub(super) fn runs(&self, name: &str) -> bool {
        self.names.values().any(|running| *running == name)
    }

    /// The next task to end other than `passing` by doing its work; none once all have.
    pub(super) async fn next_fault(&mut self, passing: &str) -> Option<Ended> {
        loop {
            let ended = self.next_ended().await?;
            if ended.name != passing || ended.outcome.is_err() {
                return Some(ended);
            }
        }
    }

    /// The next task to end; none once all have. A panic is an error.
    pub(super) async fn next_ended(&mut self) -> Option<Ended> {
        let (id, outcome) = match self.set.join_next_with_id().await? {
            Ok((id, outcome)) => (id, outcome),
            Err(error) => (error.id(), Err(error.into())),
        };
        let name = self.names.remove(&id).unwrap_or("?");
        Some(Ended { name, outcome })
    }
}
