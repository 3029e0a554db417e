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

/// A lane between any two tiers.
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

/// The lanes between the tiers of a worker.
#[derive(Debug, Default)]
pub struct Plan {
    lanes: BTreeMap<Route, Box<dyn AnyLane>>,
}

impl Plan {
    /// Without lanes: nothing is copied.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the lane from tier `S` into a pool; it takes the place of an earlier one.
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

    /// The lanes' routes, in order.
    pub fn routes(&self) -> impl Iterator<Item = Route> + '_ {
        self.lanes.keys().copied()
    }

    /// The tier to which blocks of a tier are offloaded.
    #[must_use]
    pub fn below(&self, tier: BlockTier) -> Option<BlockTier> {
        let mut down = self.routes().filter(|route| route.from == tier && !route.is_up());
        down.next().map(|route| route.to)
    }

    /// The tier to which blocks of a tier are onboarded.
    #[must_use]
    pub fn above(&self, tier: BlockTier) -> Option<BlockTier> {
        let mut up = self.routes().filter(|route| route.from == tier && route.is_up());
        up.next().map(|route| route.to)
    }

    /// Offers a block to the tier below, after it was registered or found.
    pub fn offload(&mut self, block: TierBlock, priority: Priority) -> Offered {
        let Some(to) = self.below(block.tier()) else { return Offered::NoLane };
        let lane = self.lanes.get_mut(&Route { from: block.tier(), to });
        lane.map_or(Offered::NoLane, |lane| lane.offer(block, priority))
    }

    /// Asks for a copy of a block in the tier above. The block is kept while it waits.
    pub fn onboard(&mut self, block: TierBlock, priority: Priority) -> Offered {
        let Some(to) = self.above(block.tier()) else { return Offered::NoLane };
        let lane = self.lanes.get_mut(&Route { from: block.tier(), to });
        lane.map_or(Offered::NoLane, |lane| lane.request(block, priority))
    }

    /// Whether a copy of a block in a tier above is asked for, and has not ended.
    #[must_use]
    pub fn is_onboarding(&self, sequence: SequenceHash) -> bool {
        self.lanes.iter().any(|(route, lane)| route.is_up() && lane.is_pending(sequence))
    }

    /// Orders the next transfers of all lanes; those that lead up come first.
    pub fn start(&mut self, now: Duration) -> Vec<TransferOrder> {
        let (up, down): (Vec<_>, Vec<_>) =
            self.lanes.iter_mut().partition(|(route, _)| route.is_up());
        up.into_iter().chain(down).flat_map(|(_, lane)| lane.start(now)).collect()
    }

    /// Takes the outcome of a transfer, once. A copy that was registered is offered to the tier below, if it came from
    /// above. None if there is no such transfer, or its outcome came before.
    pub fn finish(&mut self, id: TransferId, outcome: Outcome, now: Duration) -> Option<Settled> {
        let settled = self.lanes.get_mut(&id.route)?.finish(id, outcome, now)?;
        if let (Some(copy), false) = (&settled.copy, id.route.is_up()) {
            self.offload(copy.clone(), copy.priority().unwrap_or_default());
        }
        Some(settled)
    }

    /// Gives up a transfer. Its slots stay as they are until its outcome comes. Whether it was running.
    pub fn cancel(&mut self, id: TransferId) -> bool {
        self.lanes.get_mut(&id.route).is_some_and(|lane| lane.cancel(id))
    }

    /// Gives up the copies of a block in tiers above; an offload of it goes on. Returns the transfers that executors should
    /// stop.
    pub fn cancel_onboard(&mut self, sequence: SequenceHash) -> Vec<TransferId> {
        let up = self.lanes.iter_mut().filter(|(route, _)| route.is_up());
        up.filter_map(|(_, lane)| lane.cancel_block(sequence)).collect()
    }

    /// Cancels the transfers whose time is over. Their executors should stop them.
    pub fn expire(&mut self, now: Duration) -> Vec<TransferId> {
        self.lanes.values_mut().flat_map(|lane| lane.expire(now)).collect()
    }

    /// When the next transfer's time is over.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.lanes.values().filter_map(|lane| lane.next_deadline()).min()
    }

    /// Takes one from each count of the frequency filters.
    pub fn decay(&mut self) {
        self.lanes.values_mut().for_each(|lane| lane.decay());
    }

    /// Gauges and counters of each lane.
    #[must_use]
    pub fn stats(&self) -> BTreeMap<Route, LaneStats> {
        self.lanes.iter().map(|(route, lane)| (*route, lane.stats())).collect()
    }
}
