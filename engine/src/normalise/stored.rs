//! Normalises stored events: derives local hashes and index names of their blocks.

use super::keys::{Adapter, KeyReader};
use super::namespace::BlockNamespace;
use super::place::Location;
use super::{
    DropReason, Naming, Normalised, Normaliser, StatedBlockSize, count, drop_operations, unchained,
};
use crate::decode::{EngineKind, ExtraKey, LookAhead, PerBlock, RawStored, RawTokens};
use kvasir_proto::hash::{
    Seed, chunk_block_name, leaf, local_hash, next_token, stem, stem_name, wide_local_hash,
};
use kvasir_proto::limits::WORKER_RANKS_MAX;
use kvasir_proto::types::{BlockName, DpRank, KvEvent, LocalHash, StoredBlock, Tier};
use std::iter::zip;
use std::mem::take;
use std::sync::Arc;

/// Tokens of an event, as little-endian integers.
#[derive(Debug, Clone, Copy)]
struct Tokens<'e> {
    bytes: &'e [u8],
    /// Bytes per token.
    width: usize,
}

impl Tokens<'_> {
    fn len(&self) -> usize {
        self.bytes.len() / self.width
    }

    /// First token of block number `block`, if the block exists and the token fits in 32 bits. Blocks have
    /// `block_bytes` bytes.
    fn first_of(&self, block: usize, block_bytes: usize) -> Option<u32> {
        let begin = block.checked_mul(block_bytes)?;
        let bytes = self.bytes.get(begin..begin.checked_add(self.width)?)?;
        let token = bytes.iter().rev().fold(0, |token: u64, &byte| token << 8 | u64::from(byte));
        u32::try_from(token).ok()
    }

    /// Local hash of one block with tokens of this width.
    fn hash(&self, block_le: &[u8], multimodal: &[u64], seed: Seed) -> LocalHash {
        if self.width == 8 {
            wide_local_hash(block_le, multimodal, seed)
        } else {
            local_hash(block_le, multimodal, seed)
        }
    }
}

/// Blocks of one event under construction, each the parent of the next.
struct Chain {
    parent: Option<BlockName>,
    blocks: Vec<StoredBlock>,
}

impl Normaliser {
    /// Converts a store. If it cannot be represented, counts its operations as dropped.
    pub(super) fn take_stored(&mut self, stored: RawStored<'_>, out: &mut Normalised) {
        let operations = stored.names.len();
        let place = stored.place;
        let medium = place.medium;
        let had_extra_keys = self.learned.has_extra_keys;
        if let Err(reason) = self.store(stored, out) {
            self.unknown_places.stored(reason, &place);
            drop_operations(reason, medium, operations, &mut out.drops);
        }
        if self.learned.has_extra_keys && !had_extra_keys {
            // Chunks of other ranks are dropped with their next batches.
            self.doubted_chunks = take(&mut self.chunk_ranks);
            self.doubted_chunks.remove(&out.rank);
            self.drop_chunks(out);
        }
    }

    /// Converts a store. In this order: naming, attention group, location, tokens, chunks of a connector, block
    /// sizes. Without the keys that determine a block's content, only the names are stored.
    fn store(&mut self, stored: RawStored<'_>, out: &mut Normalised) -> Result<(), DropReason> {
        self.learn_naming(&stored);
        self.check_naming()?;
        if let Err(reason) = self.groups.check_stored(&stored.place) {
            return self.store_further(&stored, reason, out);
        }
        let location = self.location(&stored.place)?;
        let tokens = match &stored.tokens {
            RawTokens::Ids(bytes) => Tokens { bytes, width: 4 },
            RawTokens::Wide(bytes) => Tokens { bytes, width: 8 },
            RawTokens::Pairs => return Err(DropReason::EaglePairs),
        };
        if has_key_lists(&stored) {
            self.learned.states_keys = Some(true);
        } else if location == Location::Worker(Tier::Device) && !tokens.bytes.is_empty() {
            self.learned.states_keys.get_or_insert(false);
        }
        if tokens.bytes.is_empty() {
            return self.store_without_tokens(stored, location, out);
        }
        match self.chunk_blocks(location) {
            Some(blocks) if self.is_chunk(&stored, blocks) => {
                return self.store_chunks(&stored, tokens, blocks, out);
            }
            // The end of a prompt is not a complete chunk.
            Some(blocks) if self.is_short_chunk(&stored, blocks) => {
                return Err(DropReason::PartialBlock);
            }
            Some(_) | None => {}
        }
        self.check_blocks(&stored, tokens, out)?;
        if self.lacks_keys(&stored, location) {
            self.add_names(location, stored.names, out);
            return Ok(());
        }
        let lora_names = Arc::clone(&self.config.lora_names);
        let adapter = Adapter::from_stored(&stored, &lora_names);
        let adapter = self.check_adapter(&stored, adapter, location, out);
        self.hash_blocks(&stored, tokens, &adapter, location, out);
        Ok(())
    }

