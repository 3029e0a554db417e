//! Remembers recently noted names in a direct-mapped cache. A name replaces another one in the same slot, so
//! memory is fixed and a name may be forgotten early.

use kvasir_proto::types::{BlockName, DpRank};

/// Number of slots, a power of two: 16 KiB.
const SLOTS: usize = 1_024;

/// A direct-mapped cache of names.
#[derive(Debug, Default)]
pub(super) struct RecentNames(Vec<Option<(DpRank, BlockName)>>);

impl RecentNames {
    /// Notes a name.
    pub(super) fn record_name(&mut self, rank: DpRank, name: BlockName) {
        if self.0.is_empty() {
            self.0.resize(SLOTS, None);
        }
        if let Some(slot) = self.0.get_mut(slot(rank, name)) {
            *slot = Some((rank, name));
        }
    }

    /// Whether a name was noted recently.
    pub(super) fn contains(&self, rank: DpRank, name: BlockName) -> bool {
        self.0.get(slot(rank, name)) == Some(&Some((rank, name)))
    }
}

fn slot(rank: DpRank, name: BlockName) -> usize {
    // Names are already hashes.
    let mixed = name.0 ^ u64::from(rank).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(mixed % SLOTS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_until_another_one_needs_its_slot() {
        let mut recent = RecentNames::default();
        assert!(!recent.contains(0, BlockName(5)));
        recent.record_name(0, BlockName(5));
        assert!(recent.contains(0, BlockName(5)) && !recent.contains(1, BlockName(5)));
        recent.record_name(0, BlockName(5 + SLOTS as u64));
        assert!(!recent.contains(0, BlockName(5)));
    }
}
