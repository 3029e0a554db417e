use super::config::ConfigError;
use super::{Found, KvBlockManagerConfig, TierConfig, TierPool};
use crate::events::{EventManager, EventStats};
use crate::gate::{Gate, GateInputs, GateVerdict};
use crate::identity::Priority;
use crate::layout::{BlockInSlot, FullyContiguous};
use crate::lifecycle::RegisteredBlock;
use crate::plan::{
    AnyTier, FrequencyFilter, LaneStats, Offered, Outcome, Plan, Route, Settled, TierBlock,
    TransferId, TransferOrder, Verdict,
};
use crate::pool::BlockPool;
use crate::store::PoolStats;
use crate::tier::{BlockTier, Device, Disk, Host, Volume};
use kvasir_proto::types::SequenceHash;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Capacity of a tier's frequency filter, in hashes per block of the tier.
const FILTER_HASHES_PER_BLOCK: usize = 4;

/// Gauges and counters of pools, lanes and events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerStats {
    /// Statistics of each tier's pool.
    pub pools: BTreeMap<BlockTier, PoolStats>,
    /// Statistics of each lane.
    pub lanes: BTreeMap<Route, LaneStats>,
    /// Statistics of the events.
    pub events: EventStats,
}

/// Pools, copy plan and events of a worker. All methods take `&self`. Lock order: the plan's lock before a pool's lock.
#[derive(Debug)]
pub struct KvBlockManagerState {
    config: KvBlockManagerConfig,
    block: BlockInSlot,
    events: Arc<EventManager>,
    pools: BTreeMap<BlockTier, TierPool>,
    plan: Mutex<Plan>,
    gate: Mutex<Gate>,
}

impl KvBlockManagerState {
    /// Creates empty pools for all configured tiers, with lanes between adjacent tiers.
    ///
    /// # Errors
    /// [`ConfigError`] names the invalid setting.
    pub fn new(config: KvBlockManagerConfig) -> Result<Self, ConfigError> {
        let block = config.block()?;
        let events = EventManager::new(config.queued_events_max);
        let mut pools = BTreeMap::new();
        for (tier, at) in &config.tiers {
            at.validate(*tier, block.bytes())?;
            if let Some(layout) = config.layout_of(*tier) {
                FullyContiguous::new(layout)?;
            }
            let pool = TierPool::new(*tier, at.pool(config.layout.page_size), Arc::clone(&events));
            pools.insert(*tier, pool.map_err(|error| ConfigError::Pool { tier: *tier, error })?);
        }
        if pools.is_empty() {
            return Err(ConfigError::NoTier);
        }
        let plan = Mutex::new(lanes(&config, block.bytes(), &pools));
        let gate = Mutex::new(Gate::new(config.gate));
        Ok(Self { config, block, events, pools, plan, gate })
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &KvBlockManagerConfig {
        &self.config
    }

    /// The layout of a block in its slot.
    #[must_use]
    pub const fn block(&self) -> &BlockInSlot {
        &self.block
    }

    /// Current registrations and their changes.
    #[must_use]
    pub const fn events(&self) -> &Arc<EventManager> {
        &self.events
    }

    /// The pool of a tier; `None` if the tier is not configured.
    #[must_use]
    pub fn pool(&self, tier: BlockTier) -> Option<&TierPool> {
        self.pools.get(&tier)
    }

    /// The pool of the accelerator's memory.
    #[must_use]
    pub fn device(&self) -> Option<&BlockPool<Device>> {
        self.pool(BlockTier::Device).and_then(TierPool::device)
    }

    /// The pool of host memory.
    #[must_use]
    pub fn host(&self) -> Option<&BlockPool<Host>> {
        self.pool(BlockTier::Host).and_then(TierPool::host)
    }

    /// The pool of the local disk.
    #[must_use]
    pub fn disk(&self) -> Option<&BlockPool<Disk>> {
        self.pool(BlockTier::Disk).and_then(TierPool::disk)
    }

    /// The pool of the volume.
    #[must_use]
    pub fn volume(&self) -> Option<&BlockPool<Volume>> {
        self.pool(BlockTier::Volume).and_then(TierPool::volume)
    }

    /// Returns the tiers of a prompt's leading blocks. Takes no reference and does not count as a use.
    #[must_use]
    pub fn find(&self, sequences: &[SequenceHash]) -> Found {
        let tiers = self.events.tiers_of(sequences);
        Found { blocks: tiers.into_iter().take_while(|tiers| !tiers.is_empty()).collect() }
    }

    /// Returns the blocks that are in no tier. Takes no reference and does not count as a use.
    #[must_use]
    pub fn unknown(&self, sequences: &[SequenceHash]) -> Vec<SequenceHash> {
        let tiers = self.events.tiers_of(sequences);
        let unknown = sequences.iter().zip(tiers).filter(|(_, tiers)| tiers.is_empty());
        unknown.map(|(sequence, _)| *sequence).collect()
    }

    /// Returns a prompt's leading blocks, each from the nearest tier that has it. The handles keep the blocks in use.
    #[must_use]
    pub fn match_nearest(&self, sequences: &[SequenceHash]) -> Vec<TierBlock> {
        let nearest = |sequence: &SequenceHash| {
            self.pools.values().find_map(|pool| pool.match_prefix(&[*sequence]).pop())
        };
        sequences.iter().map_while(nearest).collect()
    }

    /// Offers a block to the next lower tier. Call it after a block was registered or found.
    pub fn offload<T: AnyTier>(&self, block: &RegisteredBlock<T>, priority: Priority) -> Offered {
        self.plan.lock().offload(T::wrap(block.clone()), priority)
    }

    /// Requests a copy of a block in the next higher tier. Keeps the block in use until the transfer.
    pub fn onboard(&self, block: TierBlock, priority: Priority) -> Offered {
        self.plan.lock().onboard(block, priority)
    }

    /// Whether a copy of a block into a higher tier is pending. [`finish`](Self::finish) reports its result. A request
    /// can also end without a result: its block is gone, is there already, or was displaced by other requests.
    #[must_use]
    pub fn is_onboarding(&self, sequence: SequenceHash) -> bool {
        self.plan.lock().is_onboarding(sequence)
    }

    /// Starts the next transfers and returns their orders. Call it after offers and outcomes.
    pub fn start(&self, now: Duration) -> Vec<TransferOrder> {
        self.plan.lock().start(now)
    }

    /// Accepts the outcome of a transfer, once. A successful copy updates the measured bandwidth. Returns `None` for an
    /// unknown or already finished transfer.
    pub fn finish(&self, id: TransferId, outcome: Outcome, now: Duration) -> Option<Settled> {
        let settled = self.plan.lock().finish(id, outcome, now)?;
        if settled.verdict == Verdict::Committed {
            self.gate.lock().measure(id.route, settled.bytes, settled.took, now);
        }
        Some(settled)
    }

    /// Cancels a transfer. Its slots stay reserved until its outcome is reported. Returns whether it was running.
    pub fn cancel(&self, id: TransferId) -> bool {
        self.plan.lock().cancel(id)
    }

    /// Cancels all copies of a block into higher tiers, but not its offload. Returns the transfers that executors
    /// should stop.
    pub fn cancel_onboard(&self, sequence: SequenceHash) -> Vec<TransferId> {
        self.plan.lock().cancel_onboard(sequence)
    }

    /// Ends expired pins and cancels overdue transfers. Returns the transfers that executors should stop.
    pub fn expire(&self, now: Duration) -> Vec<TransferId> {
        self.pools.values().for_each(|pool| {
            pool.expire_pins(now);
        });
        self.plan.lock().expire(now)
    }

    /// The earliest deadline of a running transfer.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.plan.lock().next_deadline()
    }

