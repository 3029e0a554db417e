//! Tests each row of the two tables of document 002.

use super::*;
use crate::events::{Change, EventManager};
use crate::identity::{BlockIdentity, Checksum, Priority};
use crate::pool::BlockPool;
use crate::store::{DuplicatePolicy, PoolConfig, RegisterError, SlotState};
use crate::tier::{BlockTier, Host};
use kvasir_proto::hash::{self, Namespace};
use kvasir_proto::types::{LocalHash, SequenceHash};
use std::sync::Arc;

const BLOCK_TOKENS: u32 = 4;

struct Tier {
    events: Arc<EventManager>,
    pool: BlockPool<Host>,
}

impl Tier {
    fn new(blocks: u32) -> Self {
        Self::with(PoolConfig::new(blocks, BLOCK_TOKENS))
    }

    fn with(config: PoolConfig) -> Self {
        let events = EventManager::new(1_000);
        let pool = BlockPool::new(config, Arc::clone(&events)).expect("a pool");
        Self { events, pool }
    }

    fn mutable(&self) -> MutableBlock<Host> {
        self.pool.get_mutable_block().expect("a block")
    }

    fn complete(&self, local: u64) -> CompleteBlock<Host> {
        self.mutable().complete(BlockIdentity::first(LocalHash(local))).expect("it is consistent")
    }

    fn registered(&self, local: u64) -> RegisteredBlock<Host> {
        self.complete(local).register().expect("it registers").into_block()
    }

    fn changes(&self) -> Vec<Change> {
        let mut events = Vec::new();
        self.events.read(usize::MAX, &mut events).expect("no overflow");
        events.into_iter().map(|event| event.change).collect()
    }
}

fn seed() -> hash::Seed {
    Namespace { lora_name: "", cache_salt: "salt" }.seed()
}

// === The table of states ===

/// Row Reset of document 002: the block belongs to no sequence, and the pool can allocate it again.
#[test]
fn reset_is_free_and_reusable() {
    let tier = Tier::new(1);
    assert_eq!(tier.pool.stats().free, 1);
    let block = tier.mutable();
    let slot = block.slot();
    assert_eq!(MutableBlock::<Host>::STATE, BlockState::Reset);
    assert_eq!(tier.pool.slot_state(slot), Some(SlotState::Mutable));
    drop(block);
    assert_eq!(tier.pool.slot_state(slot), Some(SlotState::Free));
    assert_eq!(tier.mutable().slot(), slot);
}

/// Row Partial: the handle that began the sequence owns the block and fills it.
#[test]
fn partial_accumulates_tokens_of_its_owner() {
    let tier = Tier::new(1);
    let mut block = tier.mutable().init_sequence(seed());
    assert_eq!(PartialBlock::<Host>::STATE, BlockState::Partial);
    block.add_token(1).expect("room");
    assert_eq!(block.add_tokens(&[2, 3]), &[] as &[u32]);
    assert_eq!((block.tokens(), block.room()), (3, 1));
    assert_eq!(block.add_tokens(&[4, 5, 6]), &[5, 6]);
    assert_eq!(block.add_token(7), Err(BlockFull));
    assert_eq!(block.tokens(), 4);
}

/// Row Complete: the block is full, and only its owner can access it.
#[test]
fn complete_is_not_visible() {
    let tier = Tier::new(1);
    let block = tier.complete(1);
    assert_eq!(CompleteBlock::<Host>::STATE, BlockState::Complete);
    assert!(tier.pool.match_prefix(&[block.identity().sequence]).is_empty());
    assert_eq!(tier.changes(), []);
}

/// Row Registered: lookups find the block, and several handles may exist.
#[test]
fn registered_is_found_and_shared() {
    let tier = Tier::new(1);
    let block = tier.registered(1);
    assert_eq!(RegisteredBlock::<Host>::STATE, BlockState::Registered);
    let found = tier.pool.match_prefix(&[block.identity().sequence]);
    assert_eq!(found[0].slot(), block.slot());
    drop(block);
    assert_eq!(tier.pool.stats().active, 1, "the other owner keeps it");
    drop(found);
    assert_eq!(tier.pool.stats().inactive, 1);
    assert_eq!(tier.changes(), [Change::Register]);
}

