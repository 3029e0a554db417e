//! Compact form of the record of a further group's block: 16 bytes instead of 64. Engines announce such a block for
//! most blocks of the main group, so there are as many.

use crate::record::{Copies, Record};
use crate::source::SourceId;
use kvasir_proto::types::{BlockName, Group, Tier, TierSet};
use smallvec::smallvec;

/// Loss epochs below this are encoded. A source whose events were lost more often has full records.
const EPOCHS: u32 = 1 << 20;
const TIER_SHIFT: u32 = 8;
const PARENT_BIT: u64 = 1 << 10;
const ELSEWHERE_BIT: u64 = 1 << 11;
const EPOCH_SHIFT: u32 = 12;
const SOURCE_SHIFT: u32 = 32;

/// A record with one copy, or a note that the record is elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompactRecord {
    /// Name of the preceding block; 0 without one.
    parent: u64,
    /// From the lowest bit: number of the group (8 bits), tier (2), whether there is a parent, whether the record is
    /// elsewhere, loss epoch (20), source (32).
    facts: u64,
}

impl CompactRecord {
    /// Notes that the record is in the table of full records.
    pub(crate) const ELSEWHERE: Self = Self { parent: 0, facts: ELSEWHERE_BIT };

    /// The compact form of a record; `None` if the record needs the full form.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        let number = Group::number_of(record.local?)?;
        let &[Copies { source, tier, count: 1, epoch: epoch @ ..EPOCHS }] =
            record.copies.as_slice()
        else {
            return None;
        };
        let parent_bit = if record.parent.is_some() { PARENT_BIT } else { 0 };
        let facts = u64::from(number)
            | (tier.index() as u64) << TIER_SHIFT
            | parent_bit
            | u64::from(epoch) << EPOCH_SHIFT
            | u64::from(source.0) << SOURCE_SHIFT;
        Some(Self { parent: record.parent.map_or(0, |name| name.0), facts })
    }

    pub(crate) const fn is_elsewhere(self) -> bool {
        self.facts & ELSEWHERE_BIT != 0
    }

    /// The record; `None` if it is elsewhere.
    pub(crate) fn record(self) -> Option<Record> {
        let tier = self.tier()?;
        let bits =
            |shift: u32, most: u32| u32::try_from(self.facts >> shift & u64::from(most)).ok();
        let source = SourceId(bits(SOURCE_SHIFT, u32::MAX)?);
        let epoch = bits(EPOCH_SHIFT, EPOCHS - 1)?;
        let local = Group::block(bits(0, Group::NUMBERS - 1)?, BlockName(0)).local;
        Some(Record {
            parent: self.parent(),
            local: Some(local),
            slot: None,
            copies: smallvec![Copies { source, tier, count: 1, epoch }],
        })
    }

    /// Name of the preceding block, if the record is here.
    pub(crate) fn parent(self) -> Option<BlockName> {
        (self.facts & PARENT_BIT != 0).then_some(BlockName(self.parent))
    }

    /// Tier of the copy; `None` if the record is elsewhere.
    fn tier(self) -> Option<Tier> {
        let number = usize::try_from(self.facts >> TIER_SHIFT & 3).ok()?;
        Tier::ALL.get(number).copied().filter(|_| !self.is_elsewhere())
    }

    /// Whether the copy is in one of `tiers`; `None` if the record is elsewhere.
    pub(crate) fn is_in_any(self, tiers: TierSet) -> Option<bool> {
        self.tier().map(|tier| tiers.contains(tier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::types::{GroupKind, LocalHash};

    fn record(copies: &[Copies]) -> Record {
        let local = Some(Group::block(255, BlockName(7)).local);
        let parent = Some(BlockName(u64::MAX));
        Record { parent, local, slot: None, copies: copies.into() }
    }

    #[test]
    fn one_copy_is_compact_and_read_back() {
        for tier in Tier::ALL {
            for (source, epoch) in [(0, 0), (u32::MAX, EPOCHS - 1)] {
                let copies = Copies { source: SourceId(source), tier, count: 1, epoch };
                for parent in [None, Some(BlockName(0)), Some(BlockName(u64::MAX))] {
                    let record = Record { parent, ..record(&[copies]) };
                    let compact = CompactRecord::of(&record).expect("one copy");
                    assert_eq!(compact.record(), Some(record));
                    assert_eq!(compact.parent(), parent);
                    let only = TierSet::EMPTY.with(tier);
                    assert_eq!(compact.is_in_any(only), Some(true));
                    assert_eq!(compact.is_in_any(TierSet::EMPTY), Some(false));
                }
            }
        }
        assert_eq!(CompactRecord::ELSEWHERE.record(), None);
        assert_eq!(CompactRecord::ELSEWHERE.is_in_any(TierSet::EMPTY), None);
    }

    #[test]
    fn other_records_are_not_compact() {
        let copies = Copies { source: SourceId(1), tier: Tier::Device, count: 1, epoch: 1 };
        let fails = |record: Record| assert_eq!(CompactRecord::of(&record), None, "{record:?}");
        fails(record(&[]));
        fails(record(&[Copies { count: 2, ..copies }]));
        fails(record(&[Copies { epoch: EPOCHS, ..copies }]));
        fails(record(&[copies, Copies { tier: Tier::Host, ..copies }]));
        fails(Record { local: Some(LocalHash(7)), ..record(&[copies]) });
        fails(Record { local: None, ..record(&[copies]) });
        let group =
            Group { number: 1, kind: GroupKind::Mamba, block_size: 16, unit: 16, window: 0 };
        fails(Record { local: Some(group.declaration().local), ..record(&[copies]) });
    }
}
