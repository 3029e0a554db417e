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

/// Hashes that a frequency filter knows, for each block of its tier.
const FILTER_HASHES_PER_BLOCK: usize = 4;

/// Gauges and counters of everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerStats {
    /// Of each tier's pool.
    pub pools: BTreeMap<BlockTier, PoolStats>,
    /// Of each lane.
    pub lanes: BTreeMap<Route, LaneStats>,
    /// Of the events.
    pub events: EventStats,
}

/// The pools, the plan between them, and what is registered where. All methods take `&self`; the plan's lock is taken
/// before a pool's.
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
    /// Empty pools for all tiers of the configuration, with lanes between tiers that follow one another.
    ///
    /// # Errors
    /// [`ConfigError`] names what is refused.
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

    /// What it was made from.
    #[must_use]
    pub const fn config(&self) -> &KvBlockManagerConfig {
        &self.config
    }

    /// A block in its slot.
    #[must_use]
    pub const fn block(&self) -> &BlockInSlot {
        &self.block
    }

    /// What is registered where, and what changed.
    #[must_use]
    pub const fn events(&self) -> &Arc<EventManager> {
        &self.events
    }

    /// The pool of any tier.
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

    /// The pool of the disk.
    #[must_use]
    pub fn disk(&self) -> Option<&BlockPool<Disk>> {
        self.pool(BlockTier::Disk).and_then(TierPool::disk)
    }

    /// The pool of the volume.
    #[must_use]
    pub fn volume(&self) -> Option<&BlockPool<Volume>> {
        self.pool(BlockTier::Volume).and_then(TierPool::volume)
    }

    /// How much of a prompt is where. Takes no share and counts as no use.
    #[must_use]
    pub fn find(&self, sequences: &[SequenceHash]) -> Found {
        let tiers = self.events.tiers_of(sequences);
        Found { blocks: tiers.into_iter().take_while(|tiers| !tiers.is_empty()).collect() }
    }

    /// Those of some blocks that no tier has. Takes no share and counts as no use.
    #[must_use]
    pub fn unknown(&self, sequences: &[SequenceHash]) -> Vec<SequenceHash> {
        let tiers = self.events.tiers_of(sequences);
        let unknown = sequences.iter().zip(tiers).filter(|(_, tiers)| tiers.is_empty());
        unknown.map(|(sequence, _)| *sequence).collect()
    }

    /// The leading blocks of a prompt, each in the nearest tier that has it, in use from now on.
    #[must_use]
    pub fn match_nearest(&self, sequences: &[SequenceHash]) -> Vec<TierBlock> {
        let nearest = |sequence: &SequenceHash| {
            self.pools.values().find_map(|pool| pool.match_prefix(&[*sequence]).pop())
        };
        sequences.iter().map_while(nearest).collect()
    }

    /// Offers a block to the tier below: call it when a block was registered, and when it was found.
    pub fn offload<T: AnyTier>(&self, block: &RegisteredBlock<T>, priority: Priority) -> Offered {
        self.plan.lock().offload(T::wrap(block.clone()), priority)
    }

    /// Asks for a copy in the tier above. The block is kept while it waits.
    pub fn onboard(&self, block: TierBlock, priority: Priority) -> Offered {
        self.plan.lock().onboard(block, priority)
    }

    /// Whether a copy of a block in a tier above is asked for, and has not ended: [`finish`](Self::finish) will say how.
    /// A request also ends without that, when its block is gone, there already, or gave way to others.
    #[must_use]
    pub fn is_onboarding(&self, sequence: SequenceHash) -> bool {
        self.plan.lock().is_onboarding(sequence)
    }

    /// Orders the next transfers. Call it after offers and outcomes.
    pub fn start(&self, now: Duration) -> Vec<TransferOrder> {
        self.plan.lock().start(now)
    }

    /// Takes the outcome of a transfer, once; what was copied tells the gate how fast it goes. None if there is no such
    /// transfer, or its outcome came before.
    pub fn finish(&self, id: TransferId, outcome: Outcome, now: Duration) -> Option<Settled> {
        let settled = self.plan.lock().finish(id, outcome, now)?;
        if settled.verdict == Verdict::Committed {
            self.gate.lock().measure(id.route, settled.bytes, settled.took, now);
        }
        Some(settled)
    }

    /// Gives up a transfer. Its slots stay as they are until its outcome comes. Whether it was running.
    pub fn cancel(&self, id: TransferId) -> bool {
        self.plan.lock().cancel(id)
    }

    /// Gives up the copies of a block in tiers above; an offload of it goes on. Returns the transfers that executors should
    /// stop.
    pub fn cancel_onboard(&self, sequence: SequenceHash) -> Vec<TransferId> {
        self.plan.lock().cancel_onboard(sequence)
    }

    /// Ends pins and cancels transfers whose time is over. Returns the transfers that executors should stop.
    pub fn expire(&self, now: Duration) -> Vec<TransferId> {
        self.pools.values().for_each(|pool| {
            pool.expire_pins(now);
        });
        self.plan.lock().expire(now)
    }

    /// When the next transfer's time is over.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.plan.lock().next_deadline()
    }

    /// A tick of the frequency filters: counts go down by one.
    pub fn decay(&self) {
        self.plan.lock().decay();
    }

    /// Whether `blocks` blocks should be loaded on a route, or computed again by an engine that prefills
    /// `prefill_tokens_per_second` (0 if that is unknown) after `prefill_wait`.
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

/// Lanes in both directions between each tier and the next one that there is.
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