// === The table of transitions ===

/// Reset → Partial by `init_sequence(salt_hash)`; the salt is in the hash.
#[test]
fn init_sequence_begins_a_sequence_with_a_salt() {
    let tier = Tier::new(2);
    let of = |salt: hash::Seed| {
        let mut block = tier.mutable().init_sequence(salt);
        assert!(block.add_tokens(&[1, 2, 3, 4]).is_empty());
        *block.commit().expect("it is full").identity()
    };
    let plain = Namespace::default().seed();
    assert_ne!(of(plain).sequence, of(seed()).sequence);
    assert_eq!(of(seed()).position, 0);
}

/// Partial → Complete by `commit()`: the block must be full. Otherwise it is returned with its tokens.
#[test]
fn commit_needs_a_full_block() {
    let tier = Tier::new(1);
    let mut block = tier.mutable().init_sequence(seed());
    assert!(block.add_tokens(&[1, 2, 3]).is_empty());
    let refused = block.commit().expect_err("it is not full");
    assert_eq!(refused.reason, CommitError::NotFull { tokens: 3, block_tokens: 4 });
    assert_eq!(refused.to_string(), "the block has 3 of 4 tokens");
    let mut block = refused.block;
    block.add_token(4).expect("room");
    assert!(block.commit().is_ok());
}

/// Complete → Registered by `register()`; only a complete block has this method.
///
/// The hashes are the same as in a query for the prompt.
#[test]
fn registered_names_are_those_of_queries() {
    let tier = Tier::new(8);
    let prompt: Vec<u32> = (100..118).collect();
    let mut rest = &prompt[..];
    let mut before: Option<BlockIdentity> = None;
    let mut blocks = Vec::new();
    while rest.len() >= 4 {
        let block = tier.mutable();
        let mut block = match &before {
            None => block.init_sequence(seed()),
            Some(before) => block.continue_sequence(seed(), before),
        };
        rest = block.add_tokens(rest);
        let complete = block.commit().expect("it is full");
        before = Some(*complete.identity());
        blocks.push(complete.register().expect("it registers").into_block());
    }
    let mut locals = Vec::new();
    hash::local_hashes(&hash::tokens_le(&prompt), 4, seed(), &[], &mut locals);
    let names: Vec<SequenceHash> = hash::sequence_hashes(&locals).collect();
    let found: Vec<_> = tier.pool.match_prefix(&names).iter().map(Block::slot).collect();
    assert_eq!(found, blocks.iter().map(Block::slot).collect::<Vec<_>>());
    assert_eq!(found.len(), 4, "18 tokens are four whole blocks");
    let identities: Vec<_> = BlockIdentity::chain(&locals).collect();
    assert_eq!(identities, blocks.iter().map(|at| *at.identity()).collect::<Vec<_>>());
}

/// Multimodal content changes the hash as in a query, independent of its order.
#[test]
fn multimodal_content_is_in_the_name() {
    let tier = Tier::new(1);
    let mut block = tier.mutable().init_sequence(seed());
    assert!(block.add_tokens(&[1, 2, 3, 4]).is_empty());
    block.add_multimodal(9).expect("room");
    block.add_multimodal(3).expect("room");
    let block = block.commit().expect("it is full");
    let span = |hash| hash::MultimodalSpan { hash, start: 0, end: 4 };
    let mut locals = Vec::new();
    let tokens = hash::tokens_le(&[1, 2, 3, 4]);
    hash::local_hashes(&tokens, 4, seed(), &[span(3), span(9)], &mut locals);
    assert_eq!(block.identity().local, locals[0]);
}

/// Registered → Reset by dropping the registration: automatic, with a Remove event.
#[test]
fn eviction_drops_the_registration() {
    let tier = Tier::new(1);
    let block = tier.registered(1);
    let slot = block.slot();
    let sequence = block.identity().sequence;
    drop(block);
    let again = tier.mutable();
    assert_eq!(again.slot(), slot);
    assert!(!tier.pool.contains(sequence));
    assert_eq!(tier.changes(), [Change::Register, Change::Remove]);
}

