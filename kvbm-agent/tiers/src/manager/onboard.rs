//! Onboarding: copies blocks up to the engines' memory, tier by tier.

use super::error::SessionError;
use super::session::{HeldBlock, NotHeld, Seat, Session};
use super::shared::{Shared, after};
use super::waiters::Arrival;
use futures::stream::{self, StreamExt};
use kvasir_blocks::plan::{Failure, Side};
use kvasir_blocks::{BlockTier, Offered, Priority, TierBlock, Verdict};
use kvasir_proto::types::SequenceHash;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Maximum blocks of one request that are onboarded concurrently.
const WINDOW_BLOCKS: usize = 64;
/// Maximum attempts per block: it may move up three tiers, and be corrupt in three.
const LOOKS_MAX: usize = 16;

/// Parameters of an onboard request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnboardRequest {
    /// Requests with higher priority are executed first.
    pub priority: Priority,
    /// Timeout after which the blocks onboarded so far are returned.
    pub timeout: Duration,
}

/// Why a request stopped before its last block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// The block is in no tier.
    Missing,
    /// The block's bytes are wrong. It was withdrawn.
    Corrupt {
        /// The tier of the wrong bytes.
        tier: BlockTier,
    },
    /// The block can't be read.
    Unreadable {
        /// The tier of the unreadable block.
        tier: BlockTier,
    },
    /// The request timed out.
    TimedOut,
    /// Too many requests are queued.
    Busy,
    /// The session has reached its limit of held blocks.
    Limit,
    /// The block manager is stopping.
    Stopping,
}

/// Where and why a request stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// The first block that is not available.
    pub sequence: SequenceHash,
    /// Why the block is not available.
    pub reason: StopReason,
}

/// Result of an onboard request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Onboarded {
    /// The leading blocks, verified and held by the session.
    pub blocks: Vec<HeldBlock>,
    /// Why the request stopped early; `None` if it is complete.
    pub stopped: Option<Stopped>,
}

impl Session {
    /// Copies the leading blocks of a prompt into the engines' memory, and holds them. Stops at the first block that is
    /// not available. Dropping the future cancels the transfers that have no other waiter.
    ///
    /// # Errors
    /// If the session has ended.
    pub async fn onboard(
        &self,
        sequences: &[SequenceHash],
        request: OnboardRequest,
    ) -> Result<Onboarded, SessionError> {
        let seat = self.seat();
        let shared = &seat.shared;
        shared.counters.onboard_requests.up();
        let deadline = after(Instant::now(), request.timeout);
        let room = seat.room()?;
        let wanted = sequences.get(..room).unwrap_or(sequences);
        let bring = |sequence: SequenceHash| bring_up(shared, sequence, request.priority);
        let mut coming = stream::iter(wanted.iter().copied()).map(bring).buffered(WINDOW_BLOCKS);
        let mut found = Vec::new();
        let reason = loop {
            match timeout_at(deadline, coming.next()).await {
                Ok(Some(Ok(block))) => found.push(block),
                Ok(Some(Err(reason))) => break Some(reason),
                Ok(None) => break (room < sequences.len()).then_some(StopReason::Limit),
                Err(_) => break Some(StopReason::TimedOut),
            }
        };
        drop(coming);
        // Hold blocks only now: if this future were dropped earlier, the engine would not receive their slots and could
        // never release them.
        let (blocks, not_held) = hold_all(seat, found)?;
        let reason = not_held.or(reason);
        count(shared, &blocks, reason);
        let next = sequences.get(blocks.len()).copied();
        let stopped = next.zip(reason).map(|(sequence, reason)| Stopped { sequence, reason });
        Ok(Onboarded { blocks, stopped })
    }
}

/// Holds blocks for a session, in order, until one cannot be held. Returns the held blocks and the reason.
fn hold_all(
    seat: &Seat,
    found: Vec<(TierBlock, BlockTier)>,
) -> Result<(Vec<HeldBlock>, Option<StopReason>), SessionError> {
    let mut blocks = Vec::with_capacity(found.len());
    for (block, found_in) in found {
        match seat.hold_block(block, found_in) {
            Ok(held) => blocks.push(held),
            Err(NotHeld::Session(ended)) => return Err(ended),
            Err(NotHeld::Limit { .. }) => return Ok((blocks, Some(StopReason::Limit))),
            Err(NotHeld::Withdrawn) => {
                let reason = StopReason::Corrupt { tier: seat.shared.memory.tier() };
                return Ok((blocks, Some(reason)));
            }
        }
    }
    Ok((blocks, None))
}

