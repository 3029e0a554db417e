use super::chains::Slot;
use super::key::RouterId;
use super::prefills::{Pace, Prefills};
use crate::route::cost::real;
use kvasir_proto::types::WorkerKey;
use std::collections::BTreeMap;
use std::time::Duration;

/// One output block in the unit for fractions of blocks. Integers always return to exactly 0, which binary fractions do
/// not.
pub(super) const BLOCK_MILLIBLOCKS: u64 = 1_000;

/// Number of a rank in [`ActiveLoads`](super::ActiveLoads), until the rank is removed. Numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankId {
    pub(super) slot: Slot,
    pub(super) generation: u64,
}

/// The load of one rank from active requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankLoad {
    /// Active requests.
    pub requests: u64,
    /// Active requests without a first token.
    pub prefilling_requests: u64,
    /// Blocks of prompts in use; a block that several requests share counts once.
    pub prompt_blocks: u64,
    /// Output blocks in use, weighted, in thousandths of a block.
    pub output_milliblocks: u64,
    /// Prompt tokens to compute. A prompt counts completely until its first token.
    pub prefill_tokens: u64,
    /// The part of `prefill_tokens` that is probably computed already; 0 if no time was given. See
    /// [`ActiveLoads::load_at`](super::ActiveLoads::load_at).
    pub computed_tokens: u64,
    /// Tokens of all active prompts, which attention reads; shared tokens count once for each request. 0 if blocks are
    /// not tracked.
    pub context_tokens: u64,
    /// Blocks in use that the engine reports in addition to blocks of known requests.
    pub foreign_blocks: u64,
    /// Prompt tokens recently assigned to the rank, as a moving sum over requests, beyond the mean of all ranks; 0 if no
    /// time was given.
    pub given_tokens: u64,
}

/// Digest of the requests of one rank. Equal if two replicas have the same requests, in whatever order they received
/// them.
///
/// Consists of the wrapping sum of the requests' digests, and their number, like the digest of blocks in
/// `proto/src/digest.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadDigest {
    /// Active requests.
    pub requests: u64,
    /// Wrapping sum of the requests' digests.
    pub sum: u64,
}

/// Factor by which each further request of the partition reduces the ranks' assigned tokens: about the last 256
/// requests count.
const GIVEN_KEPT: f64 = 1.0 - 1.0 / 256.0;
/// Below this value, the unit of assigned tokens is reset to 1, long before numbers overflow.
const GIVEN_UNIT_MIN: f64 = 1e-12;

/// Loads by slot, stored contiguously: a decision reads only the loads, of all ranks.
#[derive(Debug)]
pub(super) struct RankLoads {
    seats: Vec<Seat>,
    /// Tokens per unit of [`Seat::given`]. It shrinks with each request, so that no rank's entry has to be rewritten.
    given_unit: f64,
    /// Sum of [`Seat::given`].
    given_sum: f64,
    /// Number of ranks.
    ranks: u32,
}

/// Generation of an empty slot.
const NOBODY: u64 = u64::MAX;

/// The load of the rank that occupies a slot.
#[derive(Debug, Clone, Copy)]
struct Seat {
    /// [`NOBODY`] if the slot is empty.
    generation: u64,
    load: RankLoad,
    pace: Pace,
    given: f64,
}

/// A rank with its requests; the load is in [`RankLoads`].
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) key: WorkerKey,
    pub(super) generation: u64,
    /// Digest of the rank's key.
    pub(super) place: u64,
    /// Digests by the router that placed the requests; routers without requests are absent.
    pub(super) digests: BTreeMap<RouterId, LoadDigest>,
    /// The rank's prompts without a first token.
    pub(super) prefills: Prefills,
}

// === impl RankLoad ===

impl RankLoad {
    /// Blocks in use, with weighted output blocks, including blocks of requests that other clients sent to the engine.
    #[must_use]
    pub fn active_blocks(&self) -> f64 {
        let prompts = real(self.prompt_blocks + self.foreign_blocks);
        if self.output_milliblocks == 0 {
            // The usual case, for each rank at each decision: a division would be most of the work.
            return prompts;
        }
        prompts + real(self.output_milliblocks) / BLOCK_MILLIBLOCKS as f64
    }

    /// Blocks in use if a request with `blocks` blocks is added, of which `shared_blocks` are in use already: the
    /// potential active blocks of document 001.
    #[must_use]
    pub fn potential_blocks(&self, blocks: u32, shared_blocks: u32) -> f64 {
        self.active_blocks() + f64::from(blocks.saturating_sub(shared_blocks))
    }

    /// Estimated prompt tokens that remain to be computed.
    #[must_use]
    #[inline]
    pub const fn pending_tokens(&self) -> u64 {
        self.prefill_tokens.saturating_sub(self.computed_tokens)
    }

    /// Whether there are no active requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { foreign_blocks, given_tokens, .. } = *self;
        *self == Self { foreign_blocks, given_tokens, ..Self::default() }
    }
}

// === impl LoadDigest ===

impl LoadDigest {
    pub(super) fn add_request(&mut self, digest: u64) {
        self.requests += 1;
        self.sum = self.sum.wrapping_add(digest);
    }

    pub(super) fn remove_request(&mut self, digest: u64) {
        debug_assert!(self.requests > 0, "the request was counted");
        self.requests = self.requests.saturating_sub(1);
        self.sum = self.sum.wrapping_sub(digest);
    }

