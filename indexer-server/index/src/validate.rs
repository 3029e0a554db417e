//! Checks every invariant of the index by walking all of it. For tests and diagnosis: time and memory are
//! proportional to the index.

use crate::bits::BitBlock;
use crate::holder::Holder;
use crate::index::Index;
use crate::segments::{NO_SEGMENT, Segment, SegmentId};
use crate::sets::SetId;
use crate::slots::{NONE, Page, Slot, adjacent, page_of};
use crate::source::{Source, SourceId};
use kvasir_proto::digest::{RankDigest, block_digest};
use kvasir_proto::types::{BlockName, Tier};
use std::collections::{BTreeMap, BTreeSet};

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

impl Index {
    /// Checks every invariant.
    ///
    /// # Errors
    /// A description of the first broken invariant.
    pub fn validate(&self) -> Result<(), String> {
        self.validate_slots()?;
        self.validate_segments()?;
        self.validate_children()?;
        self.validate_sets()?;
        self.validate_totals()?;
        self.validate_listing()?;
        let mut keys = BTreeMap::new();
        for holder in self.holders.iter().flatten() {
            self.validate_slots_held(holder)?;
            self.validate_records(holder, &mut keys)?;
            self.validate_waiting(holder)?;
            self.validate_fed_by(holder)?;
        }
        for (id, source) in &self.sources {
            let counted = keys.get(id).copied().unwrap_or(0);
            ensure!(
                source.keys() == counted,
                "source {id} counts {} of {counted} keys",
                source.keys()
            );
        }
        Ok(())
    }

    fn validate_fed_by(&self, holder: &Holder) -> Result<(), String> {
        let feeds = |source: &Source| source.feeds(holder.index());
        let worker = self.workers.get(holder.worker());
        let all = worker.into_iter().flat_map(|worker| &worker.sources);
        let feeding = all.filter(|id| self.sources.get(id).is_some_and(feeds));
        let worker = holder.worker();
        let rank = holder.rank();
        ensure!(holder.fed_by().iter().eq(feeding), "sources of {worker} rank {rank}");
        Ok(())
    }

    fn validate_listing(&self) -> Result<(), String> {
        let workers = self.workers.iter();
        let listed = workers.flat_map(|(id, worker)| worker.ranks.iter().map(move |at| (id, at.1)));
        let (ids, ranks): (Vec<_>, Vec<_>) = listed.unzip();
        ensure!(self.listing.is_of(&ranks), "the order in which answers list ranks");
        let mut present = vec![0; self.holders.len().div_ceil(64)];
        for (id, rank) in ids.into_iter().zip(ranks) {
            if let Some(word) = present.get_mut(rank as usize / 64) {
                *word |= u64::from(!self.roles.is_pool(id)) << (rank % 64);
            }
        }
        ensure!(self.present == present, "the ranks that queries list");
        Ok(())
    }

    fn validate_totals(&self) -> Result<(), String> {
        let holders = || self.holders.iter().flatten();
        let bytes: usize = holders().map(|holder| holder.bytes()).sum();
        ensure!(self.totals.bytes == bytes, "ranks have {bytes}, not {} bytes", self.totals.bytes);
        let parked: usize = holders().map(|holder| holder.parked()).sum();
        ensure!(
            self.totals.parked == parked,
            "ranks have {parked}, not {} parked",
            self.totals.parked
        );
        ensure!(self.trie.sets.is_counted(), "the bytes of sets are miscounted");
        for holder in holders() {
            let name = format!("{}#{}", holder.worker(), holder.rank());
            ensure!(holder.is_counted(), "{name}: the bytes of its tables are miscounted");
            let is_short = !holder.short_sources().is_empty();
            ensure!(
                holder.is_short() == is_short,
                "{name} lacks blocks, but no source does, or the reverse"
            );
        }
        Ok(())
    }

    fn validate_slots(&self) -> Result<(), String> {
        let mut used = 0;
        let mut named = 0;
        for slot in self.trie.slots.iter() {
            used += 1;
            let segment = self.trie.segment_of(slot);
            let inside = segment.len > 0 && (segment.head..=segment.tail()).contains(&slot);
            ensure!(inside, "slot {slot} is outside its segment {segment:?}");
            if self.trie.slots.is_named(slot) {
                named += 1;
                let found = self.trie.named(self.trie.slots.name(slot));
                ensure!(found == Some(slot), "the name of slot {slot} leads to {found:?}");
            }
        }
        ensure!(used == self.trie.slots.used(), "{used} slots are used");
        let (_, names) = self.trie.tabled();
        ensure!(names == named, "{names} names for {named} named slots");
        Ok(())
    }

