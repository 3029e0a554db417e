//! Byte budget: counts the memory of all shards of the process and decides when to evict (shed) blocks.

use crossbeam_utils::CachePadded;
use kvasir_index::{Index, Shed};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// Inverse of a fraction (1/8) that is used twice. The budget reserves this fraction of its limit for free space. A
/// shard with less than this fraction free is about to grow: above it, an index reuses free space of any size.
const FREE_FRACTION: usize = 8;

/// Bytes of an empty shard, with its part of the partition: 2 KiB as measured.
pub(super) const SHARD_BYTES: usize = 2 << 10;

/// Estimated bytes per block, with a margin: 25 to 40 as measured.
const BLOCK_BYTES: usize = 48;

/// Allocated and free bytes of one index or of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes {
    /// All allocated bytes.
    pub allocated: usize,
    /// Allocated bytes that new positions can reuse before the index allocates more.
    pub free: usize,
}

impl Bytes {
    fn of_index(index: &Index) -> Self {
        Self { allocated: index.bytes(), free: index.free_bytes() }
    }

    /// Bytes that are allocated and not free.
    #[must_use]
    pub const fn in_use(self) -> usize {
        // Both values are read one after the other, so they can differ in time.
        self.allocated.saturating_sub(self.free)
    }

    /// Whether an index of this size may have to allocate for the next blocks.
    const fn is_about_to_grow(self) -> bool {
        self.free < self.allocated / FREE_FRACTION
    }
}

/// Why blocks must be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    /// More bytes are in use than the limit allows.
    Use,
    /// More bytes are allocated than the limit, though not all are in use. Free space in one index is useless to
    /// another index.
    Allocation {
        /// Whether the shard that was written may allocate more.
        growing: bool,
    },
}

/// Maximum bytes of all indexes of the process together. A pure rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit(usize);

impl Limit {
    /// Whether this many blocks fit with a fifth of the limit still free, which delays the next eviction.
    fn has_room_for(self, in_use: usize, blocks: u64) -> bool {
        let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
        let wanted = in_use.saturating_add(blocks.saturating_mul(BLOCK_BYTES));
        wanted <= self.0 / 5 * 4
    }

    /// Returns by what all shards together exceed the limit, after a write to one shard: used bytes or allocated bytes.
    /// Returns `None` within the limit.
    const fn excess(self, all: Bytes, written: Bytes) -> Option<Excess> {
        if all.in_use() > self.0 - self.0 / FREE_FRACTION {
            Some(Excess::Use)
        } else if all.allocated > self.0 {
            Some(Excess::Allocation { growing: written.is_about_to_grow() })
        } else {
            None
        }
    }
}

/// Bytes of all shards of the process, and their limit. Without a limit, the budget only counts.
#[derive(Debug, Default)]
pub struct Budget {
    limit: Option<Limit>,
    /// Maximum bytes that eviction cannot free: workers, sources, ranks and partitions.
    fixed_max: Option<usize>,
    allocated: CachePadded<AtomicUsize>,
    free: CachePadded<AtomicUsize>,
    /// Bytes that eviction cannot free.
    fixed: AtomicUsize,
    shed_pairs: AtomicU64,
    shed_parked: AtomicU64,
}

impl Budget {
    /// A budget with an optional limit in bytes, and an optional limit on the bytes that eviction cannot free.
    #[must_use]
    pub fn new(limit: Option<usize>, fixed_max: Option<usize>) -> Self {
        Self { limit: limit.map(Limit), fixed_max, ..Self::default() }
    }

    /// Maximum allocated bytes of all shards.
    #[must_use]
    pub fn limit(&self) -> Option<usize> {
        self.limit.map(|Limit(bytes)| bytes)
    }

    /// Bytes of all shards, as of the last change of each shard.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes { allocated: self.allocated.load(Relaxed), free: self.free.load(Relaxed) }
    }

    /// Whether this many evicted blocks fit again, with a fifth of the limit still free.
    #[must_use]
    pub fn has_room_for(&self, blocks: u64) -> bool {
        self.limit.is_none_or(|limit| limit.has_room_for(self.bytes().in_use(), blocks))
    }

    /// Bytes left for new partitions, workers, sources and ranks, which eviction cannot free. `None`: unlimited.
    #[must_use]
    pub fn room(&self) -> Option<usize> {
        let fixed = self.fixed.load(Relaxed);
        self.fixed_max.map(|max| max.saturating_sub(fixed))
    }

    /// Blocks evicted so far.
    #[must_use]
    pub fn shed(&self) -> Shed {
        Shed { pairs: self.shed_pairs.load(Relaxed), parked: self.shed_parked.load(Relaxed) }
    }

    pub(super) fn count_shed(&self, shed: Shed) {
        self.shed_pairs.fetch_add(shed.pairs, Relaxed);
        self.shed_parked.fetch_add(shed.parked, Relaxed);
    }

    /// Returns by what all shards together exceed the limit, after a write to one shard. Returns `None` within the
    /// limit, or if the budget is unlimited.
    pub(super) fn excess(&self, written: Bytes) -> Option<Excess> {
        self.limit.and_then(|limit| limit.excess(self.bytes(), written))
    }
}

/// Size of one shard, counted in the budget until the shard is dropped.
#[derive(Debug)]
pub(super) struct ShardSize {
    budget: Arc<Budget>,
    allocated: AtomicUsize,
    free: AtomicUsize,
    fixed: AtomicUsize,
    ranks: AtomicUsize,
    /// The part of `ranks` with several KV-cache groups.
    grouped_ranks: AtomicUsize,
    /// Whether the shard has anything to evict.
    sheddable: AtomicBool,
}

