//! Invariants, checked at each step and at the end.

use super::Fault;
use super::world::{Seen, World};
use crate::events::Registration;
use crate::identity::SlotId;
use crate::store::SlotState;
use crate::tier::BlockTier;
use kvasir_proto::types::SequenceHash;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Steps between two complete comparisons.
const COMPARE_STEPS: u64 = 8;

impl World {
    /// Checks the invariants of a step.
    pub(super) fn check(&mut self) -> Result<(), Fault> {
        let mut written = BTreeSet::new();
        for job in &self.jobs {
            let order = &job.order;
            let route = job.order.id.route;
            let pool = |tier| self.state.pool(tier).expect("a pool");
            if !written.insert((route.to, order.destination)) {
                return Err(format!("{order:?}: two transfers write one slot"));
            }
            let destination = pool(route.to).slot_state(order.destination);
            if destination != Some(SlotState::Quarantined) {
                return Err(format!("{order:?} writes a slot that is {destination:?}"));
            }
            let source = pool(route.from).slot_state(order.source);
            let is_kept = matches!(
                source,
                Some(SlotState::Active | SlotState::Duplicate | SlotState::Withdrawn)
            );
            if !is_kept {
                return Err(format!("{order:?} reads a slot that is {source:?}"));
            }
        }
        for at in 0..self.users.len() {
            let block = self.users[at].clone();
            if block.tier() == self.top {
                self.is_true(&block)?;
            }
        }
        if self.steps.is_multiple_of(COMPARE_STEPS) { self.compare() } else { Ok(()) }
    }

    /// Contents of the pools, slot by slot.
    fn contents(&self) -> Result<BTreeMap<(BlockTier, SequenceHash), Registration>, Fault> {
        let mut contents = BTreeMap::new();
        for (tier, at) in &self.config.tiers {
            let pool = self.state.pool(*tier).expect("a pool");
            let stats = pool.stats();
            let sum = stats.free
                + stats.mutable
                + stats.quarantined
                + stats.active
                + stats.inactive
                + stats.duplicates
                + stats.withdrawn;
            if sum != stats.blocks {
                return Err(format!("{tier}: the gauges do not sum up: {stats:?}"));
            }
            for slot in (0..at.blocks).map(SlotId) {
                let state = pool.slot_state(slot);
                if !matches!(state, Some(SlotState::Active | SlotState::Inactive)) {
                    continue;
                }
                let block = pool.slot_block(slot).expect("a block");
                let registration = Registration { tier: *tier, identity: block.identity };
                let key = (*tier, block.identity.sequence);
                if contents.insert(key, registration).is_some() {
                    return Err(format!("{tier}: {block:?} is in two slots"));
                }
            }
        }
        Ok(contents)
    }

    /// Checks that events, registry and pools agree.
    fn compare(&mut self) -> Result<(), Fault> {
        self.reader.read_events(self.state.events(), usize::MAX)?;
        let contents = self.contents()?;
        if self.reader.held != contents {
            return Err(format!("told: {:?}, there: {contents:?}", self.reader.held));
        }
        for block in self.prompts.iter().flatten() {
            for tier in self.config.tiers.keys() {
                let is_there = contents.contains_key(&(*tier, block.sequence));
                if self.state.events().holds(block.sequence, *tier) != is_there {
                    return Err(format!("the registry is wrong about {block:?} in {tier}"));
                }
            }
        }
        Ok(())
    }

    /// Ends everything, and checks that no state is left.
    pub(super) fn finish(mut self) -> Result<Seen, Fault> {
        self.users.clear();
        self.hands.clear();
        self.ill_percent = 0;
        self.now += Duration::from_secs(3_600);
        for _ in 0..10_000 {
            self.expire();
            self.start();
            if self.jobs.is_empty() {
                break;
            }
            self.execute()?;
            self.check()?;
        }
        self.compare()?;
        let image = self.state.events().image();
        let image: BTreeMap<_, _> =
            image.registrations.iter().map(|at| ((at.tier, at.identity.sequence), *at)).collect();
        if image != self.contents()? {
            return Err("the image is not what is there".to_owned());
        }
        self.reader.read_events(self.state.events(), 0)?;
        let stats = self.state.stats();
        for (tier, pool) in &stats.pools {
            if pool.free + pool.inactive != pool.blocks || pool.pins > 0 || pool.abandoned > 0 {
                return Err(format!("{tier}: a slot leaked: {pool:?}"));
            }
        }
        for (route, lane) in &stats.lanes {
            if lane.queued + lane.in_flight + lane.cancelling + lane.in_flight_bytes > 0 {
                return Err(format!("{route}: something is left: {lane:?}"));
            }
        }
        for (tier, at) in &self.config.tiers {
            let pool = self.state.pool(*tier).expect("a pool");
            pool.reset_inactive();
            if pool.stats().free != u64::from(at.blocks) {
                return Err(format!("{tier}: not all is free: {:?}", pool.stats()));
            }
        }
        if !self.state.events().image().registrations.is_empty() {
            return Err("something is registered in empty pools".to_owned());
        }
        for _ in 0..self.reader.images {
            self.seen.one("image");
        }
        Ok(self.seen)
    }
}
