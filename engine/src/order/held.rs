use super::BUFFER_BYTES_MAX;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Default limit of buffered live batches, in bytes, for all sources of a process together. Each source may
/// exceed it by one batch of any size.
pub const HELD_BYTES_MAX: usize = 512 << 20;

/// Shared memory budget: bytes of one kind that all sources of a process use, such as buffered live batches.
#[derive(Debug)]
pub struct HeldBytes {
    all: AtomicUsize,
    bytes_max: usize,
    /// Maximum bytes of one source.
    share_max: usize,
}

impl Default for HeldBytes {
    fn default() -> Self {
        Self::new(HELD_BYTES_MAX, BUFFER_BYTES_MAX)
    }
}

impl HeldBytes {
    /// Creates an unused budget with a limit for all sources together, and one per source.
    #[must_use]
    pub const fn new(bytes_max: usize, share_max: usize) -> Self {
        Self { all: AtomicUsize::new(0), bytes_max, share_max }
    }

    /// Bytes in use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// Adds a source, with a share of zero bytes.
    #[must_use]
    pub const fn share(of: Arc<Self>) -> HeldShare {
        HeldShare { of, own: 0 }
    }
}

/// The bytes that one source uses.
#[derive(Debug)]
pub struct HeldShare {
    of: Arc<HeldBytes>,
    own: usize,
}

impl HeldShare {
    /// Reports the source's current bytes. Returns its maximum until the next call.
    pub fn note(&mut self, own: usize) -> usize {
        if own != self.own {
            self.of.all.fetch_add(own, Ordering::Relaxed);
            self.of.all.fetch_sub(self.own, Ordering::Relaxed);
            self.own = own;
        }
        debug_assert!(self.of.bytes() >= own, "the sum includes the share");
        let room = self.of.bytes_max.saturating_sub(self.of.bytes());
        own.saturating_add(room).min(self.of.share_max)
    }
}

impl HeldShare {
    /// Bytes that the source must release before all sources together meet their limit.
    #[must_use]
    pub fn excess(&self) -> usize {
        self.of.bytes().saturating_sub(self.of.bytes_max).min(self.own)
    }
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        self.note(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_may_hold_what_others_leave() {
        let held = Arc::new(HeldBytes::new(100, 1_000));
        let mut a = HeldBytes::share(Arc::clone(&held));
        let mut b = HeldBytes::share(Arc::clone(&held));
        assert_eq!(a.note(60), 100);
        assert_eq!(b.note(0), 40);
        assert_eq!(b.note(70), 70, "its newest batch stays: it holds no more than that");
        assert_eq!(a.note(60), 60);
        assert_eq!((a.excess(), b.excess()), (30, 30));
        drop(b);
        assert_eq!((held.bytes(), a.note(0)), (60, 100));
        assert_eq!(HeldBytes::share(Arc::new(HeldBytes::default())).note(0), BUFFER_BYTES_MAX);
    }
}
