//! Raw events of one source to events for the index: one tier, one group, complete blocks, hashes
//! instead of tokens. Pure: what it learns comes from the events alone.
//!
//! Every block operation received comes out exactly once: in an event for the index, or in
//! [`Drops`] with the reason. The rules, in the order in which they apply:
//!
//! 1. names that do not cover the prefix (SGLang before 0.5.6) refuse the source;
//! 2. only the main group counts (`place.rs`: full attention; the first such group), and what
//!    contradicts what a group has shown before is rejected;
//! 3. only the worker's own memory counts, and a store that workers share if there is a pool for it
//!    (`place.rs`: locality, then medium, which gives the tier);
//! 4. without tokens or local hashes in their place, known names get another tier
//!    ([`KvEvent::StoredNames`]), and so they do where a connector states no keys: an absent key is
//!    not stated, which is something else than no key (`stored.rs`);
//! 5. tokens must be ids, blocks complete and of the source's size, or of the size of a
//!    connector's chunks on its medium, names as many as blocks;
//! 6. adapter, salt and multimodal content give the namespace (`namespace.rs`, `known.rs`), and with
//!    the tokens the local hash. Local hashes in place of tokens already cover all of that.
//!
//! A block whose hash covers the next token, too, becomes two positions: its content, and below it
//! the next token ([`kvasir_proto::hash::stem`]). Both are operations.
//!
//! Tokens are hashed and dropped here. Cost per block is the hash; nothing is allocated
//! per block, and per event only the list for the index. While all blocks of the source are plain,
//! no table is consulted.

mod adapters;
mod chunks;
mod drops;
#[cfg(test)]
mod groups_test;
mod keys;
mod known;
#[cfg(test)]
mod known_test;
mod namespace;
#[cfg(test)]
mod namespace_test;
#[cfg(test)]
mod normalise_test;
mod place;
mod reasons;
mod recent;
mod removed;
mod stored;
mod unchained;
#[cfg(test)]
mod unstated_test;

pub use chunks::{ChunkError, chunk_sizes};
pub use drops::{
    DropKind, DropReason, Drops, StatedBlockSize, UNKNOWN_VALUE_BYTES_MAX, UNKNOWN_VALUES_MAX,
};
pub use known::KNOWN_NAMES_MAX;

use crate::decode::{Batch, EngineKind, Place, RawEvent, Unreadable};
use known::KnownNames;
use kvasir_proto::hash::{chunk_block_name, stem_name};
use kvasir_proto::types::{
    BlockName, CopyMode, DpRank, KvEvent, Learned, NameChange, NameMeaning, Reason, Tier,
};
use place::{Groups, Location, UnknownPlaces};
use recent::RecentNames;
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

/// What is agreed with a source when it is registered.
#[derive(Debug, Clone)]
pub struct NormaliserConfig {
    /// The engine that publishes.
    pub engine: EngineKind,
    /// Tokens per block, at least 1.
    pub block_size: u32,
    /// Rank of batches that name none.
    pub default_rank: DpRank,
    /// Names of numbered LoRA adapters, for engines that send the number only.
    pub lora_names: Arc<HashMap<u64, String>>,
    /// How long blocks on a medium are held after they were last announced, for media whose connector
    /// never removes. It applies to the whole tier of the medium, or to the pool: blocks are held by tier.
    pub medium_ttls: Vec<(String, Duration)>,
    /// Whether there is a pool for what the engine announces of a store that workers share; without one, that is
    /// dropped as [`DropReason::Remote`].
    pub has_pool: bool,
    /// How repeated announcements count.
    pub copy_mode: CopyMode,
    /// Blocks in a chunk of a connector, by medium, as [`chunk_sizes`] accepts them. The connector loads complete chunks
    /// only.
    pub connector_chunks: Vec<(String, u32)>,
}

impl NormaliserConfig {
    /// Of an engine with so many tokens a block, and nothing else agreed.
    #[must_use]
    pub fn new(engine: EngineKind, block_size: u32) -> Self {
        Self {
            engine,
            block_size,
            default_rank: 0,
            lora_names: Arc::default(),
            medium_ttls: Vec::new(),
            has_pool: false,
            copy_mode: engine.default_copy_mode(),
            connector_chunks: Vec::new(),
        }
    }
}

