//! Tasks that stop together.

use crate::tasks::{Ended, Outcome, Tasks};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Named tasks, and the token that tells them to stop. Dropping the group aborts the tasks and cancels the token.
#[derive(Debug, Default)]
pub struct TaskGroup {
    tasks: Tasks,
    stop: CancellationToken,
}

impl TaskGroup {
    /// Creates an empty group with a token that others have, too.
    #[must_use]
    pub fn stopped_by(stop: CancellationToken) -> Self {
        Self { tasks: Tasks::default(), stop }
    }

    /// A copy of the token, for a task that stops by itself once the token is cancelled.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a task.
    pub fn spawn<T>(&mut self, name: &'static str, task: T)
    where
        T: Future<Output: Outcome> + Send + 'static,
    {
        self.tasks.spawn(name, task);
    }

    /// Starts a task that is dropped when the group stops.
    pub fn spawn_until_stop(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let task = self.token().run_until_cancelled_owned(task);
        self.spawn(name, async {
            let _stopped = task.await;
        });
    }

    /// The next task to end; none when all have ended. A panic is an error.
    pub async fn next_ended(&mut self) -> Option<Ended> {
        self.tasks.next_ended().await
    }

    /// Waits for the first fault in several groups. Tasks named `passing` count only if they fail. Never returns if all
    /// tasks have ended well.
    pub async fn first_fault(groups: &mut [&mut Self], passing: &str) -> Ended {
        let mut sets: Vec<_> = groups.iter_mut().map(|group| &mut group.tasks).collect();
        Tasks::first_fault(&mut sets, passing).await
    }

    /// Stops the tasks and waits until all have ended. Stores the first one that failed in `failed`.
    ///
    /// # Cancellation
    /// The tasks that still run stay in the group.
    pub async fn stop(&mut self, failed: &mut Option<Ended>) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.next_ended().await {
            if let Err(error) = &ended.outcome {
                tracing::error!(task = ended.name, "a task failed: {error:#}");
                failed.get_or_insert(ended);
            }
        }
    }

    /// Stops the tasks, and aborts those that still run at `deadline`. Returns true if all tasks ended by themselves,
    /// without a failure.
    pub async fn stop_by(&mut self, deadline: Instant) -> bool {
        self.stop.cancel();
        self.tasks.end(deadline).await
    }
}

impl Drop for TaskGroup {
    fn drop(&mut self) {
        // First, so that no task begins an orderly end.
        self.tasks.abort_all();
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::time::Duration;
    use tokio::sync::oneshot;
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_stop_ends_all_tasks_and_names_the_first_failure() {
        let mut group = TaskGroup::default();
        let token = group.token();
        group.spawn("obeying", async move { token.cancelled().await });
        group.spawn_until_stop("dropped", pending());
        let token = group.token();
        group.spawn("failing", async move {
            token.cancelled().await;
            Err(anyhow::anyhow!("broken"))
        });
        let mut failed = None;
        group.stop(&mut failed).await;
        let failed = failed.expect("one fails");
        assert_eq!((failed.name, failed.outcome.is_err()), ("failing", true));
        assert!(group.next_ended().await.is_none(), "all have ended");
    }

    #[tokio::test]
    async fn a_dropped_group_aborts_its_tasks_and_cancels_its_token() {
        let mut group = TaskGroup::default();
        let token = group.token();
        let (began, ended) = oneshot::channel::<()>();
        let obeying = group.token();
        group.spawn("obeying", async move {
            obeying.cancelled().await;
            began.send(()).expect("the test waits");
        });
        drop(group);
        assert!(token.is_cancelled());
        assert!(ended.await.is_err(), "the task began an orderly end");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_kept_although_another_task_does_not_stop_in_time() {
        let mut group = TaskGroup::default();
        group.spawn("stubborn", pending::<()>());
        group.spawn("failing", async { Err(anyhow::anyhow!("broken")) });
        let mut failed = None;
        let stopping = timeout(Duration::from_secs(1), group.stop(&mut failed));
        assert!(stopping.await.is_err());
        assert_eq!(failed.map(|ended| ended.name), Some("failing"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_stop_is_aborted_at_the_deadline() {
        let mut group = TaskGroup::stopped_by(CancellationToken::new());
        group.spawn("stubborn", pending::<()>());
        assert!(!group.stop_by(Instant::now()).await);
        assert!(group.next_ended().await.is_none());
    }
}
