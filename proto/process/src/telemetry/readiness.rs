use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Tells what is not well, a line each.
type Complaints = dyn Fn() -> Vec<String> + Send + Sync;

/// Whether the process is ready: while nobody holds a [`NotReady`]. What else is not well is told beside.
#[derive(Clone, Default)]
pub struct Readiness {
    holders: Arc<Mutex<Holders>>,
    complaints: Option<Arc<Complaints>>,
}

/// Why each holder holds, in the order in which they came.
#[derive(Debug, Default)]
struct Holders {
    next: u64,
    reasons: BTreeMap<u64, String>,
}

/// Keeps the process from being ready until it is dropped. Whoever is not done starting, or has
/// begun to stop, holds one.
#[derive(Debug)]
pub struct NotReady {
    readiness: Readiness,
    number: u64,
}

impl Readiness {
    /// One that tells, when asked, what is not well and keeps nobody from being ready.
    #[must_use]
    pub fn with_problems(complaints: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Self {
        Self { complaints: Some(Arc::new(complaints)), ..Self::default() }
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the process from being ready; `reason` is for people.
    #[must_use]
    pub fn hold(&self, reason: impl Into<String>) -> NotReady {
        let mut holders = self.holders();
        let number = holders.next;
        holders.next += 1;
        holders.reasons.insert(number, reason.into());
        NotReady { readiness: self.clone(), number }
    }

    /// Why the process is not ready; nothing once it is.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        self.holders().reasons.values().cloned().collect()
    }

    /// What is not well, ready or not.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.as_ref().map_or_else(Vec::new, |complaints| complaints())
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readiness").field("holders", &self.holders).finish_non_exhaustive()
    }
}

impl NotReady {
    /// Says how far it is by now.
    pub fn set_reason(&self, reason: impl Into<String>) {
        self.readiness.holders().reasons.insert(self.number, reason.into());
    }
}

impl Drop for NotReady {
    fn drop(&mut self) {
        self.readiness.holders().reasons.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_once_the_last_holder_is_gone() {
        let readiness = Readiness::default();
        assert!(readiness.reasons().is_empty());
        let (first, second) = (readiness.hold("starting"), readiness.hold("restoring"));
        assert_eq!(readiness.reasons(), ["starting", "restoring"]);
        drop(first);
        second.set_reason("restoring: 1 of 2");
        assert_eq!(readiness.reasons(), ["restoring: 1 of 2"]);
        drop(second);
        assert!(readiness.reasons().is_empty());
    }
}