    /// Whether an event omits its blocks' keys although the engine states keys elsewhere. Connectors omit the
    /// keys that the engine's own device events state.
    fn lacks_keys(&self, stored: &RawStored<'_>, location: Location) -> bool {
        let states_keys =
            has_key_lists(stored) || stored.multimodal.is_some() || stored.cache_salt.is_some();
        if states_keys || location == Location::Worker(Tier::Device) {
            return false;
        }
        // TensorRT-LLM and SGLang state salts and images in separate fields, for every medium.
        let has_fields = match self.config.engine {
            EngineKind::Vllm | EngineKind::Custom => self.learned.has_extra_keys,
            EngineKind::Sglang | EngineKind::Trtllm => false,
        };
        let is_vllm = self.config.engine == EngineKind::Vllm;
        self.learned.states_keys.unwrap_or(is_vllm) || has_fields
    }

    /// Stores blocks that came by name only, or with names and local hashes.
    fn store_without_tokens(
        &mut self,
        stored: RawStored<'_>,
        location: Location,
        out: &mut Normalised,
    ) -> Result<(), DropReason> {
        let Some(locals) = stored.local_hashes.as_ref() else {
            self.add_names(location, stored.names, out);
            return Ok(());
        };
        self.check_block_size(&stored, out)?;
        if locals.len() != stored.names.len() {
            return Err(DropReason::TokenCount);
        }
        let blocks = zip(&stored.names, locals);
        let blocks = blocks.map(|(&name, &local)| StoredBlock { name, local }).collect();
        self.add_chain(location, Chain { parent: stored.parent, blocks }, out);
        Ok(())
    }

    fn add_chain(&self, location: Location, chain: Chain, out: &mut Normalised) {
        let Chain { parent, blocks } = chain;
        if !blocks.is_empty() {
            let event = KvEvent::Stored { parent, tier: location.tier(), blocks };
            out.add(location, event, self.ttl(location));
        }
    }

    /// Determines from the first stored block with tokens whether names cover the prefix, or only the block's own
    /// tokens. No effect once that is known.
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

    /// Checks that an event's blocks are complete, have the right size, and have one name each.
    fn check_blocks(
        &mut self,
        stored: &RawStored<'_>,
        tokens: Tokens<'_>,
        out: &mut Normalised,
    ) -> Result<(), DropReason> {
        self.check_block_size(stored, out)?;
        let expected = count(stored.names.len()).checked_mul(u64::from(self.config.block_size));
        if expected != Some(count(tokens.len())) {
            return Err(DropReason::TokenCount);
        }
        Ok(())
    }

    /// Checks the size of an event's blocks.
    fn check_block_size(
        &mut self,
        stored: &RawStored<'_>,
        out: &mut Normalised,
    ) -> Result<(), DropReason> {
        let block_size = u64::from(self.config.block_size);
        if stored.block_size < block_size
            && let [name] = stored.names[..]
        {
            let rank = out.rank;
            let partial = &mut self.partial_blocks;
            // A partial block ends a prompt. A child of a partial block shows that blocks are smaller than
            // registered.
            let follows_partial =
                stored.parent.is_some_and(|parent| partial.contains(rank, parent));
            partial.record_name(rank, name);
            if !follows_partial {
                return Err(DropReason::PartialBlock);
            }
        }
        let drops = &mut out.drops;
        let mut note = |tokens| {
            let medium = stored.place.medium.unwrap_or_default().into();
            drops.note_block_size(StatedBlockSize { tokens, medium });
        };
        // Several smaller blocks are not partial blocks, but another configuration.
        if stored.block_size != block_size {
            note(stored.block_size);
            return Err(DropReason::BlockSize);
        }
        if let Some((least, greatest)) = stored.num_block_tokens
            && (least, greatest) != (block_size, block_size)
        {
            note(if least == block_size { greatest } else { least });
            return Err(DropReason::NumBlockTokens);
        }
        Ok(())
    }

    // === blocks with tokens ===