/// Dropping the complete pool has the same effect.
#[test]
fn the_end_of_a_pool_removes_its_blocks() {
    let tier = Tier::new(2);
    let block = tier.registered(1);
    drop(tier.registered(2));
    drop(tier.pool);
    assert_eq!(tier.events.image().registrations.len(), 2, "a block keeps its pool");
    drop(block);
    assert!(tier.events.image().registrations.is_empty());
}

/// Partial → Reset: aborted explicitly or by a drop.
#[test]
fn an_aborted_sequence_frees_its_block() {
    let tier = Tier::new(1);
    let mut block = tier.mutable().init_sequence(seed());
    block.add_token(1).expect("room");
    let block = block.reset().init_sequence(seed());
    assert_eq!(block.tokens(), 0);
    drop(block);
    assert_eq!(tier.pool.stats().free, 1);
}

/// Complete → Reset: invalidated explicitly or by a drop.
#[test]
fn an_invalidated_block_is_free() {
    let tier = Tier::new(1);
    let block = tier.complete(1).reset();
    drop(block);
    assert_eq!(tier.pool.stats().free, 1);
    drop(tier.complete(1));
    assert_eq!(tier.pool.stats().free, 1);
    assert_eq!(tier.changes(), []);
}

// === Beyond the tables ===

#[test]
fn a_duplicate_keeps_its_primary_alive() {
    let tier = Tier::new(3);
    let primary = tier.registered(1);
    let slot = primary.slot();
    let Registration::Duplicate(duplicate) = tier.complete(1).register().expect("it registers")
    else {
        panic!("duplicates are allowed");
    };
    assert_ne!(duplicate.slot(), slot);
    drop(primary);
    assert_eq!(tier.pool.slot_state(slot), Some(SlotState::Active));
    assert_eq!(tier.pool.match_prefix(&[duplicate.identity().sequence])[0].slot(), slot);
    let twin = duplicate.clone();
    drop(duplicate);
    assert_eq!(tier.pool.stats().duplicates, 1);
    drop(twin);
    assert_eq!(tier.pool.slot_state(slot), Some(SlotState::Inactive));
    assert_eq!((tier.pool.stats().free, tier.pool.stats().duplicates), (2, 0));
    assert_eq!(tier.changes(), [Change::Register]);
}

#[test]
fn a_rejected_duplicate_becomes_its_primary() {
    let mut config = PoolConfig::new(2, BLOCK_TOKENS);
    config.duplicates = DuplicatePolicy::Reject;
    let tier = Tier::with(config);
    let slot = tier.registered(1).slot();
    let Registration::Existing(existing) = tier.complete(1).register().expect("it registers")
    else {
        panic!("duplicates are rejected");
    };
    assert_eq!(existing.slot(), slot);
    let stats = tier.pool.stats();
    assert_eq!((stats.free, stats.active, stats.duplicates_rejected), (1, 1, 1));
    drop(existing);
    assert_eq!(tier.pool.stats().inactive, 1);
}

/// Two different contents with the same hash are never mixed up.
#[test]
fn contradicting_hashes_are_refused_and_the_block_comes_back() {
    let tier = Tier::new(2);
    let _first = tier.registered(1);
    let claimed = BlockIdentity { local: LocalHash(2), ..BlockIdentity::first(LocalHash(1)) };
    let block = tier.mutable().complete(claimed).expect("it is consistent");
    let refused = block.register().expect_err("it contradicts");
    assert_eq!(refused.reason, RegisterError::Conflict);
    assert_eq!(*refused.block.identity(), claimed);
    drop(refused);
    assert_eq!(tier.pool.stats().free, 1);
    assert_eq!(tier.pool.stats().conflicts, 1);
}

#[test]
fn a_stated_identity_must_be_consistent() {
    let tier = Tier::new(1);
    let rootless = BlockIdentity { position: 1, ..BlockIdentity::first(LocalHash(1)) };
    let refused = tier.mutable().complete(rootless).expect_err("it has no parent");
    assert_eq!(refused.reason, IdentityError);
    assert_eq!(tier.pool.stats().mutable, 1);
    drop(refused);
    assert_eq!(tier.pool.stats().free, 1);
}

