//! Estimates the block capacity of a rank that does not report it, from the numbers of blocks it was seen to have.

/// Block counts observed at a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeldBlocks {
    most: u64,
    /// A later observation was lower, so the rank evicts: it was full.
    has_evicted: bool,
}

impl HeldBlocks {
    /// Records the rank's current number of blocks. Fewer than half of the maximum means that the engine restarted or
    /// was cleared, which does not show its capacity.
    pub fn observe(&mut self, blocks: u64) {
        if blocks < self.most / 2 {
            *self = Self::default();
        }
        self.has_evicted |= blocks < self.most;
        self.most = self.most.max(blocks);
    }

    /// Estimated capacity: the maximum observed, once the rank has evicted blocks. Before, the capacity is unknown.
    #[must_use]
    pub fn capacity(self) -> Option<u64> {
        self.has_evicted.then_some(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_was_held_counts_once_blocks_are_evicted() {
        let mut held = HeldBlocks::default();
        let mut after = |blocks| {
            held.observe(blocks);
            held.capacity()
        };
        assert_eq!([0, 40, 400, 400].map(&mut after), [None; 4], "it has room");
        assert_eq!([390, 395, 401].map(&mut after), [Some(400), Some(400), Some(401)]);
        assert_eq!([0, 300, 350].map(&mut after), [None; 3], "it began anew");
        assert_eq!(after(340), Some(350));
    }
}