/// One batch, normalised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Normalised {
    /// Rank that holds the blocks.
    pub rank: DpRank,
    /// Events for the index, in order. None is empty.
    pub events: Vec<KvEvent>,
    /// Which of `events` store on a medium with a time to live, in order, and that time.
    pub expiring: Vec<(usize, Duration)>,
    /// Events for the pool, in order. None is empty.
    pub pool_events: Vec<KvEvent>,
    /// As `expiring`, of these.
    pub pool_expiring: Vec<(usize, Duration)>,
    /// Block operations that are not in the events.
    pub drops: Drops,
    /// Events that could not be read; their operations are in `drops`.
    pub unreadable_events: u64,
    /// The first of them.
    pub first_unreadable: Option<Unreadable>,
    /// Blocks in the events that no query can match: their LoRA adapter has no name here, or
    /// something besides their tokens is not understood.
    pub unmatchable_blocks: u64,
    /// What is not understood of the first of them, as `field=value` or a field; empty if there is none.
    pub unmatchable_example: String,
    /// Named adapters that got another number: what the old number held is removed.
    pub renumbered_adapters: u64,
    /// The numbers of the first of them; empty if there is none.
    pub renumbered_example: String,
    /// Tiers whose chunks were dropped, for their events may have left out keys.
    pub doubted_chunks: u64,
    /// Blocks whose parent turned out to have a salt, an adapter or keys that they lack here: it came after them.
    pub orphaned_blocks: u64,
    /// Removals at places that are not known and where nothing was stored, and the first of them in words.
    pub unplaced_removals: Option<(u64, String)>,
    /// New meanings of names, in order.
    pub name_changes: Vec<NameChange>,
    /// Whether this batch had more names with a meaning than are known at a time: see [`KNOWN_NAMES_MAX`].
    pub forgets_names: bool,
}

impl Normalised {
    /// Whether what the source holds can no longer be relied on: some of what it published is unreadable, or was
    /// misinterpreted.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        self.unreadable_events > 0 || self.drops.count(DropReason::PresumedGroup) > 0
    }

    /// Why the source is not exact after this batch: reasons with a count and the first example, as `field=value`.
    #[must_use]
    pub fn reasons(&self) -> Vec<(Reason, u64, String)> {
        let mut reasons = reasons::of_drops(&self.drops);
        if let Some(Unreadable { field, fault, .. }) = self.first_unreadable {
            let example = format!("{field}: {}", fault.as_str());
            reasons.push((Reason::UnreadableEvent, self.unreadable_events, example));
        }
        if self.unmatchable_blocks > 0 {
            let example = self.unmatchable_example.clone();
            reasons.push((Reason::Unmatchable, self.unmatchable_blocks, example));
        }
        if self.renumbered_adapters > 0 {
            let example = self.renumbered_example.clone();
            reasons.push((Reason::RenumberedAdapter, self.renumbered_adapters, example));
        }
        if self.doubted_chunks > 0 {
            let example = "chunks of a connector".to_owned();
            reasons.push((Reason::UnknownContent, self.doubted_chunks, example));
        }
        if self.orphaned_blocks > 0 {
            let example = "children before their parent".to_owned();
            reasons.push((Reason::UnknownContent, self.orphaned_blocks, example));
        }
        if let Some((removals, example)) = &self.unplaced_removals {
            reasons.push((Reason::UnknownEvent, *removals, example.clone()));
        }
        if self.forgets_names {
            let example = format!("names={KNOWN_NAMES_MAX}");
            reasons.push((Reason::ForgottenNames, 1, example));
        }
        reasons
    }

    /// Adds an event that is not empty, and how long what it stores is held.
    fn add(&mut self, location: Location, event: KvEvent, ttl: Option<Duration>) {
        debug_assert!(event.operations() > 0, "no event is empty");
        let (events, expiring) = match location {
            Location::Worker(_) => (&mut self.events, &mut self.expiring),
            Location::Pool => (&mut self.pool_events, &mut self.pool_expiring),
        };
        expiring.extend(ttl.map(|ttl| (events.len(), ttl)));
        events.push(event);
    }
}

/// Whether a source's names cover the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// No block has shown it yet.
    Unknown,
    Chained,
    Unchained,
}