    fn validate_segments(&self) -> Result<(), String> {
        let mut slots = 0;
        for (id, segment) in self.trie.segments.iter() {
            slots += segment.len as usize;
            let adjoins = (segment.head..segment.tail()).all(|slot| adjacent(slot, slot + 1));
            ensure!(adjoins, "segment {id} leaves its chunk");
            for slot in segment.head..=segment.tail() {
                ensure!(self.trie.slots.is_used(slot), "slot {slot} of segment {id} is free");
                ensure!(self.trie.slots.segment(slot) == id, "slot {slot} is not in {id}");
            }
            ensure!(
                !segment.is_unheld() || segment.children > 0,
                "segment {id} leads to nothing that is held"
            );
            let depth = self.trie.depth(segment.parent) + 1;
            ensure!(segment.depth as usize == depth, "segment {id} is at depth {depth}");
            self.validate_merged(id, segment)?;
        }
        ensure!(slots == self.trie.slots.used(), "segments cover {slots} slots");
        Ok(())
    }

    fn validate_merged(&self, id: SegmentId, segment: &Segment) -> Result<(), String> {
        let next = segment.first_child;
        if segment.children == 1 && next != NO_SEGMENT {
            let child = self.trie.segments.get(next);
            let is_one = child.sets == segment.sets && adjacent(segment.tail(), child.head);
            ensure!(!is_one, "segment {id} and its only child are one");
        }
        Ok(())
    }

    fn validate_children(&self) -> Result<(), String> {
        let mut children: BTreeMap<Slot, u32> = BTreeMap::new();
        let mut in_table = 0;
        let mut positions = BTreeSet::new();
        for (id, segment) in self.trie.segments.iter() {
            ensure!(self.trie.segments.head(id) == segment.head, "segment {id} begins twice");
            let local = self.trie.slots.local(segment.head);
            ensure!(positions.insert((segment.parent, local)), "segment {id} has a twin");
            let found = self.trie.child(segment.parent, local);
            ensure!(found == Some(segment.head), "segment {id} is not found: {found:?}");
            if segment.parent == NONE {
                in_table += 1;
                continue;
            }
            let above = self.trie.segment_of(segment.parent);
            ensure!(above.tail() == segment.parent, "segment {id} hangs off mid-segment");
            *children.entry(segment.parent).or_default() += 1;
            in_table += usize::from(above.first_child != id);
        }
        for (id, segment) in self.trie.segments.iter() {
            let counted = children.get(&segment.tail()).copied().unwrap_or(0);
            ensure!(segment.children == counted, "segment {id} has {counted} children");
        }
        let (branches, _) = self.trie.tabled();
        ensure!(branches == in_table, "{branches} branches for {in_table} children");
        Ok(())
    }

    fn validate_sets(&self) -> Result<(), String> {
        let mut users: BTreeMap<u32, u32> = BTreeMap::new();
        let number = |set: SetId| set.number();
        for (_, segment) in self.trie.segments.iter() {
            for set in segment.sets {
                *users.entry(number(set)).or_default() += 1;
            }
        }
        let mut shared = 0;
        for (set, references) in self.trie.sets.references() {
            shared += 1;
            let counted = users.get(&number(set)).copied().unwrap_or(0);
            ensure!(references == counted, "{set:?} counts {references} of {counted} users");
            ensure!(self.trie.sets.len(set) > 1, "{set:?} needs no entry");
        }
        ensure!(shared == self.trie.sets.used(), "{shared} sets are in use");
        Ok(())
    }

    fn validate_slots_held(&self, holder: &Holder) -> Result<(), String> {
        let name = format!("{}#{}", holder.worker(), holder.rank());
        let mut pages: BTreeMap<Page, u8> = BTreeMap::new();
        for slot in self.slots_of(holder) {
            *pages.entry(page_of(slot)).or_default() += 1;
            if holder.is_plain(&self.trie, slot) {
                ensure!(self.trie.slots.is_named(slot), "{name}: plain slot {slot} has no name");
                ensure!(holder.primary().is_some(), "{name}: plain slot {slot} has no source");
                let named = self.trie.slots.name(slot);
                ensure!(!holder.records().contains(named), "{name}: {named} is in two places");
            }
        }
        let held: u64 = pages.values().map(|&count| u64::from(count)).sum();
        ensure!(holder.placed() == held, "{name} counts {} of {held} blocks", holder.placed());
        let noted: BTreeMap<Page, u8> = holder.page_counts().collect();
        ensure!(noted == pages, "{name} notes other pages than it holds");
        Ok(())
    }

    fn slots_of(&self, holder: &Holder) -> impl Iterator<Item = Slot> {
        let held = |segment: &Segment| {
            segment.sets.iter().any(|&set| self.trie.sets.contains(set, holder.index()))
        };
        let segments = self.trie.segments.iter().filter(move |(_, segment)| held(segment));
        segments.flat_map(|(_, segment)| segment.head..=segment.tail())
    }

