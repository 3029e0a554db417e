//! Limits the number of concurrent calls that read bytes, because each blocks a thread.

use super::status::failed;
use kvasir_proto::code::ErrorCode;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Maximum number of concurrent calls that read bytes. Further calls wait.
const CHECKS_MAX: usize = 8;
/// Maximum number of waiting calls. Each has its message in memory: for Write, up to 4 MiB. Further calls are refused.
const CHECKS_WAITING_MAX: usize = 64;

/// Permits for calls that read bytes.
#[derive(Debug, Clone)]
pub(super) struct Checks {
    turns: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

impl Checks {
    pub(super) fn new() -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self { turns: semaphore(CHECKS_MAX), places: semaphore(CHECKS_MAX + CHECKS_WAITING_MAX) }
    }

    /// Runs the blocking closure `check` on another thread, once a permit is free. Fails if too many calls wait
    /// already. Cancels the closure's token if the caller no longer waits.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        check: impl FnOnce(&CancellationToken) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_full| {
            let text = "too many calls that read or write bytes wait already: ask later";
            failed(ErrorCode::ResourceExhausted, text)
        })?;
        let abandoned = CancellationToken::new();
        let _guard = abandoned.clone().drop_guard();
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.map_err(|closed| failed(ErrorCode::Internal, closed))?;
        let checked = spawn_blocking(move || {
            let _turn = (turn, place);
            check(&abandoned)
        });
        checked.await.map_err(|_panic| failed(ErrorCode::Internal, "the agent failed: see its log"))
    }
}
