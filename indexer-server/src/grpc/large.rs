//! Work that takes long, beside the runtime: a few at a time, and one of each connection.

use super::status::stopping;
use kvasir_process::net::Peer;
use std::{num::NonZero, sync::Arc, thread};
use tokio::{sync::Semaphore, task::spawn_blocking};
use tonic::Status;

/// Most large queries at a time, however many cores there are.
const AT_ONCE_MAX: usize = 8;
/// One core in so many works on large queries.
const CORES_FRACTION: usize = 2;

/// Turns of the connections for large work. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Large(Arc<Semaphore>);

impl Large {
    pub(super) fn new() -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Self(Arc::new(Semaphore::new((cores / CORES_FRACTION).clamp(1, AT_ONCE_MAX))))
    }

    /// Does some work once it is its turn. Turns come in the order in which connections asked for them, and each
    /// connection waits for one at a time, however much it has asked for. Nothing is done for a caller that goes away
    /// while it waits.
    pub(super) async fn run<T: Send + 'static>(
        self,
        peer: Option<Arc<Peer>>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let acquire = |turns: Arc<Semaphore>| async {
            turns.acquire_owned().await.map_err(|_closed| stopping())
        };
        let own = match peer {
            Some(peer) => Some(acquire(Arc::clone(&peer.turn)).await?),
            None => None,
        };
        let turn = acquire(self.0).await?;
        let done = spawn_blocking(move || {
            let _turns = (own, turn);
            work()
        });
        done.await.map_err(|error| {
            tracing::error!(%error, "a query could not be answered");
            Status::internal("the server failed to answer the query; see its log")
        })
    }
}