#[test]
fn a_weak_handle_resurrects_until_the_block_is_evicted() {
    let tier = Tier::new(1);
    let block = tier.registered(1);
    let weak = block.downgrade();
    drop(block);
    assert_eq!(tier.pool.stats().inactive, 1);
    let block = weak.upgrade().expect("it is inactive");
    assert_eq!(tier.pool.stats().active, 1);
    drop(block);
    drop(tier.mutable());
    assert!(weak.upgrade().is_none(), "it was evicted");
    drop(tier.registered(1));
    assert!(weak.upgrade().is_none(), "the same content, in another life");
}

#[test]
fn a_withdrawn_block_is_not_found_and_its_slot_waits_for_its_users() {
    let tier = Tier::new(1);
    let block = tier.registered(1);
    let user = block.clone();
    let weak = block.downgrade();
    let slot = block.slot();
    assert!(block.withdraw());
    assert!(!user.is_registered());
    assert!(!user.withdraw(), "once");
    assert!(!tier.pool.contains(block.identity().sequence));
    assert!(weak.upgrade().is_none());
    assert_eq!(tier.changes(), [Change::Register, Change::Remove]);
    drop(block);
    assert!(tier.pool.get_mutable_block().is_err());
    assert_eq!(tier.pool.slot_state(slot), Some(SlotState::Withdrawn));
    drop(user);
    assert_eq!(tier.pool.slot_state(slot), Some(SlotState::Free));
}

/// Withdrawing a duplicate affects only its own bytes, not the primary block.
#[test]
fn a_withdrawn_duplicate_leaves_its_primary() {
    let tier = Tier::new(2);
    let primary = tier.registered(1);
    let duplicate = tier.registered(1);
    assert!(duplicate.withdraw());
    drop(duplicate);
    assert!(primary.is_registered());
    drop(primary);
    let stats = tier.pool.stats();
    assert_eq!((stats.free, stats.inactive, stats.withdrawn), (1, 1, 0));
}

#[test]
fn a_quarantined_slot_is_used_again_only_when_the_transfer_has_stopped() {
    let tier = Tier::new(2);
    let first = tier.mutable().quarantine();
    let second = tier.mutable().quarantine();
    assert!(tier.pool.get_mutable_block().is_err());
    drop(first.stopped());
    assert_eq!(tier.pool.stats().free, 1);
    drop(second);
    let stats = tier.pool.stats();
    assert_eq!((stats.free, stats.quarantined, stats.abandoned), (1, 1, 1));
}

#[test]
fn checksum_and_priority_go_with_the_block() {
    let tier = Tier::new(2);
    let block = tier.complete(1).with_checksum(Some(Checksum(7))).with_priority(Priority(3));
    let block = block.register().expect("it registers").into_block();
    assert_eq!((block.checksum(), block.priority()), (Some(Checksum(7)), Some(Priority(3))));
    block.set_checksum(Checksum(8));
    assert_eq!(block.checksum(), Some(Checksum(7)), "it is stated once");
    let other = tier.registered(2);
    assert_eq!(other.checksum(), None);
    other.set_checksum(Checksum(9));
    assert_eq!(other.checksum(), Some(Checksum(9)));
}

#[test]
fn events_have_all_that_an_index_needs() {
    let tier = Tier::new(1);
    let block = tier.registered(5);
    let mut events = Vec::new();
    tier.events.read(10, &mut events).expect("no overflow");
    assert_eq!(events[0].number, 1);
    assert_eq!(events[0].registration.tier, BlockTier::Host);
    assert_eq!(events[0].registration.identity, *block.identity());
}

/// Tokens are prompts, so debug output must not contain them.
#[test]
fn a_partial_block_never_shows_its_tokens() {
    let tier = Tier::new(1);
    let mut block = tier.mutable().init_sequence(seed());
    block.add_token(987_654).expect("room");
    assert!(!format!("{block:?}").contains("987654"), "{block:?}");
}
