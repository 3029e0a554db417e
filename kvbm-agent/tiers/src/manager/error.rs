//! What a manager refuses: which field, and what helps.

use kvasir_blocks::manager::ConfigError;
use kvasir_blocks::{BlockTier, Exhausted, PinsExhausted, RegisterError};
use kvasir_memory::AccessError;
use std::io;
use std::time::Duration;
use thiserror::Error;

/// Why a manager can't start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The configuration of the pools is refused.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// There is no tier that engines could use.
    #[error("neither device nor host memory is configured: engines need one of them")]
    NoMemory,
    /// A tier has no storage.
    #[error("tier {tier} is configured, and has no storage: give it one, or leave the tier out")]
    NoStorage {
        /// The tier.
        tier: BlockTier,
    },
    /// A storage has no tier.
    #[error("there is a storage for tier {tier}, which is not configured: configure its blocks")]
    Unconfigured {
        /// The tier.
        tier: BlockTier,
    },
    /// A storage has too few slots.
    #[error(
        "tier {tier} is to have {blocks} blocks, and its storage has {slots} slots: make them equal"
    )]
    Slots {
        /// The tier.
        tier: BlockTier,
        /// Blocks of its pool.
        blocks: u32,
        /// Slots of its storage.
        slots: u32,
    },
    /// A storage's slots are too small.
    #[error(
        "blocks of the layout have {block_bytes} bytes, and slots of tier {tier} {there}: make them equal"
    )]
    BlockBytes {
        /// The tier.
        tier: BlockTier,
        /// Bytes of a block.
        block_bytes: u64,
        /// Bytes that a slot has.
        there: usize,
    },
    /// There is no memory for relays.
    #[error("no memory for relay_slots = {slots}: {reason}")]
    Relay {
        /// How many were asked for.
        slots: u32,
        /// Why not.
        reason: String,
    },
    /// A thread could not be started.
    #[error("cannot start a thread for transfers: {0}")]
    Thread(#[from] io::Error),
}

/// Why a session can't do something, whatever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SessionError {
    /// It has ended.
    #[error("the session has ended: open another one")]
    Ended,
    /// The manager stops.
    #[error("the block manager stops")]
    Stopping,
    /// There are too many.
    #[error("{max} sessions are open, which is sessions_max: end one, or raise it")]
    TooMany {
        /// The limit.
        max: usize,
    },
}

/// Why slots can't be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AllocateError {
    /// The session is over.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// None were asked for.
    #[error("count is 0: ask for at least one slot")]
    Nothing,
    /// The lease is too long, or none.
    #[error("lease is {lease:?}: give more than 0 and at most {max:?}")]
    Lease {
        /// What was asked for.
        lease: Duration,
        /// The longest.
        max: Duration,
    },
    /// The session would have too many.
    #[error(
        "count is {count} beside {leased} leased slots, and a session may have {max}: commit or abort some"
    )]
    Limit {
        /// Asked for.
        count: usize,
        /// Leased already.
        leased: usize,
        /// The limit.
        max: usize,
    },
    /// The pool has no room.
    #[error("{0}: release blocks that are read no longer, and ask again")]
    Exhausted(#[from] Exhausted),
}

/// Why a block can't be committed. Unless the lease is over, the slot stays leased.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommitError {
    /// The session is over.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The slot is not leased by the session.
    #[error("slot {slot} is not leased by this session: allocate it first")]
    NotLeased {
        /// The slot.
        slot: u32,
    },
    /// The lease has ended.
    #[error("the lease of slot {slot} has ended: allocate again, with a longer lease")]
    LeaseOver {
        /// The slot.
        slot: u32,
    },
    /// Position and parent contradict.
    #[error("identity: a block has a parent unless its position is 0")]
    Identity,
    /// The session reads too many blocks.
    #[error("the session holds {max} blocks, which is held_blocks_max: release some")]
    Limit {
        /// The limit.
        max: usize,
    },
    /// The engine's own checksum is another one.
    #[error(
        "checksum is {stated:016x}, and the slot's bytes add up to {found:016x}: write them again"
    )]
    Checksum {
        /// What the engine says.
        stated: u64,
        /// What it is.
        found: u64,
    },
    /// The block can't be registered.
    #[error("identity: {0}")]
    Register(#[from] RegisterError),
    /// The slot can't be read.
    #[error("slot {slot} can't be read: {reason}")]
    Unreadable {
        /// The slot.
        slot: u32,
        /// Why.
        reason: String,
    },
}

/// Why a block's bytes are not given.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The session is over.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The session does not hold the slot.
    #[error("slot {slot} is not held by this session: onboard its block first")]
    NotHeld {
        /// The slot.
        slot: u32,
    },
    /// The session may not write so much, or there.
    #[error("{0}")]
    Access(#[from] AccessError),
    /// The bytes are wrong. The block was withdrawn.
    #[error(
        "the bytes of slot {slot} are not those that were committed: the block was withdrawn, compute it again"
    )]
    Corrupt {
        /// The slot.
        slot: u32,
    },
    /// The slot can't be read.
    #[error("slot {slot} can't be read: {reason}")]
    Unreadable {
        /// The slot.
        slot: u32,
        /// Why.
        reason: String,
    },
}

/// Why a block can't be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PinError {
    /// It is in no tier.
    #[error("sequence_hash names a block that is in no tier")]
    Missing,
    /// It would be pinned for too long, or not at all.
    #[error("ttl is {ttl:?}: give more than 0 and at most {max:?}")]
    Ttl {
        /// What was asked for.
        ttl: Duration,
        /// The longest.
        max: Duration,
    },
    /// There are too many pins.
    #[error("{0}: unpin some, or raise pins_max of the tier")]
    Exhausted(#[from] PinsExhausted),
}

/// The events have a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the events have a reader already: there is one at a time")]
pub struct FeedTaken;
