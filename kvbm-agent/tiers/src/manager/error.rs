//! Errors of the block manager. Each names the field and how to fix it.

use kvasir_blocks::manager::ConfigError;
use kvasir_blocks::{BlockTier, Exhausted, PinsExhausted, RegisterError};
use kvasir_memory::AccessError;
use std::io;
use std::time::Duration;
use thiserror::Error;

/// Why a block manager can't start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The configuration of the pools is invalid.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// No tier that engines can use is configured.
    #[error("neither device nor host memory is configured: engines need one of them")]
    NoMemory,
    /// A configured tier has no storage.
    #[error("tier {tier} is configured, and has no storage: give it one, or leave the tier out")]
    NoStorage {
        /// The tier.
        tier: BlockTier,
    },
    /// A storage's tier is not configured.
    #[error("there is a storage for tier {tier}, which is not configured: configure its blocks")]
    Unconfigured {
        /// The tier.
        tier: BlockTier,
    },
    /// A storage has fewer slots than the tier has blocks.
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
    /// A storage's slots are smaller than the layout's blocks.
    #[error(
        "blocks of the layout have {block_bytes} bytes, and slots of tier {tier} {there}: make them equal"
    )]
    BlockBytes {
        /// The tier.
        tier: BlockTier,
        /// Bytes of a block.
        block_bytes: u64,
        /// Bytes of the storage's slots.
        there: usize,
    },
    /// The memory for relays can't be allocated.
    #[error("no memory for relay_slots = {slots}: {reason}")]
    Relay {
        /// The configured number of relay slots.
        slots: u32,
        /// Why the allocation failed.
        reason: String,
    },
    /// A thread can't be started.
    #[error("cannot start a thread for transfers: {0}")]
    Thread(#[from] io::Error),
}

/// Why a session refuses any call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SessionError {
    /// The session has ended.
    #[error("the session has ended: open another one")]
    Ended,
    /// The block manager is stopping.
    #[error("the block manager stops")]
    Stopping,
    /// Too many sessions are open.
    #[error("{max} sessions are open, which is sessions_max: end one, or raise it")]
    TooMany {
        /// The limit, `sessions_max`.
        max: usize,
    },
}

/// Why slots can't be leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AllocateError {
    /// The session refuses the call.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The requested count is 0.
    #[error("count is 0: ask for at least one slot")]
    Nothing,
    /// The lease is 0 or too long.
    #[error("lease is {lease:?}: give more than 0 and at most {max:?}")]
    Lease {
        /// The requested lease.
        lease: Duration,
        /// The maximum lease.
        max: Duration,
    },
    /// The session would exceed its limit of leased slots.
    #[error(
        "count is {count} beside {leased} leased slots, and a session may have {max}: commit or abort some"
    )]
    Limit {
        /// Requested slots.
        count: usize,
        /// Slots already leased.
        leased: usize,
        /// The limit.
        max: usize,
    },
    /// The pool has too few free or evictable blocks.
    #[error("{0}: release blocks that are read no longer, and ask again")]
    Exhausted(#[from] Exhausted),
}

/// Why a block can't be committed. The slot stays leased, unless the lease has expired.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommitError {
    /// The session refuses the call.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The slot is not leased by the session.
    #[error("slot {slot} is not leased by this session: allocate it first")]
    NotLeased {
        /// The slot.
        slot: u32,
    },
    /// The lease has expired.
    #[error("the lease of slot {slot} has ended: allocate again, with a longer lease")]
    LeaseOver {
        /// The slot.
        slot: u32,
    },
    /// Position and parent contradict each other.
    #[error("identity: name a parent if the position is above 0, and none at position 0")]
    Identity,
    /// The session holds too many blocks.
    #[error("the session holds {max} blocks, which is held_blocks_max: release some")]
    Limit {
        /// The limit.
        max: usize,
    },
    /// The engine's checksum does not match the bytes in the slot.
    #[error(
        "checksum is {stated:016x}, and the slot's bytes add up to {found:016x}: write them again"
    )]
    Checksum {
        /// The checksum that the engine stated.
        stated: u64,
        /// The checksum of the bytes.
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
        /// Why reading failed.
        reason: String,
    },
}

/// Why a block's bytes can't be read or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The session refuses the call.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The session does not hold the slot.
    #[error("slot {slot} is not held by this session: onboard its block first")]
    NotHeld {
        /// The slot.
        slot: u32,
    },
    /// The range is outside the block.
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
        /// Why reading failed.
        reason: String,
    },
}

/// Why a block can't be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PinError {
    /// The block is in no tier.
    #[error("sequence_hash names a block that is in no tier")]
    Missing,
    /// The duration is 0 or too long.
    #[error("ttl is {ttl:?}: give more than 0 and at most {max:?}")]
    Ttl {
        /// The requested duration.
        ttl: Duration,
        /// The maximum duration.
        max: Duration,
    },
    /// The tier has its maximum number of pins.
    #[error("{0}: unpin some, or raise pins_max of the tier")]
    Exhausted(#[from] PinsExhausted),
}

/// The event stream already has a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the events have a reader already: there is one at a time")]
pub struct FeedTaken;
