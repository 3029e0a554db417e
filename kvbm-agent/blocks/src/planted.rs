//! Rules that tests break on purpose, to see that the simulation notices. In the product none is ever broken.

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    /// A registration that ends is not published.
    ForgetRemove,
    /// A registration is published twice.
    RegisterTwice,
    /// Events that did not fit are forgotten without a word.
    SilentOverflow,
    /// A transfer is committed whatever its checksums are.
    SkipChecksum,
    /// A transfer is committed however many bytes it moved.
    SkipLength,
    /// A transfer is committed when it begins.
    CommitEarly,
    /// A transfer is committed again when its outcome comes again.
    CommitTwice,
    /// A transfer that was cancelled is committed when it ends.
    CommitLate,
    /// A transfer lets go of its source when it begins.
    DropSourceEarly,
    /// A cancelled transfer lets go of its destination at once.
    ReuseQuarantined,
    /// A finished transfer keeps its destination.
    LeakSlot,
    /// A source that proved corrupt stays.
    KeepCorrupt,
    /// The checksum of a block does not go with it.
    LoseChecksum,
    /// An evicted block is still found.
    EvictUnderneath,
    /// A pool that has too few blocks gives what it has.
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
