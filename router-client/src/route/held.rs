//! How many blocks fit into a rank of which nobody says so, by how many it holds from time to time.

/// What a rank was seen to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeldBlocks {
    most: u64,
    /// It held fewer blocks after that: there was no room for more.
    has_evicted: bool,
}

impl HeldBlocks {
    /// It holds so many blocks now. Fewer than half of the most are those of an engine that restarted or was cleared, and
    /// tell nothing of its room.
    pub fn observe(&mut self, blocks: u64) {
        if blocks < self.most / 2 {
            *self = Self::default();
        }
        self.has_evicted |= blocks < self.most;
        self.most = self.most.max(blocks);
    }

    /// Blocks that fit into it: the most that it ever held, once it evicts. Before, it has room that nobody knows.
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
