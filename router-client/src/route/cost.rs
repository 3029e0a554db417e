//! The cost of a request at a worker (documents 001 "Cost Calculation" and 004 "Cost Calculation").
//!
//! > cost = overlap score weight × prefill blocks + decode blocks
//!
//! - *Prefill blocks* = (input tokens − overlap × block size) / block size, as a fraction. The pending prefills of
//!   earlier requests at the worker can be added with a weight.
//! - *Decode blocks* = the blocks that the worker would use for generation: blocks in use now plus the request's blocks
//!   that are not in use yet. By default, their price depends on how full the worker would be, and active prompts cost
//!   a share for their context, which attention reads (D115). Reason: blocks in use delay no request until the worker
//!   runs out of blocks. A worker with an unknown number of blocks counts as having room (D155). [`DecodePrice::Full`]
//!   is the documents' price.
//! - The overlap is credited by tier: blocks on disk, for example, have to be loaded first.

use super::error::{ConfigError, check};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// Cost of a block of context, in blocks of prefill. Attention reads the context of each request in each step. Over the
/// steps for which a prompt waits, this takes a few hundredths of the time to compute the block (D115).
const CONTEXT_COST: f64 = 1.0 / 32.0;
/// Cost of a block recently assigned to the worker. High enough that workers with otherwise equal cost, such as idle
/// ones, alternate by work (D156).
const GIVEN_COST: f64 = 1.0 / 32.0;
/// Maximum cost of recently assigned blocks, as a share of the prompt. A larger hit, as in a conversation, always
/// outweighs this cost. A smaller hit, such as a system prompt, need not.
const GIVEN_SHARE_MAX: f64 = 0.75;

/// Cost of a block in use, in blocks of prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DecodePrice {
    /// The fourth power of the fraction of the worker's blocks that would be in use; 0 if the worker's number of blocks
    /// is unknown. In addition, each block of active prompts and each block recently assigned to the worker costs 1/32.
    #[default]
    ByRoom,
    /// 1, the documents' price.
    Full,
}

/// Fraction of a block's prefill that is saved, by the block's tier: 0 (nothing) to 1 (all).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierCredits {
    /// Block in device memory.
    pub device: f64,
    /// Block in host memory.
    pub host: f64,
    /// Block on local disk.
    pub disk: f64,
    /// Block only in a pool, a store that several workers read.
    pub pool: f64,
}

/// Weights of prefill, overlap and load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostConfig {
    /// Weight of prefill against decode, at least 0. More favours cache reuse and time to first token; less favours
    /// even load and time between tokens. 0 ignores caches, so no index is queried.
    pub overlap_score_weight: f64,
    /// Credits by tier.
    pub credits: TierCredits,
    /// Weight, at least 0, of the tokens that a worker still has to compute for earlier requests, compared with the
    /// request's own tokens.
    ///
    /// The documents disagree. The worked example has only the request's own prefill. In document 001, the count falls
    /// when a first token completes a prefill, which is possible only if it includes earlier requests; upstream adds
    /// them: 1, the default. Pending tokens delay a request, while blocks in use hardly do. The sweep of
    /// `sim/src/sweep` at 70 % of load compares the mean time to the first token with routing by load alone: with 0
    /// it is longer, with 1 shorter. If blocks are not tracked, these tokens are the only measure of load.
    pub active_prefill_weight: f64,
    /// Cost of a block in use.
    pub decode_price: DecodePrice,
}

/// Leading blocks of a request at a worker, each counted once in its *best* tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierBlocks {
    /// Blocks in device memory.
    pub device: u32,
    /// Blocks in host memory and not in device memory.
    pub host: u32,
    /// Blocks only on local disk.
    pub disk: u32,
    /// Blocks only in a pool.
    pub pool: u32,
}

/// Prices of one request: the values that are equal for all workers, computed once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    config: CostConfig,
    input_tokens: f64,
    block_size: f64,
    blocks_per_token: f64,
}

/// Effect of a fetch on the cost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FetchCost {
    /// Blocks to fetch.
    pub blocks: u32,
    /// Tokens that the rank computes in the time of the fetch.
    pub tokens: f64,
}

/// Input of the cost of one request at one worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostInput {
    /// The worker's blocks of the prompt.
    pub overlap: TierBlocks,
    /// Tokens that the worker still has to compute for earlier requests, except those shared with this request; 0 if
    /// not tracked.
    pub active_prefill_tokens: u64,
    /// Blocks in use for generation if the worker gets the request; 0 if not tracked.
    pub decode_blocks: f64,
    /// Blocks of all active prompts; shared blocks count once for each request. 0 if not tracked.
    pub context_blocks: f64,
    /// Blocks recently assigned to the worker, beyond the mean of all workers.
    pub given_blocks: f64,
    /// Total blocks of the worker; 0 if unknown.
    pub capacity_blocks: u64,
    /// Fetch of blocks from peers for the request; `None` without a fetch.
    pub fetch: Option<FetchCost>,
}

