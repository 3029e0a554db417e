//! Normalises one source's raw events to index events: one tier, one group, complete blocks, hashes instead
//! of tokens. Pure: it depends only on the events.
//!
//! Every block operation received comes out exactly once: in an event for the index, or in [`Drops`] with the
//! reason. The rules, in order:
//!
//! 1. Names that do not cover the prefix (SGLang before 0.5.6) cause the source to be rejected.
//! 2. The main group gives the chain of blocks (`place.rs`: full attention; the first such group). Blocks of
//!    further groups are indexed beside it (`further.rs`). Events that contradict their group's earlier kind
//!    are rejected.
//! 3. Blocks count if they are in the worker's own memory, or in a store that workers share and that has a pool.
//!    `place.rs` reads the locality first, then the medium, which gives the tier.
//! 4. Without tokens or local hashes, the event adds a tier to known names ([`KvEvent::StoredNames`]). The
//!    same applies if a connector states no keys, because absent keys are unknown, not empty (`stored.rs`).
//! 5. Tokens must be ids. Blocks must be complete and have the source's size, or the size of a connector's
//!    chunks on its medium. There must be one name per block.
//! 6. Adapter, salt and multimodal content give the namespace (`namespace.rs`, `known.rs`); namespace and
//!    tokens give the local hash. Local hashes sent instead of tokens already cover all of it.
//!
//! A block whose hash also covers the next token becomes two positions: its content, and its child with the
//! next token ([`kvasir_proto::hash::stem`]). Both are operations.
//!
//! Tokens are hashed and dropped here. The cost per block is the hash. No memory is allocated per block, only
//! the list for the index per event. While all blocks of the source are plain, no table is consulted.

mod adapters;
mod chunks;
mod drops;
mod further;
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
use further::FurtherGroups;
use known::KnownNames;
use kvasir_proto::hash::{chunk_block_name, stem_name};
use kvasir_proto::types::{
    BlockName, CopyMode, DpRank, KvEvent, Learned, NameChange, NameMeaning, Reason, Tier,
};
use place::{Groups, Location, UnknownPlaces};
use recent::RecentNames;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Settings of a source from its registration.
#[derive(Debug, Clone)]
pub struct NormaliserConfig {
    /// The engine that publishes.
    pub engine: EngineKind,
    /// Tokens per block, at least 1.
    pub block_size: u32,
    /// Rank of batches that do not state one.
    pub default_rank: DpRank,
    /// Names of numbered LoRA adapters, for engines that send the number only.
    pub lora_names: Arc<HashMap<u64, String>>,
    /// Time to live of blocks after their last announcement, by medium, for media whose connector never
    /// announces removals. It applies to the medium's whole tier, or to the pool, because blocks are stored
    /// by tier.
    pub medium_ttls: Vec<(String, Duration)>,
    /// Whether there is a pool for events about a store that workers share. Without a pool, such operations
    /// are dropped as [`DropReason::Remote`].
    pub has_pool: bool,
    /// How repeated announcements count.
    pub copy_mode: CopyMode,
    /// Blocks per chunk of a connector, by medium, as [`chunk_sizes`] accepts them. The connector loads only
    /// complete chunks.
    pub connector_chunks: Vec<(String, u32)>,
}

