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
//!    ([`KvEvent::StoredNames`]);
//! 5. tokens must be ids, blocks complete and of the source's size, names as many as blocks;
//! 6. adapter, salt and multimodal content give the namespace (`namespace.rs`), and with the
//!    tokens the local hash. Local hashes in place of tokens already cover all of that.
//!
//! Tokens are hashed and dropped here. Cost per block is the hash; nothing is allocated
//! per block, and per event only the list for the index. While no block of the source is salted,
//! no table is consulted.

mod drops;
#[cfg(test)]
mod groups_test;
mod keys;
mod namespace;
#[cfg(test)]
mod namespace_test;
#[cfg(test)]
mod normalise_test;
mod place;
mod unchained;

pub use drops::{DropKind, DropReason, Drops, UNKNOWN_MEDIA_MAX, UNKNOWN_MEDIUM_BYTES_MAX};
pub use namespace::SALTED_NAMES_MAX;

use crate::decode::{
    Batch, EngineKind, Place, RawEvent, RawRemoved, RawStored, RawTokens, Unreadable,
};
use keys::{Adapter, KeyReader};
use kvasir_proto::hash::local_hash;
use kvasir_proto::types::{BlockName, DpRank, KvEvent, StoredBlock, Tier};
use namespace::SaltedNames;
use place::{Groups, Location};
use std::{collections::HashMap, iter::zip, mem::take, time::Duration};

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
    pub lora_names: HashMap<u64, String>,
    /// How long blocks on a medium are held after they were last announced, for media whose connector
    /// never removes. It applies to the whole tier of the medium, or to the pool: blocks are held by tier.
    pub medium_ttls: Vec<(String, Duration)>,
    /// Whether there is a pool for what the engine announces of a store that workers share; without one, that is
    /// dropped as [`DropReason::Remote`].
    pub has_pool: bool,
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
}

impl Normalised {
    /// Whether what the source holds can no longer be relied on: some of what it published is unreadable, or was
    /// misinterpreted.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        self.unreadable_events > 0 || self.drops.count(DropReason::PresumedGroup) > 0
    }

    /// Adds an event that is not empty, and how long what it stores is held.
    fn add(&mut self, location: Location, event: KvEvent, ttl: Option<Duration>) {
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
    salted: SaltedNames,
    /// Multimodal hashes of one block, retained to reuse the allocation.
    multimodal: Vec<u64>,
}

impl Normaliser {
    /// A normaliser that has seen nothing.
    #[must_use]
    pub fn new(config: NormaliserConfig) -> Self {
        Self::with_salted_names(config, SALTED_NAMES_MAX)
    }

    fn with_salted_names(config: NormaliserConfig, limit: usize) -> Self {
        let naming = match config.engine {
            EngineKind::Sglang => Naming::Unknown,
            EngineKind::Vllm | EngineKind::Trtllm | EngineKind::Custom => Naming::Chained,
        };
        Self {
            config,
            naming,
            groups: Groups::default(),
            salted: SaltedNames::new(limit),
            multimodal: Vec::new(),
        }
    }

    /// Continues for another normaliser of the same incarnation, which had learned this main group.
    pub fn resume(&mut self, main_group: Option<u32>) {
        self.groups = Groups::resumed(main_group);
    }

