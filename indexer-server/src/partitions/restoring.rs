use kvasir_proto::types::WorkerId;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

/// Workers of a partition that are still being restored after a start.
#[derive(Debug, Default)]
pub struct Restoring {
    /// Read by every query, and false almost always.
    any: AtomicBool,
    workers: RwLock<BTreeSet<WorkerId>>,
}

impl Restoring {
    /// Adds a worker whose restore begins.
    pub fn begin(&self, worker: WorkerId) {
        self.change(|workers| {
            workers.insert(worker);
        });
    }

    /// Removes a worker that is restored, or was removed.
    pub fn end(&self, worker: &WorkerId) {
        if self.any.load(Ordering::Acquire) {
            self.change(|workers| {
                workers.remove(worker);
            });
        }
    }

    /// Returns the workers among `requested` (`None`: all workers) that are still being restored, by id.
    #[must_use]
    pub fn among(&self, requested: Option<&[WorkerId]>) -> Vec<WorkerId> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        let Some(requested) = requested else { return workers.iter().cloned().collect() };
        let requested: BTreeSet<&WorkerId> = requested.iter().collect();
        requested.into_iter().filter(|worker| workers.contains(*worker)).cloned().collect()
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<WorkerId>)) {
        let mut workers = self.workers.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut workers);
        self.any.store(!workers.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_on_the_way_is_named() {
        let worker = |name: &str| WorkerId::new(name).expect("a name");
        let restoring = Restoring::default();
        restoring.end(&worker("a"));
        assert_eq!(restoring.among(None), []);
        ["b", "a", "c"].into_iter().for_each(|name| restoring.begin(worker(name)));
        restoring.end(&worker("c"));
        assert_eq!(restoring.among(None), ["a", "b"].map(worker));
        assert_eq!(restoring.among(Some(&["b", "c"].map(worker))), [worker("b")]);
        ["a", "b"].into_iter().for_each(|name| restoring.end(&worker(name)));
        assert_eq!(restoring.among(None), []);
    }
}
