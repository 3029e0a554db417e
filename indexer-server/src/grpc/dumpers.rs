//! Permits of clients to dump workers.

use super::dump_turns::{Asked, DUMPS_MAX, DumpTurns, Dumper};
use super::status::stopping;
use kvasir_process::net::Peer;
use kvasir_proto::convert::WorkerAddress;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::select;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Longest wait for a permit.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Clients that dump or wait. Clones share the state.
#[derive(Debug, Clone, Default)]
pub(super) struct Dumpers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    workers: HashMap<WorkerAddress, DumpTurns>,
    /// By dump number: signals a waiting dump to begin, and a running dump to end.
    begin: HashMap<u64, oneshot::Sender<()>>,
    end: HashMap<u64, CancellationToken>,
}

/// A running or waiting dump of a worker. Dropping it releases the slot.
#[derive(Debug)]
pub(super) struct Place {
    dumpers: Dumpers,
    worker: WorkerAddress,
    id: u64,
    /// Cancelled when the dump must make way for others.
    pub(super) makes_way: CancellationToken,
}

impl Dumpers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a permit to dump a worker.
    ///
    /// # Errors
    /// If too many dumps wait, or the wait takes too long.
    pub(super) async fn wait_for_permit(
        &self,
        worker: WorkerAddress,
        peer: Option<&Arc<Peer>>,
    ) -> Result<Place, Status> {
        let peer = peer.map_or(0, |peer| Arc::as_ptr(peer).addr());
        let (place, mut begun) = self.request_permit(worker, peer)?;
        let until = Instant::now() + WAIT_TIMEOUT;
        loop {
            let look = self.make_way(&place.worker).min(until);
            select! {
                begun = &mut begun => return begun.map(|()| place).map_err(|_lost| stopping()),
                () = sleep_until(look) => {}
            }
            if Instant::now() >= until {
                return Err(busy(&place.worker));
            }
        }
    }

    /// Requests a permit without waiting. Returns the dump's place in the queue, and a receiver that completes when
    /// the dump may begin, possibly immediately. Fails if too many dumps wait.
    fn request_permit(
        &self,
        worker: WorkerAddress,
        peer: usize,
    ) -> Result<(Place, oneshot::Receiver<()>), Status> {
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        let turns = state.workers.entry(worker.clone()).or_default();
        let asked = turns.request_permit(Dumper { id, peer }, Instant::now());
        let (begin, begun) = oneshot::channel();
        match asked {
            Asked::Refused => return Err(busy(&worker)),
            Asked::Begun => drop(begin.send(())),
            Asked::Waits => drop(state.begin.insert(id, begin)),
        }
        let makes_way = CancellationToken::new();
        state.end.insert(id, makes_way.clone());
        Ok((Place { dumpers: self.clone(), worker, id, makes_way }, begun))
    }

    /// Cancels the slowest dump of a worker if another dump can begin then. Returns the time of the next check.
    fn make_way(&self, worker: &WorkerAddress) -> Instant {
        let (mut state, now) = (self.lock(), Instant::now());
        let State { workers, end, .. } = &mut *state;
        let Some(turns) = workers.get_mut(worker) else { return now + WAIT_TIMEOUT };
        if let Some(slowest) = turns.evict(now).and_then(|id| end.get(&id)) {
            slowest.cancel();
        }
        turns.next_look(now)
    }
}

impl Place {
    /// Counts records that the client has read.
    pub(super) fn count_records(&self, records: usize) {
        if let Some(turns) = self.dumpers.lock().workers.get_mut(&self.worker) {
            turns.count_records(self.id, records, Instant::now());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.dumpers.lock();
        let State { workers, begin, end, .. } = &mut *state;
        begin.remove(&self.id);
        end.remove(&self.id);
        let Some(turns) = workers.get_mut(&self.worker) else { return };
        turns.end_dump(self.id);
        while let Some(next) = turns.grant(Instant::now()) {
            // A client that has gone releases its slot.
            let _gone = begin.remove(&next.id).map(|begin| begin.send(()));
        }
        if turns.is_empty() {
            workers.remove(&self.worker);
        }
    }
}

fn busy(worker: &WorkerAddress) -> Status {
    let id = worker.worker.as_str();
    Status::resource_exhausted(format!(
        "worker {id} has {DUMPS_MAX} dumps under way, the limit: retry later"
    ))
}