    /// The group whose blocks count, once the source has stated it. Engines state it with what they store
    /// only, so it must survive a restart of the index for removals to be understood.
    #[must_use]
    pub const fn main_group(&self) -> Option<u32> {
        self.groups.main()
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
        };
        for event in batch.events {
            match event {
                RawEvent::Stored(stored) => self.take_stored(*stored, &mut out),
                RawEvent::Removed(removed) => self.take_removed(removed, &mut out),
                RawEvent::Cleared => {
                    self.salted.cleared(rank);
                    out.events.push(KvEvent::Cleared);
                }
                RawEvent::Unknown => out.drops.add(DropReason::UnknownEvent, 1),
                RawEvent::Unreadable(unreadable) => {
                    out.drops.add(DropReason::Unreadable, count(unreadable.operations));
                    out.unreadable_events += 1;
                    out.first_unreadable.get_or_insert(unreadable);
                }
            }
        }
        let mut all = out.events.iter().chain(&out.pool_events);
        debug_assert!(all.all(|event| event.operations() > 0), "no event is empty");
        debug_assert!(
            out.expiring.last().is_none_or(|(event, _)| *event < out.events.len())
                && out.pool_expiring.last().is_none_or(|(at, _)| *at < out.pool_events.len()),
            "times to live belong to events"
        );
        out
    }

    fn take_stored(&mut self, stored: RawStored<'_>, out: &mut Normalised) {
        let operations = stored.names.len();
        let medium = stored.place.medium;
        match self.stored(stored, out) {
            Ok((location, event)) if operations > 0 => {
                out.add(location, event, self.ttl(location));
            }
            Ok(_) => {}
            Err(reason) => drop_operations(reason, medium, operations, &mut out.drops),
        }
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

    fn take_removed(&mut self, removed: RawRemoved<'_>, out: &mut Normalised) {
        let RawRemoved { mut names, place, remaining } = removed;
        let counts = self.check_naming().and_then(|()| self.groups.check_removed(place.group));
        match counts.and_then(|()| self.location(&place)) {
            Ok(location) => {
                let counted = remaining.is_some();
                if let Some(remaining) = remaining {
                    let all = names.len();
                    let mut left = remaining.into_iter();
                    names.retain(|_| left.next() == Some(0));
                    out.drops.add(DropReason::CopiesRemain, count(all - names.len()));
                }
                if names.is_empty() {
                    return;
                }
                if let Location::Worker(tier) = location
                    && !self.salted.is_idle()
                {
                    names.iter().for_each(|&name| self.salted.removed(out.rank, name, tier));
                }
                let tier = location.tier();
                // A store has one copy of each block.
                let event = if counted || location == Location::Pool {
                    KvEvent::Gone { tier, names }
                } else {
                    KvEvent::Removed { tier, names }
                };
                out.add(location, event, None);
            }
            Err(reason) => drop_operations(reason, place.medium, names.len(), &mut out.drops),
        }
    }

    fn stored(
        &mut self,
        stored: RawStored<'_>,
        out: &mut Normalised,
    ) -> Result<(Location, KvEvent), DropReason> {
        self.learn_naming(&stored);
        self.check_naming()?;
        self.groups.check_stored(&stored.place)?;
        let location = self.location(&stored.place)?;
        let RawTokens::Ids(ids_le) = &stored.tokens else {
            return Err(DropReason::EaglePairs);
        };
        if ids_le.is_empty() {
            let event = self.stored_without_tokens(stored, location, out)?;
            return Ok((location, event));
        }
        self.check_blocks(&stored, ids_le, &mut out.drops)?;
        let blocks = self.hash_blocks(&stored, ids_le, location, out);
        let (parent, tier) = (stored.parent, location.tier());
        Ok((location, KvEvent::Stored { parent, tier, blocks }))
    }

    /// Blocks of which only names came, or names and local hashes.
    fn stored_without_tokens(
        &mut self,
        stored: RawStored<'_>,
        location: Location,
        out: &mut Normalised,
    ) -> Result<KvEvent, DropReason> {
        if let Some(locals) = &stored.local_hashes {
            self.check_block_size(&stored, &mut out.drops)?;
            if locals.len() != stored.names.len() {
                return Err(DropReason::TokenCount);
            }
        }
        let names = stored.names;
        if let Location::Worker(tier) = location
            && !self.salted.is_idle()
        {
            names.iter().for_each(|&name| self.salted.stored_name(out.rank, name, tier));
        }
        let tier = location.tier();
        let Some(locals) = stored.local_hashes else {
            return Ok(KvEvent::StoredNames { tier, names });
        };
        let blocks = zip(names, locals).map(|(name, local)| StoredBlock { name, local });
        Ok(KvEvent::Stored { parent: stored.parent, tier, blocks: blocks.collect() })
    }

    /// Learns from the first stored block whether names cover the prefix.
    fn learn_naming(&mut self, stored: &RawStored<'_>) {
        if self.naming != Naming::Unknown {
            return;
        }
        let (Some(&name), RawTokens::Ids(ids_le)) = (stored.names.first(), &stored.tokens) else {
            return;
        };
        let block_bytes = usize::try_from(stored.block_size).unwrap_or(usize::MAX);
        let Some(block_le) = ids_le.get(..block_bytes.saturating_mul(4)) else {
            return;
        };
        if !block_le.is_empty() {
            let unchained = unchained::is_unchained(stored.parent, name, block_le);
            self.naming = if unchained { Naming::Unchained } else { Naming::Chained };
        }
    }

    fn check_naming(&self) -> Result<(), DropReason> {
        match self.naming {
            Naming::Unchained => Err(DropReason::UnchainedNames),
            Naming::Unknown | Naming::Chained => Ok(()),
        }
    }

    /// Checks that an event's blocks are complete, of the right size, and as many as its names.
    fn check_blocks(
        &self,
        stored: &RawStored<'_>,
        ids_le: &[u8],
        drops: &mut Drops,
    ) -> Result<(), DropReason> {
        self.check_block_size(stored, drops)?;
        let block_bytes = u64::from(self.config.block_size) * 4;
        let expected = count(stored.names.len()).checked_mul(block_bytes);
        if expected != Some(count(ids_le.len())) {
            return Err(DropReason::TokenCount);
        }
        Ok(())
    }

    /// Checks that an event's blocks are of the right size.
    fn check_block_size(
        &self,
        stored: &RawStored<'_>,
        drops: &mut Drops,
    ) -> Result<(), DropReason> {
        let block_size = u64::from(self.config.block_size);
        if stored.block_size < block_size && stored.names.len() == 1 {
            return Err(DropReason::PartialBlock);
        }
        // Several blocks of a smaller size are no partial block, but another configuration.
        if stored.block_size != block_size {
            drops.note_block_size(stored.block_size);
            return Err(DropReason::BlockSize);
        }
        if let Some((least, greatest)) = stored.num_block_tokens
            && (least, greatest) != (block_size, block_size)
        {
            drops.note_block_size(if least == block_size { greatest } else { least });
            return Err(DropReason::NumBlockTokens);
        }
        Ok(())
    }

    /// Hashes the tokens of an event whose blocks are complete.
    fn hash_blocks(
        &mut self,
        stored: &RawStored<'_>,
        ids_le: &[u8],
        location: Location,
        out: &mut Normalised,
    ) -> Vec<StoredBlock> {
        let adapter = Adapter::of(stored, &self.config.lora_names);
        let mut keys = KeyReader::new(stored, &adapter);
        let mut multimodal = take(&mut self.multimodal);
        let mut blocks = Vec::with_capacity(stored.names.len());
        let mut parent: Option<BlockName> = stored.parent;
        let mut namespace = adapter.namespace;
        let block_bytes = ids_le.len() / stored.names.len().max(1);
        for (&name, block_le) in zip(&stored.names, ids_le.chunks_exact(block_bytes.max(1))) {
            let own = keys.next_block(name, &mut multimodal);
            namespace = own
                .or_else(|| self.remembered(out.rank, name, parent, &adapter))
                .unwrap_or(namespace);
            // What is in a pool stays there: names of its salted blocks would only ever become more.
            if let Location::Worker(tier) = location {
                self.salted.stored(out.rank, name, namespace, tier);
            }
            out.unmatchable_blocks += u64::from(!namespace.matchable);
            blocks.push(StoredBlock {
                name,
                local: local_hash(block_le, &multimodal, namespace.seed),
            });
            // Later blocks of the event follow the one before, in its namespace.
            parent = None;
        }
        debug_assert!(blocks.len() == stored.names.len(), "a block for each name");
        self.multimodal = multimodal;
        blocks
    }

    /// Namespace of a block that states none itself: the known one, or that of its parent.
    fn remembered(
        &self,
        rank: DpRank,
        name: BlockName,
        parent: Option<BlockName>,
        adapter: &Adapter<'_>,
    ) -> Option<namespace::BlockNamespace> {
        if self.salted.is_idle() {
            return None;
        }
        let known = self.salted.find(rank, name, adapter.namespace);
        known.or_else(|| self.salted.after(rank, parent?, adapter.namespace))
    }
}

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