    /// Hashes the tokens of an event with complete blocks, and adds the index events.
    fn hash_blocks(
        &mut self,
        stored: &RawStored<'_>,
        tokens: Tokens<'_>,
        adapter: &Adapter<'_>,
        location: Location,
        out: &mut Normalised,
    ) {
        self.learned.looks_ahead |= stored.look_ahead.is_some();
        let block_size = u64::from(self.config.block_size);
        let mut keys = KeyReader::new(stored, adapter, block_size, self.learned.image_keys);
        let states_keys = has_key_lists(stored) || stored.multimodal.is_some();
        let mut multimodal = take(&mut self.multimodal);
        let positions = if stored.look_ahead.is_some() { 2 } else { 1 };
        let blocks = Vec::with_capacity(stored.names.len() * positions);
        let mut chain = Chain { parent: stored.parent, blocks };
        let mut parent: Option<BlockName> = stored.parent;
        let mut namespace = adapter.namespace;
        let unknown = stored.parent.filter(|&at| !self.known.contains(out.rank, at));
        unknown.into_iter().for_each(|parent| self.unknown_parents.record_name(out.rank, parent));
        let block_bytes = (tokens.bytes.len() / stored.names.len().max(1)).max(1);
        let blocks = zip(&stored.names, tokens.bytes.chunks_exact(block_bytes));
        for (at, (&name, block_le)) in blocks.enumerate() {
            if !states_keys && self.known.has_own_keys(out.rank, name) {
                let done = Chain { parent: Some(name), blocks: Vec::new() };
                self.add_chain(location, std::mem::replace(&mut chain, done), out);
                self.add_names(location, vec![name], out);
                let known = self.known.find(out.rank, name, adapter.namespace);
                (namespace, parent) = (known.unwrap_or(namespace), None);
                continue;
            }
            let own = keys.next_block(name, &mut multimodal);
            namespace = own
                .or_else(|| self.remembered(out.rank, name, parent, adapter))
                .unwrap_or(namespace);
            let next = stored.look_ahead.as_ref().map(|tokens| tokens.get(at).copied());
            let next = match next {
                None => None,
                // Within an event, the tokens of the next block also contain this token.
                Some(Some(LookAhead::Token(token))) => {
                    let token = tokens.first_of(at + 1, block_bytes).unwrap_or(token);
                    Some(next_token(token, keys.next_multimodal()))
                }
                // The engine's hash covers content that queries cannot state.
                Some(Some(LookAhead::Other) | None) => {
                    namespace = namespace.with_unknown(name);
                    Some(0)
                }
            };
            let has_own_keys = !multimodal.is_empty() || !keys.next_multimodal().is_empty();
            // Pool names are not remembered: their number would only grow.
            if let Location::Worker(tier) = location
                && !(self.known.is_idle() && namespace.is_plain() && !has_own_keys)
            {
                let is_new = self.known.stored(out.rank, name, namespace, has_own_keys, tier);
                let is_parent = || self.unknown_parents.contains(out.rank, name);
                if is_new && namespace.is_inherited() && is_parent() {
                    out.orphaned_blocks += 1;
                }
            }
            let local = tokens.hash(block_le, &multimodal, namespace.seed);
            match next {
                None => chain.blocks.push(StoredBlock { name, local }),
                Some(next) => chain.blocks.extend(two_positions(name, local, next)),
            }
            if !namespace.matchable {
                if out.unmatchable_blocks == 0 {
                    out.unmatchable_example = not_understood(stored, adapter);
                }
                out.unmatchable_blocks += 1;
            }
            // The event's later blocks follow the previous one, in its namespace.
            parent = None;
        }
        keys.finish(&mut self.learned);
        self.multimodal = multimodal;
        self.add_chain(location, chain, out);
    }

    /// The remembered namespace of a block that does not state one: its own, or its parent's.
    fn remembered(
        &self,
        rank: DpRank,
        name: BlockName,
        parent: Option<BlockName>,
        adapter: &Adapter<'_>,
    ) -> Option<BlockNamespace> {
        if self.known.is_idle() {
            return None;
        }
        let known = self.known.find(rank, name, adapter.namespace);
        known.or_else(|| self.known.namespace_after(rank, parent?, adapter.namespace))
    }

    // === chunks ===