/// The terms of a cost, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// The overlap, weighted by credits.
    pub credited_blocks: f64,
    /// Tokens of the request to compute from scratch, at least 0.
    pub new_prefill_tokens: f64,
    /// Tokens that the worker computes in the time of the fetch; 0 without a fetch.
    pub fetch_tokens: f64,
    /// Prefill blocks of the request plus the weighted blocks of earlier requests. A fetch runs while earlier requests
    /// are computed, so the longer of the two counts.
    pub prefill_blocks: f64,
    /// Blocks in use for generation.
    pub decode_blocks: f64,
    /// Cost, in blocks of prefill, of the decode blocks, the active prompts and the blocks recently assigned to the
    /// worker; see D115 and D156 in DECISIONS.md.
    pub decode_cost: f64,
    /// Total cost: prefill blocks times the overlap score weight, plus the decode cost. Less is better.
    pub total: f64,
}

// === impl TierCredits ===

impl Default for TierCredits {
    fn default() -> Self {
        // The documents do not distinguish tiers; these are Dynamo's defaults.
        // Loading from a pool is at best as fast as from a local disk.
        Self { device: 1.0, host: 0.75, disk: 0.25, pool: 0.25 }
    }
}

// === impl DecodePrice ===

impl fmt::Display for DecodePrice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ByRoom => "by-room",
            Self::Full => "full",
        })
    }
}

impl FromStr for DecodePrice {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let found = [Self::ByRoom, Self::Full].into_iter().find(|at| at.to_string() == text);
        check(found.is_some(), "decode price", "must be one of by-room, full")?;
        Ok(found.unwrap_or_default())
    }
}

impl DecodePrice {
    /// Cost of a worker's active requests and recently assigned blocks for one more request, in blocks of prefill. The
    /// assigned blocks cost at most `given_cost_max`.
    #[inline(always)]
    fn decode_cost(self, input: &CostInput, given_cost_max: f64) -> f64 {
        let CostInput { decode_blocks, context_blocks, given_blocks, capacity_blocks, .. } = *input;
        debug_assert!(decode_blocks >= 0.0 && context_blocks >= 0.0, "{input:?}");
        if self == Self::Full {
            return decode_blocks;
        }
        let given = (GIVEN_COST * given_blocks).min(given_cost_max);
        let work = CONTEXT_COST * context_blocks + given;
        if capacity_blocks == 0 {
            return work;
        }
        let square = (decode_blocks / real(capacity_blocks)).min(1.0).powi(2);
        square * square * decode_blocks + work
    }
}

// === impl CostConfig ===

impl Default for CostConfig {
    fn default() -> Self {
        // 004: `--router-kv-overlap-score-weight`, default 1.0. The other weight: D74.
        let credits = TierCredits::default();
        let decode_price = DecodePrice::default();
        Self { overlap_score_weight: 1.0, credits, active_prefill_weight: 1.0, decode_price }
    }
}

impl CostConfig {
    /// Checks all settings.
    ///
    /// # Errors
    /// If a weight is negative or not finite, or a credit is not between 0 and 1.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_weight(self.overlap_score_weight)?;
        let weight = self.active_prefill_weight;
        check(weight.is_finite() && weight >= 0.0, "active prefill weight", "must be at least 0")?;
        let TierCredits { device, host, disk, pool } = self.credits;
        let credits = [
            ("device credit", device),
            ("host credit", host),
            ("disk credit", disk),
            ("pool credit", pool),
        ];
        for (setting, credit) in credits {
            check((0.0..=1.0).contains(&credit), setting, "must be between 0 and 1")?;
        }
        Ok(())
    }

    /// Computes the prices of a request with `input_tokens` tokens and blocks of `block_size` tokens.
    #[must_use]
    pub fn prices(&self, input_tokens: u64, block_size: NonZeroU32) -> Prices {
        let block_size = f64::from(block_size.get());
        let input_tokens = input_tokens as f64;
        let blocks_per_token = block_size.recip();
        Prices { config: *self, input_tokens, block_size, blocks_per_token }
    }
}

/// Converts a count of blocks or tokens to a real number. A decision converts several for each rank, and processors
/// convert signed numbers in one step.
#[inline(always)]
pub(super) fn real(count: u64) -> f64 {
    i64::try_from(count).unwrap_or(i64::MAX) as f64
}

