//! Bringing blocks up, one tier after the other.

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

/// Blocks of one request that are brought up at a time.
const WINDOW_BLOCKS: usize = 64;
/// Times that a block is looked for before it is given up: it may come up three tiers, and prove wrong in three.
const LOOKS_MAX: usize = 16;

/// How to bring blocks up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnboardRequest {
    /// Which requests are carried out first: the higher ones.
    pub priority: Priority,
    /// Time after which what is there is returned.
    pub timeout: Duration,
}

/// Why a request stopped before its last block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// The block is in no tier.
    Missing,
    /// The block's bytes are wrong. It was withdrawn.
    Corrupt {
        /// Where it was.
        tier: BlockTier,
    },
    /// The block can't be read.
    Unreadable {
        /// Where it is.
        tier: BlockTier,
    },
    /// The request's time is over.
    TimedOut,
    /// Too many requests wait.
    Busy,
    /// The session holds as many blocks as it may.
    Limit,
    /// The manager stops.
    Stopping,
}

/// Where and why a request stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// The first block that is not there.
    pub sequence: SequenceHash,
    /// Why.
    pub reason: StopReason,
}

/// What was brought up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Onboarded {
    /// The leading blocks, verified on their way, held by the session.
    pub blocks: Vec<HeldBlock>,
    /// Why there are not more of them.
    pub stopped: Option<Stopped>,
}

impl Session {
    /// Brings the leading blocks of a prompt into the engines' memory, and holds them. It stops at the first block that
    /// can't be had. Dropped, it gives up what nobody else waits for.
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
        // Only now: if this future is dropped before, nobody is told what the session would hold.
        let (blocks, not_held) = hold_all(seat, found)?;
        let reason = not_held.or(reason);
        count(shared, &blocks, reason);
        let next = sequences.get(blocks.len()).copied();
        let stopped = next.zip(reason).map(|(sequence, reason)| Stopped { sequence, reason });
        Ok(Onboarded { blocks, stopped })
    }
}

/// Holds blocks until one can't be held; also why not.
fn hold_all(
    seat: &Seat,
    found: Vec<(TierBlock, BlockTier)>,
) -> Result<(Vec<HeldBlock>, Option<StopReason>), SessionError> {
    let mut blocks = Vec::with_capacity(found.len());
    for (block, found_in) in found {
        match seat.hold(block, found_in) {
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

/// Brings one block up. Returns also where it was.
async fn bring_up(
    shared: &Shared,
    sequence: SequenceHash,
    priority: Priority,
) -> Result<(TierBlock, BlockTier), StopReason> {
    // The tier in which it was found first; why the last copy that failed did so, and from where.
    let mut found_in = None;
    let mut failure = None;
    // A copy that was just made stays in use until the next look.
    let mut _copy = None;
    for _ in 0..LOOKS_MAX {
        if shared.is_stopping() {
            return Err(StopReason::Stopping);
        }
        // First, so that nothing that happens from now on is missed.
        let mut waiting = shared.waiters.wait_for(sequence);
        let Some(block) = shared.state.match_nearest(&[sequence]).pop() else {
            return Err(failure.map_or(StopReason::Missing, |(reason, _)| reason));
        };
        let tier = block.tier();
        if let Some((reason, _)) = failure.filter(|(_, failed_in)| *failed_in == tier) {
            // It is still there and can't be copied: the same copy is not tried again (D113).
            return Err(reason);
        }
        let found_in = *found_in.get_or_insert(tier);
        if tier == shared.memory.tier() {
            shared.offer(&block, priority);
            return Ok((block, found_in));
        }
        let mut is_shared = false;
        match shared.state.onboard(block, priority) {
            Offered::Queued { displaced } => {
                if let Some(displaced) = displaced {
                    shared.waiters.tell(displaced.sequence, Arrival::Look);
                }
                shared.wake.notify_one();
            }
            Offered::Pending => is_shared = true,
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
                    // Somebody else's request, which was given up before this one came.
                    continue;
                }
                failure = why(verdict, tier).map(|reason| (reason, tier)).or(failure);
            }
        }
    }
    Err(failure.map_or(StopReason::Busy, |(reason, _)| reason))
}

/// Why a transfer up from a tier brought nothing.
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