/// Normalises the batches of one source, in order.
#[derive(Debug)]
pub struct Normaliser {
    config: NormaliserConfig,
    naming: Naming,
    groups: Groups,
    known: KnownNames,
    learned: Learned,
    /// The same after the last batch, for readers.
    shared: Arc<Learned>,
    /// Multimodal hashes of one block, retained to reuse the allocation.
    multimodal: Vec<u64>,
    unknown_places: UnknownPlaces,
    /// Ranks with chunks that may have keys which their events do not state.
    doubted_chunks: BTreeSet<DpRank>,
    /// Ranks with chunks of a connector, while none of them is doubted.
    chunk_ranks: BTreeSet<DpRank>,
    /// Parents of which nothing was known: their children were taken to inherit nothing.
    unknown_parents: RecentNames,
    /// Blocks that were dropped because they are shorter than the block size.
    partial_blocks: RecentNames,
}

impl Normaliser {
    /// A normaliser that has seen nothing.
    #[must_use]
    pub fn new(config: NormaliserConfig) -> Self {
        Self::with_known_names(config, KNOWN_NAMES_MAX)
    }

    fn with_known_names(config: NormaliserConfig, limit: usize) -> Self {
        let naming = match config.engine {
            EngineKind::Sglang => Naming::Unknown,
            EngineKind::Vllm | EngineKind::Trtllm | EngineKind::Custom => Naming::Chained,
        };
        Self {
            naming,
            groups: Groups::default(),
            known: KnownNames::new(config.copy_mode, limit),
            learned: Learned::default(),
            shared: Arc::default(),
            multimodal: Vec::new(),
            unknown_places: UnknownPlaces::default(),
            doubted_chunks: BTreeSet::new(),
            chunk_ranks: BTreeSet::new(),
            unknown_parents: RecentNames::default(),
            partial_blocks: RecentNames::default(),
            config,
        }
    }

    /// Continues for another normaliser of the same incarnation, which had learned this.
    pub fn resume(
        &mut self,
        learned: Learned,
        names: impl IntoIterator<Item = (DpRank, BlockName, NameMeaning)>,
    ) {
        self.groups = Groups::resumed(learned.main_group);
        self.known.resume(names, learned.forgot_names);
        self.learned = learned;
        self.share_learned();
    }

    /// What the source has shown and does not repeat. It must survive a restart of the index for later events to be
    /// understood.
    #[must_use]
    pub const fn learned(&self) -> &Arc<Learned> {
        &self.shared
    }

    fn share_learned(&mut self) {
        self.learned.main_group = self.groups.main();
        self.learned.forgot_names = self.known.has_forgotten();
        if *self.shared != self.learned {
            self.shared = Arc::new(self.learned.clone());
        }
    }

    /// Blocks are dropped that the source did not remove: their time to live is over.
    pub fn expire(&mut self, rank: DpRank, event: &KvEvent) {
        if let KvEvent::Gone { tier, names } | KvEvent::Removed { tier, names } = event {
            names.iter().for_each(|&name| self.known.removed(rank, name, *tier, true));
        }
    }

    /// All blocks of the source are dropped, in the same incarnation.
    pub fn forget_blocks(&mut self) {
        self.known = KnownNames::new(self.config.copy_mode, KNOWN_NAMES_MAX);
        self.share_learned();
    }

    /// Begins a new incarnation of the source: forgets all that was learned of the old one.
    pub fn reset(&mut self) {
        *self = Self::new(self.config.clone());
    }

    /// Normalises the source's next batch.
    pub fn normalise(&mut self, batch: Batch<'_>) -> Normalised {
        let rank = batch.rank.unwrap_or(self.config.default_rank);
        let mut out = Normalised {
            rank,
            events: Vec::with_capacity(batch.events.len()),
            expiring: Vec::new(),
            pool_events: Vec::new(),
            pool_expiring: Vec::new(),
            drops: Drops::default(),
            unreadable_events: 0,
            first_unreadable: None,
            unmatchable_blocks: 0,
            unmatchable_example: String::new(),
            renumbered_adapters: 0,
            renumbered_example: String::new(),
            name_changes: Vec::new(),
            forgets_names: false,
            doubted_chunks: 0,
            orphaned_blocks: 0,
            unplaced_removals: None,
        };
        if self.doubted_chunks.remove(&rank) {
            self.drop_chunks(&mut out);
        }
        for event in batch.events {
            match event {
                RawEvent::Stored(stored) => self.take_stored(*stored, &mut out),
                RawEvent::Removed(removed) => self.take_removed(removed, &mut out),
                RawEvent::Cleared(place) => self.take_cleared(&place, &mut out),
                RawEvent::Moved(moved) => self.take_moved(moved, &mut out),
                RawEvent::Unknown(HARMLESS_KIND) => out.drops.add(DropReason::UnknownEvent, 1),
                RawEvent::Unknown(kind) => out.drops.add_unknown_event(kind),
                RawEvent::Unnamed => out.drops.add(DropReason::UnnamedObject, 1),
                RawEvent::Component => out.drops.add(DropReason::Component, 1),
                RawEvent::Unreadable(unreadable) => {
                    out.drops.add(DropReason::Unreadable, count(unreadable.operations));
                    out.unreadable_events += 1;
                    out.first_unreadable.get_or_insert(unreadable);
                }
            }
        }
        out.name_changes = self.known.take_changes();
        out.forgets_names = self.known.has_forgotten() && !self.shared.forgot_names;
        self.share_learned();
        debug_assert!(
            out.expiring.last().is_none_or(|(event, _)| *event < out.events.len())
                && out.pool_expiring.last().is_none_or(|(at, _)| *at < out.pool_events.len()),
            "times to live belong to events"
        );
        out
    }