/// Rejects an invalid overlap score weight, of the configuration or of a request.
pub(super) fn check_weight(weight: f64) -> Result<(), ConfigError> {
    check(weight.is_finite() && weight >= 0.0, "overlap score weight", "must be at least 0")
}

// === impl Prices ===

impl Prices {
    /// Returns the cost at a worker. With valid settings, all terms are finite and at least 0.
    #[must_use]
    #[inline(always)]
    pub fn cost(&self, input: &CostInput) -> Cost {
        let mut credited_blocks = input.overlap.credited(&self.config.credits);
        let mut active_tokens =
            self.config.active_prefill_weight * real(input.active_prefill_tokens);
        let mut fetch_tokens = 0.0;
        if let Some(fetch) = input.fetch {
            credited_blocks += f64::from(fetch.blocks) * self.config.credits.host;
            fetch_tokens = fetch.tokens;
            active_tokens = active_tokens.max(fetch_tokens);
        }
        // Never negative, although the index may report more blocks than the prompt has complete ones.
        let new_prefill_tokens = (self.input_tokens - credited_blocks * self.block_size).max(0.0);
        let prefill_blocks = (active_tokens + new_prefill_tokens) * self.blocks_per_token;
        debug_assert!(new_prefill_tokens <= self.input_tokens, "an overlap never adds work");
        let decode_blocks = input.decode_blocks;
        let prompt_cost =
            self.config.overlap_score_weight * self.input_tokens * self.blocks_per_token;
        let given_cost_max = GIVEN_SHARE_MAX * prompt_cost;
        let decode_cost = self.config.decode_price.decode_cost(input, given_cost_max);
        let total = self.config.overlap_score_weight * prefill_blocks + decode_cost;
        Cost {
            credited_blocks,
            new_prefill_tokens,
            fetch_tokens,
            prefill_blocks,
            decode_blocks,
            decode_cost,
            total,
        }
    }
}

// === impl TierBlocks ===

impl TierBlocks {
    /// Number of blocks in all tiers.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.device.saturating_add(self.host).saturating_add(self.disk).saturating_add(self.pool)
    }

    /// Total credit, in blocks.
    #[must_use]
    pub fn credited(&self, credits: &TierCredits) -> f64 {
        f64::from(self.device) * credits.device
            + f64::from(self.host) * credits.host
            + f64::from(self.disk) * credits.disk
            + f64::from(self.pool) * credits.pool
    }

    /// Raises the number of blocks to at least `blocks`. Blocks that events have not confirmed yet count as device
    /// memory, into which they are computed.
    ///
    /// Needed for a burst of requests with one new prefix: the first request is placed before the engine publishes any
    /// block.
    #[must_use]
    pub fn expecting(self, blocks: u32) -> Self {
        let missing = blocks.saturating_sub(self.total());
        Self { device: self.device.saturating_add(missing), ..self }
    }
}

// === impl Cost ===

