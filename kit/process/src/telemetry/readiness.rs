use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lists current problems, one per line.
type Problems = dyn Fn() -> Vec<String> + Send + Sync;

/// Whether the process is ready: no [`NotReady`] exists. Other problems are listed separately.
#[derive(Clone, Default)]
pub struct Readiness {
    holders: Arc<Mutex<Holders>>,
    problems: Option<Arc<Problems>>,
    /// A part of the process with a readiness of its own.
    part: Option<Arc<Self>>,
}

/// Reasons of all [`NotReady`]s, oldest first.
#[derive(Debug, Default)]
struct Holders {
    next: u64,
    reasons: BTreeMap<u64, String>,
}

/// Guard that keeps the process not ready until it is dropped, for example during startup or shutdown.
#[derive(Debug)]
pub struct NotReady {
    readiness: Readiness,
    number: u64,
}

impl Readiness {
    /// Adds a function that lists problems. Problems do not affect readiness.
    #[must_use]
    pub fn with_problems(problems: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Self {
        Self { problems: Some(Arc::new(problems)), ..Self::default() }
    }

    /// Adds a part of the process: the process is ready only if the part is.
    #[must_use]
    pub fn with_part(self, part: Self) -> Self {
        Self { part: Some(Arc::new(part)), ..self }
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the process from being ready. `/readyz` shows `reason`.
    #[must_use]
    pub fn hold(&self, reason: impl Into<String>) -> NotReady {
        let mut holders = self.holders();
        let number = holders.next;
        holders.next += 1;
        holders.reasons.insert(number, reason.into());
        NotReady { readiness: self.clone(), number }
    }

    /// Why the process is not ready; empty if it is ready.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let own: Vec<_> = self.holders().reasons.values().cloned().collect();
        let of_part = self.part.iter().flat_map(|part| part.reasons());
        own.into_iter().chain(of_part).collect()
    }

    /// Current problems, whether ready or not.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let own = self.problems.as_ref().map_or_else(Vec::new, |problems| problems());
        own.into_iter().chain(self.part.iter().flat_map(|part| part.problems())).collect()
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readiness").field("holders", &self.holders).finish_non_exhaustive()
    }
}

impl NotReady {
    /// Replaces the reason, for example to show progress.
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
        let first = readiness.hold("starting");
        let second = readiness.hold("restoring");
        assert_eq!(readiness.reasons(), ["starting", "restoring"]);
        drop(first);
        second.set_reason("restoring: 1 of 2");
        assert_eq!(readiness.reasons(), ["restoring: 1 of 2"]);
        drop(second);
        assert!(readiness.reasons().is_empty());
    }

    #[test]
    fn a_process_is_as_ready_as_its_part() {
        let part = Readiness::with_problems(|| vec!["of the part".to_owned()]);
        let whole = Readiness::with_problems(|| vec!["own".to_owned()]).with_part(part.clone());
        let restoring = part.hold("restoring");
        assert_eq!(whole.reasons(), ["restoring"]);
        assert_eq!(whole.problems(), ["own", "of the part"]);
        drop(restoring);
        assert!(whole.reasons().is_empty());
    }
}
