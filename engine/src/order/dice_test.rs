/// Reproducible random numbers for tests.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }

    /// A size from 1 to `limit` inclusive.
    pub(crate) fn size(&mut self, limit: u64) -> usize {
        usize::try_from(1 + self.below(limit)).unwrap()
    }

    /// An index into a list of `count` items.
    pub(crate) fn place(&mut self, count: usize) -> usize {
        self.size(count as u64) - 1
    }

    pub(crate) fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }
}
