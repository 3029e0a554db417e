//! A rank's slots, in pages of 64: how many of a page it holds, and which were announced again after a loss of events.

use crate::slots::{PAGE_SLOTS, Page, Slot, page_of};
use crate::table::SplitMap;
use kvasir_proto::types::Tier;

/// Number of slots that a rank holds in any tier: total and by page.
#[derive(Debug, Default)]
pub(crate) struct HeldPages {
    pages: SplitMap<Page, u8>,
    blocks: u64,
}

impl HeldPages {
    /// Number of held slots.
    pub(crate) const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Counts consecutive slots that the rank now holds.
    pub(crate) fn add(&mut self, slot: Slot, len: u32) {
        self.blocks += u64::from(len);
        for (page, count) in by_page(slot, len) {
            let held = self.pages.get_or_default(page);
            *held += count;
            debug_assert!(u32::from(*held) <= PAGE_SLOTS, "a page has {PAGE_SLOTS} slots");
        }
    }

    /// Counts consecutive slots that the rank no longer holds.
    pub(crate) fn remove(&mut self, slot: Slot, len: u32) {
        self.blocks -= u64::from(len);
        for (page, count) in by_page(slot, len) {
            let held = self.pages.get_mut(page);
            debug_assert!(held.is_some(), "the rank holds slots of page {page}");
            if let Some(held) = held {
                *held -= count;
                if *held == 0 {
                    self.pages.remove(page);
                }
            }
        }
    }

    /// One part of the pages with held slots; `None` after the last part.
    pub(crate) fn part(&self, part: usize) -> Option<impl Iterator<Item = Page>> {
        self.pages.part(part).map(|pages| pages.map(|&(page, _)| page))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Page, u8)> {
        self.pages.iter().copied()
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.pages.is_counted()
    }
}

/// Slots by tier and page, one bit per slot.
type Bits = [SplitMap<Page, u64>; Tier::COUNT];

/// After a loss of events: the plain slots that the primary source has announced again. All other plain slots
/// are suspect. `None` without a loss: all plain slots are reliable.
#[derive(Debug, Default)]
pub(crate) struct Confirmed(Option<Box<Bits>>);

impl Confirmed {
    /// Marks every plain slot as suspect, because events were lost.
    pub(crate) fn reset(&mut self) {
        self.0 = Some(Box::default());
    }

    /// Clears the suspect mark of all plain slots.
    pub(crate) fn clear_suspects(&mut self) {
        self.0 = None;
    }

    /// Whether a plain slot was not announced in a tier since events were lost.
    pub(crate) fn is_suspect(&self, slot: Slot, tier: Tier) -> bool {
        let confirmed = self.0.as_ref().and_then(|tiers| tiers.get(tier.index()));
        confirmed.is_some_and(|pages| {
            pages.get(page_of(slot)).is_none_or(|bits| bits >> (slot % PAGE_SLOTS) & 1 == 0)
        })
    }

    /// Records that consecutive plain slots were announced in a tier.
    pub(crate) fn add(&mut self, slot: Slot, len: u32, tier: Tier) {
        let confirmed = self.0.as_mut().and_then(|tiers| tiers.get_mut(tier.index()));
        let Some(confirmed) = confirmed.filter(|_| len > 0) else {
            return;
        };
        let mut first = slot % PAGE_SLOTS;
        for (page, count) in by_page(slot, len) {
            *confirmed.get_or_default(page) |= u64::MAX >> (64 - u32::from(count)) << first;
            first = 0;
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let tiers = self.0.iter().flat_map(|tiers| tiers.iter());
        tiers.map(|pages| size_of_val(pages) + pages.bytes()).sum()
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.0.iter().flat_map(|tiers| tiers.iter()).all(SplitMap::is_counted)
    }
}

/// Divides consecutive slots into pages. Returns each page with the number of its slots.
fn by_page(slot: Slot, len: u32) -> impl Iterator<Item = (Page, u8)> {
    debug_assert!(len > 0, "at least one slot");
    let end = slot + len;
    (page_of(slot)..=page_of(end - 1)).map(move |page| {
        let first = (page * PAGE_SLOTS).max(slot);
        let last = ((page + 1) * PAGE_SLOTS).min(end);
        #[expect(clippy::cast_possible_truncation, reason = "a page has 64 slots")]
        let count = (last - first) as u8;
        (page, count)
    })
}
