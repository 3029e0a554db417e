use super::{
    AnyTier, FrequencyFilter, Lane, LaneLimits, LaneStats, Offered, Outcome, Route, Settled,
    TierBlock, TransferId, TransferOrder,
};
use crate::identity::Priority;
use crate::pool::BlockPool;
use crate::tier::BlockTier;
use kvasir_proto::types::SequenceHash;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

/// A lane between any two tiers, without type parameters.
trait AnyLane: Debug + Send {
    fn offer(&mut self, block: TierBlock, priority: Priority) -> Offered;
    fn request(&mut self, block: TierBlock, priority: Priority) -> Offered;
    fn is_pending(&self, sequence: SequenceHash) -> bool;
    fn start(&mut self, now: Duration) -> Vec<TransferOrder>;
    fn finish(&mut self, id: TransferId, outcome: Outcome, now: Duration) -> Option<Settled>;
    fn cancel(&mut self, id: TransferId) -> bool;
    fn cancel_block(&mut self, sequence: SequenceHash) -> Option<TransferId>;
    fn expire(&mut self, now: Duration) -> Vec<TransferId>;
    fn next_deadline(&self) -> Option<Duration>;
    fn decay(&mut self);
    fn stats(&self) -> LaneStats;
}

impl<S: AnyTier, D: AnyTier> AnyLane for Lane<S, D> {
    fn offer(&mut self, block: TierBlock, priority: Priority) -> Offered {
        S::unwrap(block).map_or(Offered::NoLane, |block| self.offer(&block, priority))
    }

    fn request(&mut self, block: TierBlock, priority: Priority) -> Offered {
        S::unwrap(block).map_or(Offered::NoLane, |block| self.request(block, priority))
    }

    fn is_pending(&self, sequence: SequenceHash) -> bool {
        self.is_pending(sequence)
    }

    fn start(&mut self, now: Duration) -> Vec<TransferOrder> {
        self.start(now)
    }

    fn finish(&mut self, id: TransferId, outcome: Outcome, now: Duration) -> Option<Settled> {
        self.finish(id, outcome, now)
    }

    fn cancel(&mut self, id: TransferId) -> bool {
        self.cancel(id)
    }

    fn cancel_block(&mut self, sequence: SequenceHash) -> Option<TransferId> {
        self.cancel_block(sequence)
    }

    fn expire(&mut self, now: Duration) -> Vec<TransferId> {
        self.expire(now)
    }

    fn next_deadline(&self) -> Option<Duration> {
        self.next_deadline()
    }

    fn decay(&mut self) {
        self.decay();
    }

    fn stats(&self) -> LaneStats {
        self.stats()
    }
}

/// All lanes between the tiers of a worker.
#[derive(Debug, Default)]
pub struct Plan {
    lanes: BTreeMap<Route, Box<dyn AnyLane>>,
}

impl Plan {
    /// A plan without lanes: it copies nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the lane from tier `S` into a pool. It replaces an earlier lane on the same route.
    pub fn add_lane<S: AnyTier, D: AnyTier>(
        &mut self,
        destination: BlockPool<D>,
        block_bytes: u64,
        limits: LaneLimits,
        filter: Option<FrequencyFilter>,
    ) {
        let lane = Lane::<S, D>::new(destination, block_bytes, limits, filter);
        self.lanes.insert(Lane::<S, D>::ROUTE, Box::new(lane));
    }

    /// The routes of all lanes, in order.
    pub fn routes(&self) -> impl Iterator<Item = Route> + '_ {
        self.lanes.keys().copied()
    }

    /// The tier to which blocks of `tier` are offloaded.
    #[must_use]
    pub fn below(&self, tier: BlockTier) -> Option<BlockTier> {
        let mut down = self.routes().filter(|route| route.from == tier && !route.is_up());
        down.next().map(|route| route.to)
    }

    /// The tier to which blocks of `tier` are onboarded.
    #[must_use]
    pub fn above(&self, tier: BlockTier) -> Option<BlockTier> {
        let mut up = self.routes().filter(|route| route.from == tier && route.is_up());
        up.next().map(|route| route.to)
    }

    /// Offers a block to the next lower tier. Call it after a block was registered or found.
    pub fn offload(&mut self, block: TierBlock, priority: Priority) -> Offered {
        let Some(to) = self.below(block.tier()) else { return Offered::NoLane };
        let lane = self.lanes.get_mut(&Route { from: block.tier(), to });
        lane.map_or(Offered::NoLane, |lane| lane.offer(block, priority))
    }

    /// Requests a copy of a block in the next higher tier. Keeps the block in use until the transfer.
    pub fn onboard(&mut self, block: TierBlock, priority: Priority) -> Offered {
        let Some(to) = self.above(block.tier()) else { return Offered::NoLane };
        let lane = self.lanes.get_mut(&Route { from: block.tier(), to });
        lane.map_or(Offered::NoLane, |lane| lane.request(block, priority))
    }

    /// Whether a copy of a block into a higher tier is pending.
    #[must_use]
    pub fn is_onboarding(&self, sequence: SequenceHash) -> bool {
        self.lanes.iter().any(|(route, lane)| route.is_up() && lane.is_pending(sequence))
    }

    /// Starts the next transfers of all lanes and returns their orders, upward routes first.
    pub fn start(&mut self, now: Duration) -> Vec<TransferOrder> {
        let (up, down): (Vec<_>, Vec<_>) =
            self.lanes.iter_mut().partition(|(route, _)| route.is_up());
        up.into_iter().chain(down).flat_map(|(_, lane)| lane.start(now)).collect()
    }

    /// Accepts the outcome of a transfer, once. Offers an offloaded copy to the next lower tier. Returns `None` for an
    /// unknown or already finished transfer.
    pub fn finish(&mut self, id: TransferId, outcome: Outcome, now: Duration) -> Option<Settled> {
        let settled = self.lanes.get_mut(&id.route)?.finish(id, outcome, now)?;
        if let (Some(copy), false) = (&settled.copy, id.route.is_up()) {
            self.offload(copy.clone(), copy.priority().unwrap_or_default());
        }
        Some(settled)
    }

    /// Cancels a transfer. Its slots stay reserved until its outcome is reported. Returns whether it was running.
    pub fn cancel(&mut self, id: TransferId) -> bool {
        self.lanes.get_mut(&id.route).is_some_and(|lane| lane.cancel(id))
    }

    /// Cancels all copies of a block into higher tiers, but not its offload. Returns the transfers that executors
    /// should stop.
    pub fn cancel_onboard(&mut self, sequence: SequenceHash) -> Vec<TransferId> {
        let up = self.lanes.iter_mut().filter(|(route, _)| route.is_up());
        up.filter_map(|(_, lane)| lane.cancel_block(sequence)).collect()
    }

    /// Cancels overdue transfers. Returns the transfers that executors should stop.
    pub fn expire(&mut self, now: Duration) -> Vec<TransferId> {
        self.lanes.values_mut().flat_map(|lane| lane.expire(now)).collect()
    }

    /// The earliest deadline of a running transfer.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.lanes.values().filter_map(|lane| lane.next_deadline()).min()
    }

    /// Decrements every count of the frequency filters.
    pub fn decay(&mut self) {
        self.lanes.values_mut().for_each(|lane| lane.decay());
    }

    /// Gauges and counters of each lane.
    #[must_use]
    pub fn stats(&self) -> BTreeMap<Route, LaneStats> {
        self.lanes.iter().map(|(route, lane)| (*route, lane.stats())).collect()
    }
}