    fn validate_records(
        &self,
        holder: &Holder,
        keys: &mut BTreeMap<SourceId, u64>,
    ) -> Result<(), String> {
        let name = format!("{}#{}", holder.worker(), holder.rank());
        for slot in self.slots_of(holder).filter(|&slot| !holder.is_recorded(slot)) {
            let tiers =
                Tier::ALL.iter().filter(|&&tier| self.trie.holds(slot, holder.index(), tier));
            if let Some(primary) = holder.primary() {
                *keys.entry(primary).or_default() += tiers.count() as u64;
            }
        }
        for block in holder.bits().iter() {
            let BitBlock { slot, kind } = block;
            let at = Holder::name_of_bit(&self.trie, block);
            ensure!(self.trie.slots.is_used(slot), "{name}: {at} has a bit at free slot {slot}");
            ensure!(self.trie.slots.is_named(slot), "{name}: {at} is not found by its name");
            ensure!(self.trie.holds_any(slot, holder.index()), "{name}: {at} has a stray bit");
            ensure!(
                holder.bits().find(kind.group, slot) == Some(block),
                "{name}: {at} has two bits"
            );
            ensure!(!holder.records().contains(at), "{name}: {at} has a bit and a record");
            let primary = holder.primary();
            ensure!(primary.is_some(), "{name}: {at} has no source");
            *keys.entry(primary.unwrap_or(SourceId(0))).or_default() += 1;
        }
        self.validate_digests(holder)?;
        let mut at_slots: BTreeMap<Slot, BTreeSet<BlockName>> = BTreeMap::new();
        for (at, record) in holder.records().iter() {
            ensure!(!record.copies.is_empty(), "{name}: {at} has no copies");
            for copies in &record.copies {
                ensure!(copies.count > 0, "{name}: {at} counts no copies");
                *keys.entry(copies.source).or_default() += 1;
            }
            if let Some(slot) = record.slot {
                at_slots.entry(slot).or_default().insert(at);
                let local = Some(self.trie.slots.local(slot));
                ensure!(record.local == local, "{name}: {at} is at the wrong slot");
            }
        }
        ensure!(
            holder.records().has_one_record_each(),
            "{name} has names with two records or none"
        );
        ensure!(at_slots.len() == holder.records().slots(), "{name} has stray slot names");
        for (slot, names) in at_slots {
            let listed = holder.records().names_at(slot).into_iter().flatten().copied();
            ensure!(listed.collect::<BTreeSet<_>>() == names, "{name}: names of slot {slot}");
            for tier in Tier::ALL {
                let recorded = |at: &BlockName| {
                    holder.records().get(*at).is_some_and(|record| record.is_in(tier))
                };
                let recorded = names.iter().any(recorded);
                let held = self.trie.holds(slot, holder.index(), tier);
                ensure!(recorded == held, "{name}: slot {slot} in {tier:?}");
            }
        }
        Ok(())
    }

    fn validate_digests(&self, holder: &Holder) -> Result<(), String> {
        for (id, digest) in holder.digests() {
            let mut counted = RankDigest::default();
            let is_primary = holder.is_primary(*id);
            let plain = self.slots_of(holder).filter(|&at| is_primary && !holder.is_recorded(at));
            for slot in plain {
                let name = self.trie.slots.name(slot);
                let local = self.trie.slots.local(slot);
                let held = |tier: &Tier| self.trie.holds(slot, holder.index(), *tier);
                let block = block_digest(name, Some(local));
                Tier::ALL.into_iter().filter(held).for_each(|tier| counted.add(tier, block));
            }
            for (name, record) in holder.records().iter() {
                for copies in record.copies.iter().filter(|at| at.source == *id) {
                    counted.add(copies.tier, block_digest(name, record.local));
                }
            }
            for at in holder.bits().iter().filter(|_| is_primary) {
                let name = Holder::name_of_bit(&self.trie, at);
                counted.add(at.kind.tier, block_digest(name, Some(at.local())));
            }
            let name = format!("{}#{}", holder.worker(), holder.rank());
            ensure!(*digest == counted, "{name}: the digest of source {id} is of something else");
        }
        Ok(())
    }

    fn validate_waiting(&self, holder: &Holder) -> Result<(), String> {
        let name = format!("{}#{}", holder.worker(), holder.rank());
        let slotless = || holder.records().iter().filter(|(_, record)| record.slot.is_none());
        let grouped = slotless().filter(|(_, record)| record.is_grouped()).count();
        let counted = holder.records().grouped();
        ensure!(counted == grouped, "{name} counts {counted} of {grouped} names of groups");
        let parked = || slotless().filter(|(_, record)| !record.is_grouped());
        let count = parked().count();
        ensure!(holder.parked() == count, "{name} counts {} of {count} parked", holder.parked());
        let waiting = holder.records().waiting();
        let with_parent = parked().filter(|(_, record)| record.parent.is_some()).count();
        ensure!(waiting == with_parent, "{name}: {waiting} of {with_parent} wait");
        for (at, record) in parked() {
            let Some(parent) = record.parent else {
                continue;
            };
            let listed = holder.records().waiting_for(parent).contains(&at);
            ensure!(listed, "{name}: {at} does not wait for {parent}");
        }
        ensure!(self.workers.contains_key(holder.worker()), "{name} belongs to no worker");
        Ok(())
    }
}
