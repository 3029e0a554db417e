//! Calls that read bytes block a thread, a bounded number of them at a time.

use super::status::failed;
use kvasir_proto::code::ErrorCode;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tonic::Status;

/// Most calls that read bytes at a time; further ones wait.
const CHECKS_MAX: usize = 8;

/// Turns of calls that read bytes.
#[derive(Debug, Clone)]
pub(super) struct Checks(Arc<Semaphore>);

impl Checks {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(CHECKS_MAX)))
    }

    /// Runs what blocks on a thread of its own, in its turn.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let turn = Arc::clone(&self.0).acquire_owned().await;
        let turn = turn.map_err(|closed| failed(ErrorCode::Internal, closed))?;
        let checked = spawn_blocking(move || {
            let _turn = turn;
            check()
        });
        checked.await.map_err(|_panic| failed(ErrorCode::Internal, "the agent failed: see its log"))
    }
}