impl NormaliserConfig {
    /// Default settings of an engine with `block_size` tokens per block.
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
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Normalised {
    /// Rank that caches the blocks.
    pub rank: DpRank,
    /// Events for the index, in order; each is non-empty.
    pub events: Vec<KvEvent>,
    /// Indexes of the `events` that store on a medium with a time to live, in order, with that time.
    pub expiring: Vec<(usize, Duration)>,
    /// Events for the pool, in order; each is non-empty.
    pub pool_events: Vec<KvEvent>,
    /// Indexes of the `pool_events` that store with a time to live, in order, with that time.
    pub pool_expiring: Vec<(usize, Duration)>,
    /// Block operations that were dropped.
    pub drops: Drops,
    /// Unreadable events. Their operations are in `drops`.
    pub unreadable_events: u64,
    /// The first unreadable event.
    pub first_unreadable: Option<Unreadable>,
    /// Blocks in the events that queries cannot match: their LoRA adapter has no name here, or one of their
    /// keys is not understood.
    pub unmatchable_blocks: u64,
    /// Cause of the first unmatchable block, as `field=value` or a field; empty without such blocks.
    pub unmatchable_example: String,
    /// Named adapters with a new number. The blocks under the old number are removed.
    pub renumbered_adapters: u64,
    /// Numbers of the first renumbered adapter; empty if there is none.
    pub renumbered_example: String,
    /// Tiers whose chunks were dropped, because their events may have omitted keys.
    pub doubted_chunks: u64,
    /// Blocks stored before their parent, whose parent turned out to have a salt, an adapter or keys that
    /// they lack here.
    pub orphaned_blocks: u64,
    /// Removals at unknown places where no blocks were stored, and stored objects of a shared store, which may be
    /// removed unseen; and a description of the first.
    pub unseen_removals: Option<(u64, String)>,
    /// Whether the source has groups, but none of them has full attention: no block has a known position.
    pub lacks_main_group: bool,
    /// Whether the source has groups that are not indexed: a group with a smaller number is not announced yet, or a
    /// group's kind or window is unknown.
    pub lacks_groups: bool,
    /// New meanings of names, in order.
    pub name_changes: Vec<NameChange>,
    /// Whether this batch exceeded the maximum number of known names: see [`KNOWN_NAMES_MAX`].
    pub forgets_names: bool,
    /// Stores of further groups, which wait until the batch ends or another kind of event comes.
    postponed: Vec<(KvEvent, Option<Duration>)>,
}

impl Normalised {
    /// Whether the source's blocks are no longer reliable: events were unreadable or misinterpreted.
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
        if self.lacks_groups {
            let example = "a group that is not indexed".to_owned();
            if !reasons.iter().any(|(reason, ..)| *reason == Reason::UnannouncedGroups) {
                reasons.push((Reason::UnannouncedGroups, 1, example));
            }
        }
        if self.lacks_main_group {
            let example = "no group with full attention".to_owned();
            reasons.push((Reason::UnknownContent, 1, example));
        }
        if let Some((removals, example)) = &self.unseen_removals {
            reasons.push((Reason::UnknownEvent, *removals, example.clone()));
        }
        if self.forgets_names {
            let example = format!("names={KNOWN_NAMES_MAX}");
            reasons.push((Reason::ForgottenNames, 1, example));
        }
        reasons
    }

    /// Adds a non-empty event, and the time to live of its blocks.
    fn add(&mut self, location: Location, event: KvEvent, ttl: Option<Duration>) {
        debug_assert!(event.operations() > 0, "no event is empty");
        if !matches!(event, KvEvent::Stored { .. }) {
            self.add_postponed();
        }
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
    /// Undetermined: no block has shown it yet.
    Unknown,
    /// A name covers its block and the prefix.
    Chained,
    /// A name covers only its block.
    Unchained,
}

/// Normalises the batches of one source, in order.
#[derive(Debug)]
pub struct Normaliser {
    config: NormaliserConfig,
    naming: Naming,
    groups: Groups,
    further: FurtherGroups,
    known: KnownNames,
    learned: Learned,
    /// Copy of `learned` after the last batch, for readers.
    shared: Arc<Learned>,
    /// Multimodal hashes of one block; a buffer to reuse the allocation.
    multimodal: Vec<u64>,
    unknown_places: UnknownPlaces,
    /// Ranks with chunks that may have keys omitted by their events.
    doubted_chunks: BTreeSet<DpRank>,
    /// Ranks with a connector's chunks, as long as no chunk is doubted.
    chunk_ranks: BTreeSet<DpRank>,
    /// Unknown parents. Their children were assumed to inherit no keys.
    unknown_parents: RecentNames,
    /// Blocks that were dropped because they are shorter than the block size.
    partial_blocks: RecentNames,
}

impl Normaliser {
    /// Creates a normaliser for the start of a source's stream.
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
            further: FurtherGroups::default(),
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

    /// Resumes from the persisted knowledge of another normaliser of the same incarnation. `ranks` are all ranks
    /// with blocks: which of them have forgotten names, or have chunks, was not persisted.
    pub fn resume(
        &mut self,
        learned: Learned,
        names: impl IntoIterator<Item = (DpRank, BlockName, NameMeaning)>,
        ranks: &[DpRank],
    ) {
        self.groups =
            Groups::resumed(learned.main_group, learned.groups.iter().map(|group| group.number));
        self.further = FurtherGroups::resumed(&learned.groups);
        self.known.resume(names, if learned.forgot_names { ranks } else { &[] });
        if learned.splits_chunks && !learned.has_extra_keys {
            self.chunk_ranks = ranks.iter().copied().collect();
        } else if learned.splits_chunks && ranks.len() > 1 {
            // The first key came in a batch of one rank. Other ranks may have had no batch since.
            self.doubted_chunks = ranks.iter().copied().collect();
        }
        self.learned = learned;
        self.share_learned();
    }

