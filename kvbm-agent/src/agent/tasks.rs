use std::collections::HashMap;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, timeout_at};

/// Tasks by name; they end with their agent.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    set: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let id = self.set.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Joins all, and cuts off those that are not done by `deadline`. Whether all were.
    pub(super) async fn end(&mut self, deadline: Instant) -> bool {
        let mut clean = true;
        while let Ok(Some(ended)) = timeout_at(deadline, self.set.join_next_with_id()).await {
            let (id, panic) = match ended {
                Ok((id, ())) => (id, None),
                Err(error) => (error.id(), Some(error)),
            };
            let task = self.names.remove(&id);
            if let Some(error) = panic {
                tracing::error!(task, %error, "a task failed");
                clean = false;
            }
        }
        if !self.set.is_empty() {
            tracing::warn!(tasks = ?self.names.values(), "cut off");
            self.set.shutdown().await;
            clean = false;
        }
        clean
    }
}