/// Copies one block into the engines' memory, if it is not there. Returns the block, and the tier where it was found.
/// Tries the next tier if a copy fails.
async fn bring_up(
    shared: &Shared,
    sequence: SequenceHash,
    priority: Priority,
) -> Result<(TierBlock, BlockTier), StopReason> {
    // The tier where the block was found first; the last failure of a copy, and its tier.
    let mut found_in = None;
    let mut failure = None;
    // Keeps a new copy in use until the next attempt.
    let mut _copy = None;
    for _ in 0..LOOKS_MAX {
        if shared.is_stopping() {
            return Err(StopReason::Stopping);
        }
        // Register the waiter first, so that no later change is missed.
        let mut waiting = shared.waiters.wait_for(sequence);
        let Some(block) = shared.state.match_nearest(&[sequence]).pop() else {
            return Err(failure.map_or(StopReason::Missing, |(reason, _)| reason));
        };
        let tier = block.tier();
        if let Some((reason, _)) = failure.filter(|(_, failed_in)| *failed_in == tier) {
            // The block is still there but can't be copied: the same copy is not retried (D113).
            return Err(reason);
        }
        let found_in = *found_in.get_or_insert(tier);
        if tier == shared.memory.tier() {
            shared.offer_block(&block, priority);
            return Ok((block, found_in));
        }
        let mut is_shared = false;
        match shared.state.onboard(block, priority) {
            Offered::Queued { displaced } => {
                if let Some(displaced) = displaced {
                    shared.waiters.notify_waiters(displaced.sequence, Arrival::Look);
                }
                shared.wake.notify_one();
            }
            // Another request's transfer brings the block.
            Offered::Pending => is_shared = true,
            // The block has arrived meanwhile.
            Offered::Present => continue,
            Offered::QueueFull | Offered::NoLane | Offered::Infrequent => {
                return Err(StopReason::Busy);
            }
        }
        match waiting.arrival().await {
            Arrival::Look => {}
            Arrival::Overdue => return Err(StopReason::TimedOut),
            Arrival::Settled(verdict, copy) => {
                _copy = copy;
                let is_cancelled = matches!(verdict, Verdict::Cancelled | Verdict::Late);
                if is_cancelled && is_shared {
                    // Another request's transfer, which was cancelled before this request came.
                    continue;
                }
                failure = why(verdict, tier).map(|reason| (reason, tier)).or(failure);
            }
        }
    }
    Err(failure.map_or(StopReason::Busy, |(reason, _)| reason))
}

/// Converts the verdict of an onboard transfer from `tier` to a reason to stop, or `None` if it is committed.
fn why(verdict: Verdict, tier: BlockTier) -> Option<StopReason> {
    match verdict {
        Verdict::Committed => None,
        Verdict::Corrupt { side: Side::Source } => Some(StopReason::Corrupt { tier }),
        Verdict::Failed { failure: Failure::NotFound } => Some(StopReason::Missing),
        Verdict::Cancelled | Verdict::Late => Some(StopReason::TimedOut),
        Verdict::Corrupt { side: Side::Destination }
        | Verdict::Short { .. }
        | Verdict::Failed { .. }
        | Verdict::Refused { .. } => Some(StopReason::Unreadable { tier }),
    }
}

/// Counts the blocks of an onboard request, and why it stopped.
fn count(shared: &Shared, blocks: &[HeldBlock], reason: Option<StopReason>) {
    let counters = &shared.counters;
    let tier = shared.memory.tier();
    let in_memory = blocks.iter().filter(|block| block.found_in == tier).count();
    counters.onboard_in_memory.add_len(in_memory);
    counters.onboard_loaded.add_len(blocks.len() - in_memory);
    match reason {
        None => {}
        Some(StopReason::Missing) => counters.onboard_missing.up(),
        Some(StopReason::Corrupt { .. }) => counters.onboard_corrupt.up(),
        Some(StopReason::Unreadable { .. }) => counters.onboard_unreadable.up(),
        Some(StopReason::TimedOut) => counters.onboard_timed_out.up(),
        Some(StopReason::Busy | StopReason::Limit | StopReason::Stopping) => {
            counters.onboard_given_up.up();
        }
    }
}