    /// How long blocks are held there.
    fn ttl(&self, location: Location) -> Option<Duration> {
        let is_there =
            |(name, _): &&(String, Duration)| Location::of_medium(Some(name)) == Ok(location);
        self.config.medium_ttls.iter().find(is_there).map(|&(_, ttl)| ttl)
    }

    /// Where an event's blocks lie, if that counts.
    fn location(&self, place: &Place<'_>) -> Result<Location, DropReason> {
        let location = Location::of(place)?;
        if location == Location::Pool && !self.config.has_pool {
            return Err(DropReason::Remote);
        }
        Ok(location)
    }

    /// Blocks of which an event states the names only are in a place more.
    fn add_names(&mut self, location: Location, names: Vec<BlockName>, out: &mut Normalised) {
        if names.is_empty() {
            return;
        }
        if let Location::Worker(tier) = location
            && !self.known.is_idle()
        {
            names.iter().for_each(|&name| self.known.stored_name(out.rank, name, tier));
        }
        let tier = location.tier();
        let names = self.all_names(location, names);
        out.add(location, KvEvent::StoredNames { tier, names }, self.ttl(location));
    }

    /// The names under which the index holds these blocks: a look-ahead block and a chunk have several.
    fn all_names(&self, location: Location, names: Vec<BlockName>) -> Vec<BlockName> {
        let chunk = self.chunk_blocks(location).filter(|_| self.learned.splits_chunks);
        if let Some(blocks) = chunk {
            let of_chunk = |name| (0..blocks).rev().map(move |after| chunk_block_name(name, after));
            return names.into_iter().flat_map(of_chunk).collect();
        }
        if self.learned.looks_ahead {
            return names.into_iter().flat_map(|name| [name, stem_name(name)]).collect();
        }
        names
    }

    /// Blocks of a chunk there, if a connector stores chunks.
    fn chunk_blocks(&self, location: Location) -> Option<u32> {
        let is_there = |(name, _): &&(String, u32)| Location::of_medium(Some(name)) == Ok(location);
        self.config.connector_chunks.iter().find(is_there).map(|&(_, blocks)| blocks)
    }

    fn check_naming(&self) -> Result<(), DropReason> {
        match self.naming {
            Naming::Unchained => Err(DropReason::UnchainedNames),
            Naming::Unknown | Naming::Chained => Ok(()),
        }
    }
}

/// An event of a kind that changes nothing that the index holds: vLLM announces that a block is no longer in use.
const HARMLESS_KIND: &str = "BlockInactive";

/// The tier of a medium of the worker's own memory, by the name that engines give it.
#[must_use]
pub fn tier_of_medium(medium: &str) -> Option<Tier> {
    match Location::of_medium(Some(medium)).ok()? {
        Location::Worker(tier) => Some(tier),
        Location::Pool => None,
    }
}

/// Whether a medium, by the name that engines give it, is a store that workers share.
#[must_use]
pub fn is_pool_medium(medium: &str) -> bool {
    Location::of_medium(Some(medium)) == Ok(Location::Pool)
}

fn drop_operations(reason: DropReason, medium: Option<&str>, operations: usize, drops: &mut Drops) {
    if reason == DropReason::UnknownMedium {
        drops.add_unknown_medium(medium.unwrap_or_default(), count(operations));
    } else {
        drops.add(reason, count(operations));
    }
}

fn count(operations: usize) -> u64 {
    u64::try_from(operations).unwrap_or(u64::MAX)
}