impl Cost {
    /// Tokens of the request to compute from scratch, rounded up: the prefill load to record.
    #[must_use]
    pub fn booked_prefill_tokens(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let tokens = self.new_prefill_tokens.ceil() as u64;
        tokens
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the examples' numbers are exact")]
mod tests {
    use super::*;
    use proptest::{prop_assert, proptest};

    const BLOCK: NonZeroU32 = NonZeroU32::new(16).expect("not 0");
    const NOTHING: CostInput = CostInput {
        overlap: TierBlocks { device: 0, host: 0, disk: 0, pool: 0 },
        active_prefill_tokens: 0,
        decode_blocks: 0.0,
        context_blocks: 0.0,
        given_blocks: 0.0,
        capacity_blocks: 0,
        fetch: None,
    };

    fn input(device: u32, decode_blocks: f64) -> CostInput {
        let overlap = TierBlocks { device, ..TierBlocks::default() };
        CostInput { overlap, decode_blocks, ..NOTHING }
    }

    /// The cost of a prompt with this number of blocks.
    fn cost(config: CostConfig, blocks: u64, input: &CostInput) -> Cost {
        config.prices(blocks * 16, BLOCK).cost(input)
    }

    /// The documents' formula.
    fn documents() -> CostConfig {
        CostConfig { decode_price: DecodePrice::Full, ..CostConfig::default() }
    }

    fn lowest(costs: &[Cost]) -> usize {
        let best = costs.iter().enumerate().min_by(|a, b| a.1.total.total_cmp(&b.1.total));
        best.expect("a cost").0 + 1
    }

    /// The example of documents 001 and 004: a prompt of 10 blocks, of which workers have 2, 5 and 8.
    #[test]
    fn the_documents_example_chooses_worker_2() {
        let workers = [(2, 10.0, 0), (5, 5.0, 100), (8, 9.0, 1 << 20)];
        let costs = workers.map(|(cached, decode, capacity_blocks)| {
            let at = CostInput { capacity_blocks, ..input(cached, decode) };
            let cost = cost(documents(), 10, &at);
            assert_eq!(cost.prefill_blocks, f64::from(10 - cached));
            cost
        });
        assert_eq!(costs.map(|cost| cost.total), [18.0, 10.0, 11.0]);
        assert_eq!(lowest(&costs), 2);
    }

    /// The example of document 003, match − load, is the same function: per block of the prompt, cost is 1 − (match −
    /// load).
    #[test]
    fn match_minus_load_chooses_worker_2() {
        let workers = [(15, 30.0), (50, 50.0), (75, 80.0)];
        let costs = workers.map(|(cached, decode)| {
            // A load of 30 % corresponds to a worker with 100 blocks.
            let at = CostInput { capacity_blocks: 100, ..input(cached, decode) };
            let cost = cost(documents(), 100, &at);
            (cost, 100.0 - cost.total)
        });
        assert_eq!(costs.map(|(_, score)| score), [-15.0, 0.0, -5.0], "in hundredths");
        assert_eq!(lowest(&costs.map(|(cost, _)| cost)), 2);
    }

    #[test]
    fn blocks_count_by_their_tier() {
        let overlap = TierBlocks { device: 4, host: 4, disk: 4, pool: 4 };
        let cost = cost(documents(), 21, &CostInput { overlap, ..input(0, 3.0) });
        assert_eq!((cost.credited_blocks, cost.prefill_blocks, cost.total), (9.0, 12.0, 15.0));
        assert_eq!(cost.booked_prefill_tokens(), 192);
        assert_eq!(overlap.expecting(19), TierBlocks { device: 7, ..overlap });
        assert_eq!(overlap.expecting(16), overlap);
        assert_eq!(overlap.expecting(0), overlap);
    }

    #[test]
    fn tokens_beyond_whole_blocks_and_earlier_prefills_count() {
        let own_only = CostConfig { active_prefill_weight: 0.0, ..CostConfig::default() };
        let config = CostConfig { overlap_score_weight: 2.0, ..own_only };
        let part = input(1, 0.0);
        let cost = config.prices(40, BLOCK).cost(&part);
        assert_eq!((cost.new_prefill_tokens, cost.prefill_blocks, cost.total), (24.0, 1.5, 3.0));
        let behind = CostInput { active_prefill_tokens: 160, ..part };
        assert_eq!(config.prices(40, BLOCK).cost(&behind), cost, "they have no weight");
        let busy = CostConfig::default().prices(40, BLOCK).cost(&behind);
        assert_eq!((busy.new_prefill_tokens, busy.prefill_blocks), (24.0, 11.5));
    }

    /// When the worker is half full, a block in use costs a sixteenth; when full, the documents' price.
    #[test]
    fn blocks_in_use_cost_by_how_full_the_worker_is() {
        let full = |capacity_blocks, context_blocks| {
            let input = CostInput { capacity_blocks, context_blocks, ..input(8, 16.0) };
            cost(CostConfig::default(), 10, &input)
        };
        assert_eq!(full(0, 64.0).decode_cost, 2.0, "a worker of unknown size has room");
        assert_eq!(full(32, 0.0).decode_cost, 1.0);
        assert_eq!([full(16, 0.0), full(8, 0.0)].map(|at| at.decode_cost), [16.0, 16.0]);
        let Cost { prefill_blocks, decode_blocks, decode_cost, total, .. } = full(32, 64.0);
        assert_eq!((prefill_blocks, decode_blocks, decode_cost, total), (2.0, 16.0, 3.0, 5.0));
    }

    /// Among idle workers, a hit of more than three quarters of the prompt outweighs all earlier work, whatever the weight
    /// of hits. Work outweighs smaller hits, so that workers share prompts with a common beginning.
    #[test]
    fn what_was_given_never_outweighs_a_large_hit() {
        for overlap_score_weight in [0.1, 1.0, 3.0] {
            let config = CostConfig { overlap_score_weight, ..CostConfig::default() };
            let total = |device, given_blocks| {
                let input = CostInput { given_blocks, ..input(device, 0.0) };
                cost(config, 20, &input).total
            };
            assert!(total(16, 1e9) < total(0, 0.0));
            assert!(total(10, 1e9) > total(0, 0.0));
        }
    }

    /// Of 10 blocks, the worker has 2 and fetches 4. The fetch takes as long as computing 24 tokens.
    #[test]
    fn a_fetch_counts_by_its_time_unless_the_worker_is_busy_longer() {
        let fetch = Some(FetchCost { blocks: 4, tokens: 24.0 });
        let idle = CostInput { fetch, ..input(2, 0.0) };
        let at = cost(CostConfig::default(), 10, &idle);
        // 4 blocks that no worker has, and a quarter of the 4 that arrive in host memory.
        assert_eq!((at.credited_blocks, at.new_prefill_tokens), (5.0, 80.0));
        assert_eq!((at.fetch_tokens, at.prefill_blocks, at.total), (24.0, 6.5, 6.5));
        assert_eq!(at.booked_prefill_tokens(), 80, "a fetch computes nothing");
        let busy = CostInput { active_prefill_tokens: 160, ..idle };
        let at = cost(CostConfig::default(), 10, &busy);
        assert_eq!(at.prefill_blocks, 15.0, "it goes on meanwhile");
    }

    #[test]
    fn each_price_is_read_by_its_name() {
        for (name, price) in [("by-room", DecodePrice::ByRoom), ("full", DecodePrice::Full)] {
            assert_eq!((name.parse(), price.to_string().as_str()), (Ok(price), name));
        }
        assert_eq!("half".parse::<DecodePrice>().expect_err("no price").setting, "decode price");
    }

    #[test]
    fn without_weight_load_alone_counts() {
        let config = CostConfig { overlap_score_weight: 0.0, ..documents() };
        let totals = [0, 9].map(|cached| cost(config, 10, &input(cached, 7.0)).total);
        assert_eq!(totals, [7.0, 7.0]);
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        let good = CostConfig::default();
        assert_eq!(good.check(), Ok(()));
        for weight in [-1.0, f64::NAN, f64::INFINITY] {
            let error = CostConfig { overlap_score_weight: weight, ..good }.check();
            assert_eq!(
                error.expect_err("bad").to_string(),
                "overlap score weight must be at least 0"
            );
        }
        let error = CostConfig { active_prefill_weight: -1.0, ..good }.check();
        assert_eq!(error.expect_err("bad").setting, "active prefill weight");
        for disk in [-0.1, 1.1, f64::NAN] {
            let credits = TierCredits { disk, ..TierCredits::default() };
            let error = CostConfig { credits, ..good }.check();
            assert_eq!(error.expect_err("bad").to_string(), "disk credit must be between 0 and 1");
        }
    }

    proptest! {
        /// More overlap never costs more, and no term leaves its bounds.
        #[test]
        fn more_overlap_never_costs_more(
            input_tokens in 0_u64..1 << 24,
            block_size in 1_u32..4_096,
            device in 0_u32..70_000,
            host in 0_u32..70_000,
            disk in 0_u32..70_000,
            pool in 0_u32..70_000,
            active_prefill_tokens in 0_u64..1 << 40,
            decode in 0_u32..1 << 30,
            context: u32,
            given: u32,
            capacity_blocks in 0_u64..1 << 30,
            weight in 0.0_f64..100.0,
            is_prefill_pool: bool,
            is_full_price: bool,
        ) {
            let credits = TierCredits::default();
            let active_prefill_weight = f64::from(is_prefill_pool);
            let decode_price = if is_full_price { DecodePrice::Full } else { DecodePrice::ByRoom };
            let overlap_score_weight = weight;
            let config =
                CostConfig { overlap_score_weight, credits, active_prefill_weight, decode_price };
            let overlap = TierBlocks { device, host, disk, pool };
            let decode_blocks = f64::from(decode);
            let context_blocks = f64::from(context);
            let input = CostInput {
                overlap,
                active_prefill_tokens,
                decode_blocks,
                context_blocks,
                given_blocks: f64::from(given),
                capacity_blocks,
                fetch: None,
            };
            let block_size = NonZeroU32::new(block_size).expect("not 0");
            let prices = config.prices(input_tokens, block_size);
            let cost = prices.cost(&input);
            prop_assert!(cost.total.is_finite() && cost.total >= 0.0);
            prop_assert!(cost.booked_prefill_tokens() <= input_tokens);
            let most = decode_blocks + CONTEXT_COST * context_blocks + GIVEN_COST * input.given_blocks;
            prop_assert!((0.0..=most).contains(&cost.decode_cost), "{:?}", cost);
            let nearer = TierBlocks { device: device + 1, ..overlap };
            let cheaper = prices.cost(&CostInput { overlap: nearer, ..input });
            prop_assert!(cheaper.total <= cost.total);
        }
    }
}