    /// Whether an event states keys of its blocks besides the adapter.
    fn has_other_keys(&self, stored: &RawStored<'_>) -> bool {
        let adapter = Adapter::from_stored(stored, &self.config.lora_names).name;
        let is_other = |(_, key): &(u32, ExtraKey<'_>)| *key != ExtraKey::Text(adapter);
        let has_others = |list: &PerBlock<'_>| list.keys.iter().any(is_other);
        stored.cache_salt.is_some_and(|salt| !salt.is_empty())
            || [&stored.extra_keys, &stored.multimodal].into_iter().flatten().any(has_others)
    }

    /// Drops the chunks of a rank, because their events turned out to omit keys.
    pub(super) fn drop_chunks(&mut self, out: &mut Normalised) {
        if !self.learned.splits_chunks {
            return;
        }
        for tier in Tier::ALL {
            if self.chunk_blocks(Location::Worker(tier)).is_some() {
                self.known.cleared(out.rank, Some(tier));
                out.add(Location::Worker(tier), KvEvent::ClearedTier(tier), None);
                out.doubted_chunks += 1;
            }
        }
    }

    /// Whether an event's blocks are chunks of a connector, each as long as several blocks.
    fn is_chunk(&self, stored: &RawStored<'_>, blocks: u32) -> bool {
        let tokens = u64::from(self.config.block_size) * u64::from(blocks);
        blocks > 1 && stored.block_size == tokens
    }

    /// Whether an event's only block is an incomplete chunk, as LMCache stores with `save_unfull_chunk`.
    fn is_short_chunk(&self, stored: &RawStored<'_>, blocks: u32) -> bool {
        let block_size = u64::from(self.config.block_size);
        let is_shorter = stored.block_size < block_size * u64::from(blocks);
        stored.names.len() == 1 && is_shorter && stored.block_size != block_size
    }

    /// Stores chunks of a connector with its own hashes, such as LMCache: every block of a chunk gets a name.
    /// LMCache 0.5.6 sends one token more than the chunk has, and 0 instead of an unknown parent.
    fn store_chunks(
        &mut self,
        stored: &RawStored<'_>,
        tokens: Tokens<'_>,
        blocks: u32,
        out: &mut Normalised,
    ) -> Result<(), DropReason> {
        let location = self.location(&stored.place)?;
        let chunk_tokens = stored.block_size;
        let expected = count(stored.names.len()).saturating_mul(chunk_tokens);
        let sent = count(tokens.len());
        if sent != expected && sent != expected + 1 {
            return Err(DropReason::TokenCount);
        }
        if stored.parent == Some(BlockName(0)) {
            return Err(DropReason::UnknownParent);
        }
        if self.learned.has_extra_keys && self.lacks_keys(stored, location) {
            return Err(DropReason::KeysAbsent);
        }
        if self.has_other_keys(stored) {
            // The keys cannot be assigned to blocks of the chunk.
            self.learned.has_extra_keys = true;
            return Err(DropReason::KeysAbsent);
        }
        self.learned.splits_chunks = true;
        if !self.learned.has_extra_keys && self.chunk_ranks.len() < WORKER_RANKS_MAX {
            self.chunk_ranks.insert(out.rank);
        }
        let lora_names = Arc::clone(&self.config.lora_names);
        let adapter = Adapter::from_stored(stored, &lora_names);
        let seed = self.check_adapter(stored, adapter, location, out).namespace.seed;
        let block_bytes = usize::try_from(self.config.block_size).unwrap_or(1) * tokens.width;
        let mut bytes = tokens.bytes.chunks_exact(block_bytes);
        let after = (0..blocks).rev();
        let names = stored
            .names
            .iter()
            .flat_map(|&chunk| after.clone().map(move |after| chunk_block_name(chunk, after)));
        let blocks = names
            .zip(&mut bytes)
            .map(|(name, block_le)| StoredBlock { name, local: tokens.hash(block_le, &[], seed) });
        let chain = Chain { parent: stored.parent, blocks: blocks.collect() };
        self.add_chain(location, chain, out);
        Ok(())
    }
}

/// Whether an event has `extra_keys` of its blocks. A list of another length with only nulls does not count.
fn has_key_lists(stored: &RawStored<'_>) -> bool {
    let is_whole = |list: &PerBlock<'_>| !list.keys.is_empty() || list.blocks == stored.names.len();
    stored.extra_keys.as_ref().is_some_and(is_whole)
}

/// Whether a block's hash covers later content that queries cannot state.
fn hides_next_token(stored: &RawStored<'_>) -> bool {
    stored.look_ahead.as_ref().is_some_and(|next| next.contains(&LookAhead::Other))
}

/// The field that makes an event's blocks unmatchable, for reports. A block inherits this property from its
/// parent.
fn not_understood(stored: &RawStored<'_>, adapter: &Adapter<'_>) -> String {
    match stored.lora_id.filter(|_| !adapter.namespace.matchable) {
        Some(number) => format!("lora_id={number}"),
        None if hides_next_token(stored) => "lookahead_token_ids".to_owned(),
        None if has_key_lists(stored) => "extra_keys".to_owned(),
        None => "parent_block_hash".to_owned(),
    }
}

/// The two positions of a look-ahead block.
fn two_positions(name: BlockName, local: LocalHash, next: u32) -> [StoredBlock; 2] {
    [
        StoredBlock { name: stem_name(name), local: stem(local) },
        StoredBlock { name, local: leaf(next) },
    ]
}
