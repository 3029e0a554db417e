use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Whether the process is ready: while nobody holds a [`NotReady`].
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    holders: Arc<Mutex<Holders>>,
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
}

impl NotReady {
    /// Says how far it is by now.
    pub fn say(&self, reason: impl Into<String>) {
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
        second.say("restoring: 1 of 2");
        assert_eq!(readiness.reasons(), ["restoring: 1 of 2"]);
        drop(second);
        assert!(readiness.reasons().is_empty());
    }
}