    /// Digest of both sets together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, sum: self.sum.wrapping_add(other.sum) }
    }
}

// === impl RankLoads ===

impl Default for RankLoads {
    fn default() -> Self {
        Self { seats: Vec::new(), given_unit: 1.0, given_sum: 0.0, ranks: 0 }
    }
}

impl RankLoads {
    const EMPTY: Seat = Seat {
        generation: NOBODY,
        load: RankLoad {
            requests: 0,
            prefilling_requests: 0,
            prompt_blocks: 0,
            output_milliblocks: 0,
            prefill_tokens: 0,
            computed_tokens: 0,
            context_tokens: 0,
            foreign_blocks: 0,
            given_tokens: 0,
        },
        pace: Pace::UNKNOWN,
        given: 0.0,
    };

    /// Assigns the slot of `rank` to this rank, without load.
    pub(super) fn join(&mut self, rank: RankId) {
        let at = usize::try_from(rank.slot).unwrap_or(usize::MAX);
        // Slots are assigned without gaps, and their number is limited.
        if at == self.seats.len() {
            self.seats.push(Self::EMPTY);
        }
        if let Some(seat) = self.seats.get_mut(at) {
            debug_assert_eq!(seat.generation, NOBODY, "the slot is free");
            *seat = Seat { generation: rank.generation, ..Self::EMPTY };
            self.ranks += 1;
        }
    }

    /// Frees a rank's slot.
    pub(super) fn free_rank(&mut self, rank: RankId) {
        if let Some(seat) = self.seat_mut(rank) {
            let given = seat.given;
            *seat = Self::EMPTY;
            // Sums of real numbers are not exact.
            self.given_sum = (self.given_sum - given).max(0.0);
            self.ranks -= 1;
        }
    }

    #[inline]
    pub(super) fn get(&self, rank: RankId) -> RankLoad {
        self.seat(rank).map_or(Self::EMPTY.load, |seat| seat.load)
    }

    /// Returns the load of a rank, with estimates of the tokens computed by `now` and of the tokens assigned recently.
    /// Returns an empty load for an unknown rank.
    #[inline]
    pub(super) fn get_at(&self, rank: RankId, now: Duration) -> RankLoad {
        self.seat(rank).map_or(Self::EMPTY.load, |Seat { load, pace, given, .. }| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is a count of tokens"
            )]
            let given_tokens = ((given - self.given_mean()).max(0.0) * self.given_unit) as u64;
            let computed_tokens = pace.computed_tokens(now);
            debug_assert!(
                computed_tokens <= load.prefill_tokens,
                "the oldest prompt is one of them"
            );
            RankLoad { computed_tokens, given_tokens, ..*load }
        })
    }

    pub(super) fn get_mut(&mut self, rank: RankId) -> Option<&mut RankLoad> {
        self.seat_mut(rank).map(|seat| &mut seat.load)
    }

    pub(super) fn set_pace(&mut self, rank: RankId, pace: Pace) {
        if let Some(seat) = self.seat_mut(rank) {
            seat.pace = pace;
        }
    }

    /// Adds tokens assigned to a rank, and reduces the weight of all earlier assignments.
    pub(super) fn add_tokens(&mut self, rank: RankId, tokens: u64) {
        self.given_unit *= GIVEN_KEPT;
        if self.given_unit < GIVEN_UNIT_MIN {
            self.seats.iter_mut().for_each(|seat| seat.given *= self.given_unit);
            self.given_sum = self.seats.iter().map(|seat| seat.given).sum();
            self.given_unit = 1.0;
        }
        let given = real(tokens) / self.given_unit;
        if let Some(seat) = self.seat_mut(rank) {
            seat.given += given;
            self.given_sum += given;
        }
    }

    /// Mean of [`Seat::given`]: what a rank was given counts beyond it. So a rank that joins, to which nothing was given
    /// yet, does not look better than all others by all that these were given.
    #[inline]
    fn given_mean(&self) -> f64 {
        self.given_sum / f64::from(self.ranks.max(1))
    }

    #[inline]
    fn seat(&self, rank: RankId) -> Option<&Seat> {
        let seat = usize::try_from(rank.slot).ok().and_then(|slot| self.seats.get(slot));
        seat.filter(|seat| seat.generation == rank.generation)
    }

    fn seat_mut(&mut self, rank: RankId) -> Option<&mut Seat> {
        let seat = usize::try_from(rank.slot).ok().and_then(|slot| self.seats.get_mut(slot));
        seat.filter(|seat| seat.generation == rank.generation)
    }
}

// === impl Rank ===

impl Rank {
    /// A rank without requests.
    pub(super) fn new(key: WorkerKey, generation: u64, place: u64) -> Self {
        Self { key, generation, place, digests: BTreeMap::new(), prefills: Prefills::default() }
    }

    pub(super) fn add_digest(&mut self, router: RouterId, digest: u64) {
        self.digests.entry(router).or_default().add_request(digest);
    }

    /// Removes a request of `router` from the digest of that router's requests at this rank.
    pub(super) fn take_digest(&mut self, router: RouterId, digest: u64) {
        let Some(at) = self.digests.get_mut(&router) else {
            debug_assert!(false, "the router has requests here");
            return;
        };
        at.remove_request(digest);
        if at.requests == 0 {
            debug_assert_eq!(at.sum, 0, "nothing is left of requests that are gone");
            self.digests.remove(&router);
        }
    }
}
