use kvasir_proto::types::SequenceHash;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Largest count of a hash.
const COUNT_MAX: u64 = 1 << 20;

/// Lets a block through once it was offered often enough of late: what is written to disk once and never read wears
/// the disk and helps nobody.
///
/// The first offer of a hash counts 1, and each further one doubles the count, which goes down by one a tick. A hash
/// whose count is 0 is forgotten.
#[derive(Debug)]
pub struct FrequencyFilter {
    /// Number of the tick in which each hash is forgotten: its count is what is left until then.
    ends: FxHashMap<SequenceHash, u64>,
    by_end: BTreeSet<(u64, SequenceHash)>,
    tick: u64,
    count_min: u64,
    hashes_max: usize,
}

impl FrequencyFilter {
    /// Lets hashes with a count of `count_min` through. It knows `hashes_max` at most: the one that would be forgotten
    /// first makes room.
    #[must_use]
    pub fn new(count_min: u64, hashes_max: usize) -> Self {
        Self {
            ends: FxHashMap::default(),
            by_end: BTreeSet::new(),
            tick: 0,
            count_min: count_min.min(COUNT_MAX),
            hashes_max: hashes_max.max(1),
        }
    }

    /// Counts an offer. Whether the block may go through.
    pub fn admit(&mut self, hash: SequenceHash) -> bool {
        let count = match self.ends.remove(&hash) {
            None => 1,
            Some(end) => {
                self.by_end.remove(&(end, hash));
                ((end - self.tick) * 2).min(COUNT_MAX)
            }
        };
        if self.ends.len() >= self.hashes_max
            && let Some((_, first)) = self.by_end.pop_first()
        {
            self.ends.remove(&first);
        }
        let end = self.tick + count;
        self.ends.insert(hash, end);
        self.by_end.insert((end, hash));
        count >= self.count_min
    }

    /// Takes one from each count.
    pub fn decay(&mut self) {
        self.tick += 1;
        while let Some(&(end, hash)) = self.by_end.first() {
            if end > self.tick {
                break;
            }
            self.by_end.pop_first();
            self.ends.remove(&hash);
        }
    }

    /// The count of a hash.
    #[must_use]
    pub fn count(&self, hash: SequenceHash) -> u64 {
        self.ends.get(&hash).map_or(0, |end| end - self.tick)
    }

    /// Hashes that it knows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it knows none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}