    /// Facts that the source has shown and does not repeat. They must survive a restart of the index, because
    /// later events depend on them.
    #[must_use]
    pub const fn learned(&self) -> &Arc<Learned> {
        &self.shared
    }

    fn share_learned(&mut self) {
        self.learned.main_group = self.groups.main();
        if self.learned.groups != self.further.groups() {
            self.learned.groups = self.further.groups().to_vec();
        }
        self.learned.forgot_names = self.known.has_forgotten();
        if *self.shared != self.learned {
            self.shared = Arc::new(self.learned.clone());
        }
    }

    /// Forgets blocks whose time to live is over, although the source did not remove them.
    pub fn expire(&mut self, rank: DpRank, event: &KvEvent) {
        if let KvEvent::Gone { tier, names } | KvEvent::Removed { tier, names } = event {
            names.iter().for_each(|&name| self.known.removed(rank, name, *tier, true));
        }
    }

    /// Records that events were lost. The index drops what is not announced since, so the groups are declared
    /// again.
    pub fn doubt_blocks(&mut self) {
        self.further.declare_again();
    }

    /// Forgets all blocks of the source, which were dropped. The incarnation continues.
    pub fn forget_blocks(&mut self) {
        self.known = KnownNames::new(self.config.copy_mode, KNOWN_NAMES_MAX);
        self.further.declare_again();
        self.share_learned();
    }

    /// Begins a new incarnation of the source: resets all knowledge about the old one.
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
            lacks_main_group: false,
            lacks_groups: false,
            name_changes: Vec::new(),
            forgets_names: false,
            postponed: Vec::new(),
            doubted_chunks: 0,
            orphaned_blocks: 0,
            unseen_removals: None,
        };
        if self.doubted_chunks.remove(&rank) {
            self.drop_chunks(&mut out);
        }
        for event in batch.events {
            match event {
                RawEvent::Stored(stored) => {
                    self.declare_groups(&mut out);
                    self.take_stored(*stored, &mut out);
                }
                RawEvent::Removed(removed) => self.take_removed(removed, &mut out),
                RawEvent::Cleared(place) => self.take_cleared(&place, &mut out),
                RawEvent::Moved(moved) => {
                    self.declare_groups(&mut out);
                    self.take_moved(moved, &mut out);
                }
                RawEvent::Unknown(HARMLESS_KIND) => out.drops.add(DropReason::UnknownEvent, 1),
                RawEvent::Unknown(kind) => out.drops.add_unknown_event(kind),
                RawEvent::Unnamed => out.drops.add(DropReason::UnnamedObject, 1),
                RawEvent::StoredObject(stored) => {
                    self.take_stored(*stored, &mut out);
                    // Its block may lack other objects, and the store may evict it without an event.
                    let example = || (0, "object_key of a block".to_owned());
                    out.unseen_removals.get_or_insert_with(example).0 += 1;
                }
                RawEvent::Unreadable(unreadable) => {
                    out.drops.add(DropReason::Unreadable, count(unreadable.operations));
                    out.unreadable_events += 1;
                    out.first_unreadable.get_or_insert(unreadable);
                }
            }
        }
        out.add_postponed();
        out.lacks_main_group = !self.further.groups().is_empty() && self.groups.main().is_none();
        out.lacks_groups = self.further.lacks_groups(self.groups.main());
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

    /// Time to live of blocks at a location.
    fn ttl(&self, location: Location) -> Option<Duration> {
        let is_there =
            |(name, _): &&(String, Duration)| Location::of_medium(Some(name)) == Ok(location);
        self.config.medium_ttls.iter().find(is_there).map(|&(_, ttl)| ttl)
    }

    /// The location of an event's blocks, if the index stores it.
    fn location(&self, place: &Place<'_>) -> Result<Location, DropReason> {
        let location = Location::from_place(place)?;
        if location == Location::Pool && !self.config.has_pool {
            return Err(DropReason::Remote);
        }
        Ok(location)
    }

    /// Adds a location to blocks that an event states by name only.
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

    /// All names of the blocks in the index: a look-ahead block and a chunk have several names.
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

    /// Blocks per chunk at a location, if a connector stores chunks there.
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

/// An event kind without effect on the index: vLLM announces that a block is no longer in use.
const HARMLESS_KIND: &str = "BlockInactive";

/// Tier of a medium in the worker's own memory, by the engines' name of the medium.
#[must_use]
pub fn tier_of_medium(medium: &str) -> Option<Tier> {
    match Location::of_medium(Some(medium)).ok()? {
        Location::Worker(tier) => Some(tier),
        Location::Pool => None,
    }
}

/// Whether a medium, by the engines' name, is a store that workers share.
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
