use super::chains::Slot;
use super::key::RouterId;
use super::prefills::{Pace, Prefills};
use crate::route::cost::real;
use kvasir_proto::types::WorkerKey;
use std::collections::BTreeMap;
use std::time::Duration;

/// A block of output in the unit in which fractions of it are counted. Whole numbers add up and take away to nothing,
/// which fractions in binary do not.
pub(super) const BLOCK_MILLIBLOCKS: u64 = 1_000;

/// Number of a rank in [`ActiveLoads`](super::ActiveLoads), until the rank is forgotten. A number is never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankId {
    pub(super) slot: Slot,
    pub(super) generation: u64,
}

/// What requests under way ask of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankLoad {
    /// Requests under way.
    pub requests: u64,
    /// Those whose first token is not out.
    pub prefilling_requests: u64,
    /// Blocks of prompts in use; a block that several requests share counts once.
    pub prompt_blocks: u64,
    /// Blocks of output in use by their weight, in thousandths of a block.
    pub output_milliblocks: u64,
    /// Tokens of prompts that are to be computed: all of a prompt until its first token is out.
    pub prefill_tokens: u64,
    /// Of these, the tokens that are likely to be computed already; 0 if no time was given. See
    /// [`ActiveLoads::load_at`](super::ActiveLoads::load_at).
    pub computed_tokens: u64,
    /// Tokens of all prompts under way, shared ones once for each request: what attention reads. 0 where blocks are not
    /// tracked.
    pub context_tokens: u64,
    /// Blocks in use that no known request uses, by the engine's own report.
    pub foreign_blocks: u64,
    /// Tokens of prompts that the rank was given to compute lately, by a moving sum over requests; 0 if no time was given.
    pub given_tokens: u64,
}

/// Digest of the requests of one rank: equal where two replicas know the same of it, in whatever order they learned it.
///
/// The wrapping sum of the digests of the requests, and their number, as `proto/src/digest.rs` has it for blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadDigest {
    /// Requests under way.
    pub requests: u64,
    /// Sum of their digests.
    pub sum: u64,
}

/// Of what ranks were given, each further request of the partition leaves this share: about the last 256 requests count.
const GIVEN_KEPT: f64 = 1.0 - 1.0 / 256.0;
/// At this value the unit of what was given is 1 again, long before numbers overflow.
const GIVEN_UNIT_MIN: f64 = 1e-12;

/// Loads by slot. A decision reads those of all ranks and nothing else of them, so they lie side by side.
#[derive(Debug)]
pub(super) struct RankLoads {
    seats: Vec<Seat>,
    /// Tokens that 1 of [`Seat::given`] stands for: it falls with each request, and no rank has to be written down.
    given_unit: f64,
}

/// The generation of no rank.
const NOBODY: u64 = u64::MAX;

/// The load of whichever rank has a slot.
#[derive(Debug, Clone, Copy)]
struct Seat {
    /// [`NOBODY`] if no rank has the slot.
    generation: u64,
    load: RankLoad,
    pace: Pace,
    given: f64,
}

/// A rank with its requests; its load is in [`RankLoads`].
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) key: WorkerKey,
    pub(super) generation: u64,
    /// Digest of its key.
    pub(super) place: u64,
    /// By the router that placed the requests; routers without any are absent.
    pub(super) digests: BTreeMap<RouterId, LoadDigest>,
    /// Its prompts without a first token.
    pub(super) prefills: Prefills,
}

// === impl RankLoad ===

impl RankLoad {
    /// Blocks in use, those of output by their weight, and those of requests that other clients sent to the engine.
    #[must_use]
    pub fn active_blocks(&self) -> f64 {
        let prompts = real(self.prompt_blocks + self.foreign_blocks);
        if self.output_milliblocks == 0 {
            // The usual case, for each rank at each decision: a division would be most of the work.
            return prompts;
        }
        prompts + real(self.output_milliblocks) / BLOCK_MILLIBLOCKS as f64
    }

    /// Blocks in use if a request of `blocks` blocks comes, of which `shared_blocks` are in use already: the potential
    /// active blocks of document 001.
    #[must_use]
    pub fn potential_blocks(&self, blocks: u32, shared_blocks: u32) -> f64 {
        self.active_blocks() + f64::from(blocks.saturating_sub(shared_blocks))
    }

    /// Tokens of prompts that are still to be computed, as far as is known.
    #[must_use]
    #[inline]
    pub const fn pending_tokens(&self) -> u64 {
        self.prefill_tokens.saturating_sub(self.computed_tokens)
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { foreign_blocks, given_tokens, .. } = *self;
        *self == Self { foreign_blocks, given_tokens, ..Self::default() }
    }
}

// === impl LoadDigest ===

impl LoadDigest {
    pub(super) fn add(&mut self, digest: u64) {
        self.requests += 1;
        self.sum = self.sum.wrapping_add(digest);
    }

    pub(super) fn take(&mut self, digest: u64) {
        debug_assert!(self.requests > 0, "the request was counted");
        self.requests = self.requests.saturating_sub(1);
        self.sum = self.sum.wrapping_sub(digest);
    }

    /// Both together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, sum: self.sum.wrapping_add(other.sum) }
    }
}

// === impl RankLoads ===

impl Default for RankLoads {
    fn default() -> Self {
        Self { seats: Vec::new(), given_unit: 1.0 }
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

    /// A rank has its slot from now on, without load.
    pub(super) fn join(&mut self, rank: RankId) {
        let at = usize::try_from(rank.slot).unwrap_or(usize::MAX);
        // Slots are given without gaps, and their number is limited.
        if at == self.seats.len() {
            self.seats.push(Self::EMPTY);
        }
        if let Some(seat) = self.seats.get_mut(at) {
            debug_assert_eq!(seat.generation, NOBODY, "the slot is free");
            *seat = Seat { generation: rank.generation, ..Self::EMPTY };
        }
    }

    /// A rank has no slot any more.
    pub(super) fn leave(&mut self, rank: RankId) {
        if let Some(seat) = self.seat_mut(rank) {
            *seat = Self::EMPTY;
        }
    }

    #[inline]
    pub(super) fn get(&self, rank: RankId) -> RankLoad {
        self.seat(rank).map_or(Self::EMPTY.load, |seat| seat.load)
    }

    /// The load with what is likely to be computed by `now`, and what was given lately.
    #[inline]
    pub(super) fn get_at(&self, rank: RankId, now: Duration) -> RankLoad {
        self.seat(rank).map_or(Self::EMPTY.load, |Seat { load, pace, given, .. }| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is a count of tokens"
            )]
            let given_tokens = (given * self.given_unit) as u64;
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

    /// A rank was given so many tokens to compute: what all ranks were given before counts less.
    pub(super) fn give(&mut self, rank: RankId, tokens: u64) {
        self.given_unit *= GIVEN_KEPT;
        if self.given_unit < GIVEN_UNIT_MIN {
            self.seats.iter_mut().for_each(|seat| seat.given *= self.given_unit);
            self.given_unit = 1.0;
        }
        let given = real(tokens) / self.given_unit;
        if let Some(seat) = self.seat_mut(rank) {
            seat.given += given;
        }
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
        self.digests.entry(router).or_default().add(digest);
    }

    pub(super) fn take_digest(&mut self, router: RouterId, digest: u64) {
        let Some(at) = self.digests.get_mut(&router) else {
            debug_assert!(false, "the router has requests here");
            return;
        };
        at.take(digest);
        if at.requests == 0 {
            debug_assert_eq!(at.sum, 0, "nothing is left of requests that are gone");
            self.digests.remove(&router);
        }
    }
}
