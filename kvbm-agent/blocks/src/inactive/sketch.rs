#![expect(clippy::indexing_slicing, reason = "places are masked by the number of words")]

use kvasir_proto::types::SequenceHash;

/// Counters per word, of 4 bits each.
const COUNTERS: u32 = 16;
/// Odd multipliers that derive four independent positions from one hash.
const SPREAD: [u64; 4] =
    [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0xd6e8_feb8_6659_fd93];
/// Mask of the lowest three bits of each counter, for halving all counters of a word.
const HALVES: u64 = 0x7777_7777_7777_7777;
/// Uses per block after which all counters have been halved once.
const AGEING_USES: u64 = 10;

/// Count-min sketch that estimates how often each hash was used recently: four counters of 4 bits per hash.
///
/// Counts are at most 15. They age: after ten uses per block of the pool, every counter has been halved, one word at a
/// time.
#[derive(Debug)]
pub struct FrequencySketch {
    words: Vec<u64>,
    /// Number of uses between two halvings of a word, times the number of words.
    period: u64,
    due: u64,
    next: usize,
}

impl FrequencySketch {
    /// Creates a sketch for `blocks` different hashes.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        let words = (blocks as usize).next_power_of_two().max(16);
        let period = u64::from(blocks.max(1)) * AGEING_USES;
        Self { words: vec![0; words], period, due: 0, next: 0 }
    }

    /// Counts a use of a block, unless its counters are full. Also halves some counters of the sketch, so that old uses
    /// lose weight.
    pub fn record(&mut self, hash: SequenceHash) {
        let estimate = self.estimate(hash);
        if u32::from(estimate) < COUNTERS - 1 {
            for (word, shift) in self.places(hash) {
                let count = self.words[word] >> shift & 0xf;
                // Conservative update: only the smallest counters grow, which keeps the estimates of other hashes low.
                if count == u64::from(estimate) {
                    self.words[word] += 1 << shift;
                }
            }
        }
        self.due += self.words.len() as u64;
        while self.due >= self.period {
            self.due -= self.period;
            self.words[self.next] = self.words[self.next] >> 1 & HALVES;
            self.next = (self.next + 1) % self.words.len();
        }
    }

    /// Estimated recent uses, at most 15. Ageing lowers the estimate; a collision in all four positions raises it.
    #[must_use]
    pub fn estimate(&self, hash: SequenceHash) -> u8 {
        let counts = self.places(hash).map(|(word, shift)| self.words[word] >> shift & 0xf);
        let least = counts.into_iter().min().unwrap_or(0);
        u8::try_from(least).unwrap_or(u8::MAX)
    }

    /// Returns the word and the shift of each of a hash's four counters.
    fn places(&self, hash: SequenceHash) -> [(usize, u32); SPREAD.len()] {
        let mask = self.words.len() - 1;
        SPREAD.map(|spread| {
            let mixed = (hash.0 ^ hash.0 >> 32).wrapping_mul(spread);
            let word = usize::try_from(mixed >> 36).unwrap_or(0) & mask;
            let counter = (mixed >> 32 & u64::from(COUNTERS - 1)) as u32;
            (word, counter * 4)
        })
    }
}