impl ShardSize {
    /// Creates the size counter of a shard, which starts at 0 bytes.
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        let size = Self {
            budget: Arc::clone(budget),
            allocated: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
            fixed: AtomicUsize::new(0),
            ranks: AtomicUsize::new(0),
            grouped_ranks: AtomicUsize::new(0),
            sheddable: AtomicBool::new(false),
        };
        size.set_fixed(SHARD_BYTES);
        size
    }

    /// Publishes the shard's current size. The caller holds the shard's lock.
    pub(super) fn publish(&self, index: &Index) {
        self.set(Bytes::of_index(index));
        self.set_fixed(SHARD_BYTES + index.fixed_bytes());
        self.ranks.store(index.ranks(), Relaxed);
        self.grouped_ranks.store(index.grouped_ranks(), Relaxed);
        self.sheddable.store(index.is_sheddable(), Relaxed);
    }

    /// Sets the shard's bytes, and adds the differences to the server's totals.
    fn set(&self, Bytes { allocated, free }: Bytes) {
        let pairs = [
            (&self.allocated, &self.budget.allocated, allocated),
            (&self.free, &self.budget.free, free),
        ];
        for (own, all, now) in pairs {
            replace(own, all, now);
        }
    }

    fn set_fixed(&self, now: usize) {
        replace(&self.fixed, &self.budget.fixed, now);
    }

    /// Bytes left in all shards for data that eviction cannot free. `None`: unlimited.
    pub(super) fn room(&self) -> Option<usize> {
        self.budget.room()
    }

    pub(super) fn bytes(&self) -> Bytes {
        Bytes { allocated: self.allocated.load(Relaxed), free: self.free.load(Relaxed) }
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks.load(Relaxed)
    }

    /// Ranks with several KV-cache groups, as of the last change.
    pub(super) fn grouped_ranks(&self) -> usize {
        self.grouped_ranks.load(Relaxed)
    }

    pub(super) fn is_sheddable(&self) -> bool {
        self.sheddable.load(Relaxed)
    }
}

impl Drop for ShardSize {
    fn drop(&mut self) {
        self.set(Bytes::default());
        self.set_fixed(0);
    }
}

/// Replaces one summand and corrects the sum.
fn replace(own: &AtomicUsize, all: &AtomicUsize, now: usize) {
    let before = own.swap(now, Relaxed);
    if before != now {
        // A negative difference wraps around to the correct sum.
        all.fetch_add(now.wrapping_sub(before), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn bytes(allocated: usize, free: usize) -> Bytes {
        Bytes { allocated, free }
    }

    #[test]
    fn seven_eighths_may_be_in_use_and_all_may_be_allocated() {
        let excess = |all, written| Limit(800).excess(all, written);
        assert_eq!(excess(bytes(700, 0), bytes(700, 0)), None);
        assert_eq!(excess(bytes(701, 0), bytes(0, 0)), Some(Excess::Use));
        assert_eq!(excess(bytes(800, 100), bytes(80, 0)), None);
        assert_eq!(excess(bytes(801, 100), bytes(80, 0)), Some(Excess::Use));
        let growing = |growing| Some(Excess::Allocation { growing });
        assert_eq!(excess(bytes(801, 101), bytes(80, 9)), growing(true));
        assert_eq!(excess(bytes(801, 101), bytes(80, 10)), growing(false));
        assert_eq!(Limit(usize::MAX).excess(bytes(1 << 40, 0), bytes(1 << 40, 0)), None);
    }

    #[test]
    fn what_was_shed_may_come_back_below_four_fifths() {
        let has_room = |in_use, blocks| Limit(10_000).has_room_for(in_use, blocks);
        let most = u64::try_from(8_000 / BLOCK_BYTES).expect("a small number");
        assert!(has_room(0, most) && has_room(8_000, 0));
        assert!(!has_room(0, most + 1) && !has_room(8_001, 0) && !has_room(0, u64::MAX));
    }

    #[test]
    fn what_cannot_be_shed_has_a_limit_of_its_own() {
        let budget = Arc::new(Budget::new(Some(4 * SHARD_BYTES), Some(2 * SHARD_BYTES)));
        assert_eq!(budget.room(), Some(2 * SHARD_BYTES));
        let sizes = [ShardSize::new(&budget), ShardSize::new(&budget)];
        assert_eq!(budget.room(), Some(0));
        sizes[0].set_fixed(SHARD_BYTES + 10);
        assert_eq!(budget.room(), Some(0));
        drop(sizes);
        assert_eq!((budget.room(), Budget::default().room()), (Some(2 * SHARD_BYTES), None));
    }

    #[test]
    fn shards_are_counted_while_they_are_there() {
        let budget = Arc::new(Budget::new(Some(100), None));
        let sizes = [ShardSize::new(&budget), ShardSize::new(&budget)];
        sizes[0].set(bytes(60, 20));
        sizes[1].set(bytes(50, 5));
        assert_eq!(budget.bytes(), bytes(110, 25));
        sizes[0].set(bytes(10, 1));
        assert_eq!((budget.bytes(), budget.excess(bytes(0, 0))), (bytes(60, 6), None));
        drop(sizes);
        assert_eq!((budget.bytes(), budget.limit()), (bytes(0, 0), Some(100)));
        assert_eq!(Budget::default().excess(bytes(usize::MAX, 0)), None);
    }
}
