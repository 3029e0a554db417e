use kvasir_proto::types::SequenceHash;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Maximum count of a hash.
const COUNT_MAX: u64 = 1 << 20;

/// Frequency filter (admission policy): admits a block once it was offered often enough recently. Writing blocks to
/// disk that are never read wears out the disk for nothing.
///
/// The first offer of a hash sets its count to 1, and each further offer doubles it. Each tick decrements all counts. A
/// hash whose count reaches 0 is dropped.
#[derive(Debug)]
pub struct FrequencyFilter {
    /// Tick in which each hash is dropped. The difference to the current tick is its count.
    ends: FxHashMap<SequenceHash, u64>,
    by_end: BTreeSet<(u64, SequenceHash)>,
    tick: u64,
    count_min: u64,
    hashes_max: usize,
}

impl FrequencyFilter {
    /// Creates a filter that admits hashes with a count of at least `count_min`. It stores at most `hashes_max` hashes:
    /// a new one replaces the hash that would expire first.
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

    /// Counts an offer of a block: each offer doubles the block's count. Returns whether the count has reached
    /// `count_min`.
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

    /// Decrements the counts of all blocks.
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

    /// Number of stored hashes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether no hash is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}
