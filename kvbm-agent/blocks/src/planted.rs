//! Fault injection: rules that tests break on purpose, to check that the simulation detects it. Disabled outside of
//! tests.

/// A rule to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    /// The end of a registration is not published.
    ForgetRemove,
    /// A registration is published twice.
    RegisterTwice,
    /// A queue overflow is not reported.
    SilentOverflow,
    /// A transfer is committed in spite of wrong checksums.
    SkipChecksum,
    /// A transfer is committed in spite of missing bytes.
    SkipLength,
    /// A transfer is committed when it begins.
    CommitEarly,
    /// A transfer is committed again for a repeated outcome.
    CommitTwice,
    /// A cancelled transfer is committed when it ends.
    CommitLate,
    /// A transfer releases its source when it begins.
    DropSourceEarly,
    /// A cancelled transfer releases its destination immediately.
    ReuseQuarantined,
    /// A finished transfer never releases its destination.
    LeakSlot,
    /// A corrupt source stays registered.
    KeepCorrupt,
    /// A block's checksum is not passed to its copy.
    LoseChecksum,
    /// An evicted block is still found.
    EvictUnderneath,
    /// A pool with too few blocks returns a partial allocation.
    AllocateSome,
}

#[cfg(not(test))]
pub(crate) const fn is_planted(_: Planted) -> bool {
    false
}

#[cfg(test)]
pub(crate) use for_tests::{is_planted, with_planted};

#[cfg(test)]
mod for_tests {
    use super::Planted;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    pub(crate) fn is_planted(fault: Planted) -> bool {
        PLANTED.get() == Some(fault)
    }

    /// Runs `work` with one rule broken, on this thread.
    pub(crate) fn with_planted<R>(fault: Option<Planted>, work: impl FnOnce() -> R) -> R {
        let before = PLANTED.replace(fault);
        let result = work();
        PLANTED.set(before);
        result
    }
}
