//! Basic operations of queries: walks a prompt through the trie, and looks up names.

use crate::index::Index;
use crate::segments::NO_SEGMENT;
use crate::sets::{HolderIndex, SetId, TierSets};
use crate::slots::{NONE, Slot};
use crate::table::index_u32;
use kvasir_proto::types::{BlockName, LocalHash, Tier, TierSet};

/// The blocks of a prompt.
#[derive(Debug, Clone, Copy)]
pub enum QueryKey<'a> {
    /// By local hashes, that is by content.
    Locals(&'a [LocalHash]),
    /// By the engines' own names.
    Names(&'a [BlockName]),
}

impl QueryKey<'_> {
    /// Number of positions.
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Locals(locals) => locals.len(),
            Self::Names(names) => names.len(),
        }
    }

    /// The names; `None` for a prompt given by local hashes.
    pub(crate) const fn names(&self) -> Option<&[BlockName]> {
        match self {
            Self::Locals(_) => None,
            Self::Names(names) => Some(names),
        }
    }
}

/// Sets without a holder in any tier.
pub(crate) const NOBODY: TierSets = [SetId::EMPTY; Tier::COUNT];

/// Number of hashes compared together while all are equal; then [`STEP`] at a time, to find the first
/// difference.
const LONG_STEP: usize = 64;
const STEP: usize = 8;

/// Number of leading hashes that are equal.
fn common_prefix(stored: &[u64], query: &[u64]) -> usize {
    let long = equal_chunks::<LONG_STEP>(stored, query);
    let stored = stored.split_at(long).1;
    let query = query.split_at(long).1;
    let short = equal_chunks::<STEP>(stored, query);
    let rest = stored.iter().skip(short).zip(query.iter().skip(short));
    long + short + rest.take_while(|(stored, query)| stored == query).count()
}

fn equal_chunks<const LEN: usize>(stored: &[u64], query: &[u64]) -> usize {
    let (stored, _) = stored.as_chunks::<LEN>();
    let (query, _) = query.as_chunks::<LEN>();
    LEN * stored.iter().zip(query).take_while(|(stored, query)| stored == query).count()
}

impl Index {
    /// Calls `enter` for each segment along a prompt, with its holders, its first slot, the number of blocks before
    /// it, and the number up to its end. Stops when `enter` returns `false` or the trie ends. Returns the number of
    /// blocks walked.
    pub(crate) fn walk_locals(
        &self,
        locals: &[LocalHash],
        mut enter: impl FnMut(TierSets, Slot, u32, u32) -> bool,
    ) -> u32 {
        let mut from = 0;
        let mut rest = LocalHash::numbers(locals);
        let mut next = rest.first().and_then(|&first| self.trie.branch(NONE, LocalHash(first)));
        while let Some(id) = next {
            let segment = self.trie.segments.get(id);
            let head = self.trie.segments.head(id);
            if segment.first_child != NO_SEGMENT && rest.len() > segment.len as usize {
                self.trie.touch_segment(segment.first_child);
            }
            let equal = common_prefix(self.trie.slots.locals(head, segment.len), rest);
            let end = from + index_u32(equal);
            if !enter(segment.sets, head, from, end) {
                break;
            }
            from = end;
            rest = rest.get(equal..).unwrap_or_default();
            next = match rest.first() {
                Some(&local) if equal == segment.len as usize => {
                    self.trie.child_of_segment(segment, LocalHash(local))
                }
                _ => None,
            };
        }
        from
    }

    /// Whether the index has a prompt that begins with this block.
    #[must_use]
    pub fn has_first(&self, local: LocalHash) -> bool {
        self.trie.branch(NONE, local).is_some()
    }

    /// Holders of the slot with this own name.
    pub(crate) fn holders_of_name(&self, name: BlockName) -> TierSets {
        self.trie.named(name).map_or(NOBODY, |slot| self.trie.segment_of(slot).sets)
    }

    /// Tiers in which a rank has a placed name.
    pub(crate) fn tiers_of(&self, holder: HolderIndex, name: BlockName) -> TierSet {
        let Some(at) = self.holder_at(holder) else {
            return TierSet::EMPTY;
        };
        if let Some(record) = at.records().get(name) {
            let is_in = |tier: &Tier| record.slot.is_some() && record.is_in(*tier);
            return Tier::ALL.into_iter().filter(is_in).collect();
        }
        match self.trie.named(name) {
            Some(slot) if at.is_plain(&self.trie, slot) => {
                let holds = |tier: &Tier| self.trie.holds(slot, holder, *tier);
                Tier::ALL.into_iter().filter(holds).collect()
            }
            _ => TierSet::EMPTY,
        }
    }
}
