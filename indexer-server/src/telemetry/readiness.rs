use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Whether the process is ready: while nobody holds a [`NotReady`].
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    holders: Arc<AtomicUsize>,
}

/// Keeps the process from being ready until it is dropped. Whoever is not done starting, or has
/// begun to stop, holds one.
#[derive(Debug)]
pub struct NotReady {
    readiness: Readiness,
}

impl Readiness {
    /// Keeps the process from being ready.
    #[must_use]
    pub fn hold(&self) -> NotReady {
        self.holders.fetch_add(1, Ordering::AcqRel);
        NotReady { readiness: self.clone() }
    }

    /// Whether nobody holds it back.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.holders.load(Ordering::Acquire) == 0
    }
}

impl Drop for NotReady {
    fn drop(&mut self) {
        self.readiness.holders.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_once_the_last_holder_is_gone() {
        let readiness = Readiness::default();
        assert!(readiness.is_ready());
        let (first, second) = (readiness.hold(), readiness.hold());
        assert!(!readiness.is_ready());
        drop(first);
        assert!(!readiness.is_ready());
        drop(second);
        assert!(readiness.is_ready());
    }
}
