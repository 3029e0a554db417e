//! Reproducible pseudo-random numbers.

pub(crate) use bench_figures::random::mixed as mix;

/// A seeded generator.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x5eed_0000_0000_0000))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A random number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }

    /// `count` different random numbers below `end`, unsorted.
    pub(crate) fn distinct(&mut self, count: usize, end: usize) -> Vec<u32> {
        let mut chosen: Vec<u32> = Vec::with_capacity(count);
        while chosen.len() < count {
            let next = self.below(end) as u32;
            if !chosen.contains(&next) {
                chosen.push(next);
            }
        }
        chosen
    }
}
