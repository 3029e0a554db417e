//! Running totals over all ranks.

/// What the index counts over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    pub(crate) bytes: usize,
    /// Parked names.
    pub(crate) parked: usize,
}

impl Totals {
    /// Counts a part as `now` that was counted as `before`.
    pub(crate) fn replace(&mut self, before: Self, now: Self) {
        debug_assert!(before.bytes <= self.bytes, "totals include each rank's bytes");
        debug_assert!(before.parked <= self.parked, "totals include each rank's parked names");
        self.bytes = self.bytes - before.bytes + now.bytes;
        self.parked = self.parked - before.parked + now.parked;
    }
}