    /// Decrements all counts of the frequency filters. Call it once per tick.
    pub fn decay(&self) {
        self.plan.lock().decay();
    }

    /// Decides whether to load `blocks` blocks on a route or to compute them again. The engine prefills
    /// `prefill_tokens_per_second` (0 if unknown) after `prefill_wait`.
    #[must_use]
    pub fn decide(
        &self,
        route: Route,
        blocks: u32,
        prefill_tokens_per_second: f64,
        prefill_wait: Duration,
        now: Duration,
    ) -> GateVerdict {
        let block_bytes = self.block.bytes();
        let lane = self.plan.lock().stats().get(&route).copied().unwrap_or_default();
        let inputs = GateInputs {
            route,
            load_bytes: block_bytes.saturating_mul(blocks.into()),
            queued_bytes: block_bytes.saturating_mul(lane.queued + lane.in_flight),
            tokens: u64::from(blocks) * u64::from(self.config.layout.page_size),
            prefill_tokens_per_second,
            prefill_wait,
        };
        self.gate.lock().decide(inputs, now)
    }

    /// Gauges and counters.
    #[must_use]
    pub fn stats(&self) -> ManagerStats {
        ManagerStats {
            lanes: self.plan.lock().stats(),
            pools: self.pools.iter().map(|(tier, pool)| (*tier, pool.stats())).collect(),
            events: self.events.stats(),
        }
    }
}

/// Creates lanes in both directions between each configured tier and the next one.
fn lanes(
    config: &KvBlockManagerConfig,
    block_bytes: u64,
    pools: &BTreeMap<BlockTier, TierPool>,
) -> Plan {
    let mut plan = Plan::new();
    let mut lanes = Lanes { plan: &mut plan, config, block_bytes };
    for (upper, lower) in pools.values().zip(pools.values().skip(1)) {
        match (upper, lower) {
            (TierPool::Device(upper), TierPool::Host(lower)) => lanes.add(upper, lower),
            (TierPool::Device(upper), TierPool::Disk(lower)) => lanes.add(upper, lower),
            (TierPool::Device(upper), TierPool::Volume(lower)) => lanes.add(upper, lower),
            (TierPool::Host(upper), TierPool::Disk(lower)) => lanes.add(upper, lower),
            (TierPool::Host(upper), TierPool::Volume(lower)) => lanes.add(upper, lower),
            (TierPool::Disk(upper), TierPool::Volume(lower)) => lanes.add(upper, lower),
            _ => debug_assert!(false, "pools are in the order of their tiers"),
        }
    }
    plan
}

struct Lanes<'a> {
    plan: &'a mut Plan,
    config: &'a KvBlockManagerConfig,
    block_bytes: u64,
}

impl Lanes<'_> {
    /// Adds the lanes between two tiers: down, with a filter if the lower tier requires several offers, and up.
    fn add<U: AnyTier, L: AnyTier>(&mut self, upper: &BlockPool<U>, lower: &BlockPool<L>) {
        let bytes = self.block_bytes;
        let tier = |tier| self.config.tiers.get(&tier).copied().unwrap_or(TierConfig::new(1));
        let above = tier(U::TIER);
        let below = tier(L::TIER);
        let hashes = (below.blocks as usize).saturating_mul(FILTER_HASHES_PER_BLOCK);
        let is_filtered = below.offers_min > 1;
        let filter = is_filtered.then(|| FrequencyFilter::new(below.offers_min, hashes));
        self.plan.add_lane::<U, L>(lower.clone(), bytes, below.lane, filter);
        self.plan.add_lane::<L, U>(upper.clone(), bytes, above.lane, None);
    }
}
