//! Bounded concurrency for slow work on blocking threads: a few at a time, at most one per connection.

use super::status::stopping;
use kvasir_process::net::Peer;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tonic::Status;
use tracing::Span;

/// Maximum concurrent large queries, on any number of cores.
const AT_ONCE_MAX: usize = 8;
/// One core in this many works on large queries.
const CORES_FRACTION: usize = 2;

/// Permits for large work. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Large(Arc<Semaphore>);

impl Large {
    pub(super) fn new() -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Self(Arc::new(Semaphore::new((cores / CORES_FRACTION).clamp(1, AT_ONCE_MAX))))
    }

    /// Runs work once it has a permit. Connections get permits in the order of their requests, and each connection
    /// waits for one permit at a time. Skips the work if the caller leaves while it waits. Running work sees when the
    /// caller leaves.
    pub(super) async fn run<T: Send + 'static>(
        self,
        peer: Option<Arc<Peer>>,
        work: impl FnOnce(&Waiting) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let acquire = |turns: Arc<Semaphore>| async {
            turns.acquire_owned().await.map_err(|_closed| stopping())
        };
        let own = match peer {
            Some(peer) => Some(acquire(Arc::clone(&peer.turn)).await?),
            None => None,
        };
        let turn = acquire(self.0).await?;
        let waiting = Waiting::default();
        let _caller = Caller(waiting.clone());
        let span = Span::current();
        let done = spawn_blocking(move || {
            let _turns = (own, turn);
            span.in_scope(|| work(&waiting))
        });
        done.await.map_err(|error| {
            tracing::error!(%error, "a query could not be answered");
            Status::internal("the server failed to answer the query; see its log")
        })
    }
}

/// Whether the caller still waits for the work: false once its call was cancelled or timed out.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting {
    is_over: Arc<AtomicBool>,
}

impl Waiting {
    pub(super) fn waits(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }
}

/// Represents the caller. Dropping it means that the caller has gone.
struct Caller(Waiting);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, poll};
    use std::pin::pin;
    use std::sync::mpsc;
    use std::thread::yield_now;

    #[tokio::test]
    async fn work_waits_for_its_turn_and_nobody_does_it_for_who_has_left() {
        let large = Large(Arc::new(Semaphore::new(1)));
        let (finish, finished) = mpsc::channel::<()>();
        let mut first = pin!(large.clone().run(None, move |_| finished.recv().is_ok()));
        assert!(poll!(&mut first).is_pending());
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let second = large.clone().run(None, move |_| done.store(true, Ordering::Release));
        let mut second = second.boxed();
        let mut third = pin!(large.run(None, |_| 3));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        drop(second);
        finish.send(()).expect("it works");
        assert!(first.await.expect("an end"));
        assert_eq!(third.await.expect("a turn"), 3);
        assert!(!is_done.load(Ordering::Acquire));
    }

    #[tokio::test]
    async fn work_under_way_sees_that_its_caller_has_left() {
        let large = Large(Arc::new(Semaphore::new(1)));
        let (begin, begun) = mpsc::channel();
        let work = move |caller: &Waiting| {
            begin.send(()).expect("a test that waits");
            while caller.waits() {
                yield_now();
            }
        };
        let mut left = large.clone().run(None, work).boxed();
        assert!(poll!(&mut left).is_pending());
        begun.recv().expect("it begins");
        drop(left);
        // There is one permit, which the work holds until it ends.
        assert_eq!(large.run(None, |_| 2).await.expect("a turn"), 2);
    }
}
