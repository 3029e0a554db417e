//! Running totals over all ranks.

/// Totals of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    pub(crate) bytes: usize,
    /// Number of parked names.
    pub(crate) parked: usize,
    /// Number of names of further groups.
    pub(crate) grouped: usize,
    /// Number of ranks with names of further groups.
    pub(crate) grouped_ranks: usize,
}

impl Totals {
    /// Replaces a rank's contribution `before` by `now`.
    pub(crate) fn replace(&mut self, before: Self, now: Self) {
        debug_assert!(before.bytes <= self.bytes, "totals include each rank's bytes");
        debug_assert!(before.parked <= self.parked, "totals include each rank's parked names");
        self.bytes = self.bytes - before.bytes + now.bytes;
        self.parked = self.parked - before.parked + now.parked;
        self.grouped = self.grouped - before.grouped + now.grouped;
        self.grouped_ranks = self.grouped_ranks - before.grouped_ranks + now.grouped_ranks;
    }
}
