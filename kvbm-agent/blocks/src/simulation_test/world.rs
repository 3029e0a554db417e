//! Simulated worker: its engine, its tiers and its executors.

use super::Fault;
use super::executor::Job;
use super::reader::Reader;
use super::setup::{PROMPT_BLOCKS, config, prompts};
use super::storage::{Bytes, Header, Storage, checksum, truth};
use crate::identity::{BlockIdentity, Priority, SlotId};
use crate::lifecycle::{Block, MutableBlock, WeakBlock};
use crate::manager::{KvBlockManagerConfig, KvBlockManagerState};
use crate::plan::{AnyTier, Outcome, Side, TierBlock, Verdict};
use crate::pool::BlockPool;
use crate::store::BlockInfo;
use crate::tier::{BlockTier, Device, Host};
use kvasir_proto::types::SequenceHash;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Counts of the situations that occurred.
#[derive(Debug, Default)]
pub(super) struct Seen {
    counts: BTreeMap<&'static str, u64>,
}

impl Seen {
    pub(super) fn one(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    pub(super) fn is_everything(&self) -> bool {
        [
            "served",
            "onboarded",
            "offloaded",
            "short",
            "corrupt source",
            "corrupt destination",
            "failed",
            "cancelled",
            "late",
            "killed",
            "restored",
            "image",
            "withdrawn",
            "evicted",
            "duplicate",
            "exhausted",
            "expired pin",
            "rot found",
        ]
        .iter()
        .all(|what| self.counts.contains_key(what))
    }
}

/// A weak handle to a block of the top tier.
#[derive(Debug)]
pub(super) enum Weak {
    Device(WeakBlock<Device>),
    Host(WeakBlock<Host>),
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) random: ChaCha8Rng,
    pub(super) config: KvBlockManagerConfig,
    pub(super) top: BlockTier,
    pub(super) state: KvBlockManagerState,
    pub(super) storage: Storage,
    pub(super) reader: Reader,
    pub(super) jobs: Vec<Job>,
    /// Blocks in use.
    pub(super) users: Vec<TierBlock>,
    pub(super) weak: Vec<Weak>,
    /// Blocks of the top tier that are being filled, of any type.
    pub(super) hands: Vec<Box<dyn Any>>,
    pub(super) prompts: Vec<Vec<BlockIdentity>>,
    pub(super) now: Duration,
    pub(super) steps: u64,
    pub(super) ill_percent: u32,
    pub(super) rot_percent: u32,
    pub(super) kill_permille: u32,
    pub(super) seen: Seen,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let config = config(&mut random);
        let blocks = config.tiers.iter().map(|(tier, at)| (*tier, at.blocks));
        Self {
            top: *config.tiers.keys().next().expect("a tier"),
            state: KvBlockManagerState::new(config.clone()).expect("a manager"),
            storage: Storage::new(blocks),
            config,
            reader: Reader::default(),
            jobs: Vec::new(),
            users: Vec::new(),
            weak: Vec::new(),
            hands: Vec::new(),
            prompts: prompts(&mut random),
            now: Duration::ZERO,
            steps: 0,
            ill_percent: random.random_range(0..40),
            rot_percent: random.random_range(0..4),
            kill_permille: random.random_range(0..6),
            seen: Seen::default(),
            random,
        }
    }

    pub(super) fn step(&mut self) -> Result<(), Fault> {
        self.steps += 1;
        self.now += Duration::from_millis(self.random.random_range(0..8));
        match self.random.random_range(0..100) {
            0..20 => self.produce()?,
            20..38 => self.serve()?,
            38..66 => self.execute()?,
            66..70 => self.cancel(),
            70..74 => self.expire(),
            74..88 => self.let_go(),
            88..91 => self.pin(),
            91..96 => {
                self.reader.read_events(self.state.events(), self.random.random_range(0..7))?
            }
            96 => self.state.decay(),
            97 => self.reset()?,
            _ => self.read_below()?,
        }
        if self.random.random_range(0..100) < self.rot_percent {
            self.rot();
        }
        if self.random.random_range(0..1_000) < self.kill_permille {
            self.kill();
        }
        if self.random.random() {
            self.start();
        }
        self.check()
    }

    /// The engine computes the blocks of a prompt that the top tier lacks.
    fn produce(&mut self) -> Result<(), Fault> {
        match self.top {
            BlockTier::Device => {
                let pool = self.state.device().expect("a pool").clone();
                self.produce_in(&pool, Weak::Device)
            }
            BlockTier::Host | BlockTier::Disk | BlockTier::Volume => {
                let pool = self.state.host().expect("a pool").clone();
                self.produce_in(&pool, Weak::Host)
            }
        }
    }

    fn produce_in<T: AnyTier>(
        &mut self,
        pool: &BlockPool<T>,
        weak: fn(WeakBlock<T>) -> Weak,
    ) -> Result<(), Fault> {
        let prompt = self.prompts[self.random.random_range(0..self.prompts.len())].clone();
        // Sometimes computes existing blocks again, as a concurrent request would.
        let known = if self.random.random_range(0..5) == 0 {
            self.random.random_range(0..PROMPT_BLOCKS)
        } else {
            prompt.iter().take_while(|block| pool.contains(block.sequence)).count()
        };
        let missing = &prompt[known..];
        let count = self.random.random_range(1..4).min(missing.len());
        let before = pool.stats();
        let allocated = match pool.get_mutable_blocks(count) {
            Ok(allocated) => allocated,
            Err(exhausted) => {
                let after = pool.stats();
                self.seen.one("exhausted");
                if (before.free, before.inactive) != (after.free, after.inactive) {
                    return Err(format!("{exhausted}, and yet something changed"));
                }
                return Ok(());
            }
        };
        if allocated.blocks.len() != count {
            return Err(format!("{} blocks for {count}", allocated.blocks.len()));
        }
        if !allocated.evicted.is_empty() {
            self.seen.one("evicted");
        }
        for (block, identity) in allocated.blocks.into_iter().zip(missing) {
            self.fill(block, identity, weak);
        }
        Ok(())
    }

    /// The owner writes a block, and registers or drops it.
    fn fill<T: AnyTier>(
        &mut self,
        block: MutableBlock<T>,
        identity: &BlockIdentity,
        weak: fn(WeakBlock<T>) -> Weak,
    ) {
        let scribble: Bytes = self.random.random();
        self.storage.at(T::TIER, block.slot()).bytes = scribble;
        if self.random.random_range(0..10) == 0 {
            self.hands.push(Box::new(block));
            return;
        }
        let complete = block.complete(*identity).expect("it is consistent");
        let bytes = truth(identity);
        self.storage.at(T::TIER, complete.slot()).bytes = bytes;
        let is_checked = self.random.random_range(0..4) > 0;
        let priority = Priority(self.random.random_range(0..3));
        let complete = complete.with_checksum(is_checked.then(|| checksum(&bytes)));
        let registered = complete.with_priority(priority).register().expect("no conflict");
        if matches!(registered, crate::lifecycle::Registration::Duplicate(_)) {
            self.seen.one("duplicate");
        }
        let registered = registered.into_block();
        self.state.offload(&registered, priority);
        if self.random.random_range(0..4) == 0 {
            self.weak.push(weak(registered.downgrade()));
        }
        if self.random.random() {
            self.users.push(T::wrap(registered));
        }
    }

    /// Serves a prompt: uses blocks of the top tier without verification, and requests blocks of lower tiers.
    fn serve(&mut self) -> Result<(), Fault> {
        let prompt = &self.prompts[self.random.random_range(0..self.prompts.len())];
        let sequences: Vec<SequenceHash> = prompt.iter().map(|block| block.sequence).collect();
        let found = self.state.find(&sequences);
        let blocks = self.state.match_nearest(&sequences);
        if blocks.len() != found.len() {
            return Err(format!("{} blocks are known, {} are there", found.len(), blocks.len()));
        }
        for (block, asked) in blocks.into_iter().zip(sequences) {
            if block.identity().sequence != asked {
                return Err(format!("{asked:?} was asked for, {block:?} came"));
            }
            self.use_block(block)?;
        }
        if let Some(weak) = self.weak.pop() {
            let block = match &weak {
                Weak::Device(weak) => weak.upgrade().map(TierBlock::Device),
                Weak::Host(weak) => weak.upgrade().map(TierBlock::Host),
            };
            block.map_or(Ok(()), |block| self.use_block(block))?;
        }
        Ok(())
    }

    fn use_block(&mut self, block: TierBlock) -> Result<(), Fault> {
        if block.tier() == self.top {
            self.seen.one("served");
            self.is_true(&block)?;
            if self.random.random() {
                match &block {
                    TierBlock::Device(block) => self.state.offload(block, Priority(0)),
                    TierBlock::Host(block) => self.state.offload(block, Priority(0)),
                    TierBlock::Disk(_) | TierBlock::Volume(_) => panic!("not the top"),
                };
            }
            if self.random.random_range(0..3) == 0 {
                self.users.push(block);
            }
        } else {
            self.state.onboard(block, Priority(self.random.random_range(0..3)));
        }
        Ok(())
    }

    /// Checks the bytes of a block in use.
    pub(super) fn is_true(&mut self, block: &TierBlock) -> Result<(), Fault> {
        let bytes = self.storage.at(block.tier(), block.slot()).bytes;
        if bytes == truth(block.identity()) {
            return Ok(());
        }
        Err(format!("wrong bytes are served: {block:?}"))
    }

    /// Reads a lower tier directly, after verifying the checksum.
    fn read_below(&mut self) -> Result<(), Fault> {
        let prompt = &self.prompts[self.random.random_range(0..self.prompts.len())];
        let sequences: Vec<SequenceHash> = prompt.iter().map(|block| block.sequence).collect();
        let Some(tier) = self.config.tiers.keys().nth(1) else { return Ok(()) };
        let blocks = self.state.pool(*tier).map(|pool| pool.match_prefix(&sequences));
        for block in blocks.into_iter().flatten() {
            let Some(stated) = block.checksum() else {
                return Err(format!("{block:?} has no checksum"));
            };
            if stated == checksum(&self.storage.at(block.tier(), block.slot()).bytes) {
                self.is_true(&block)?;
            } else {
                self.seen.one("rot found");
                if !block.withdraw() {
                    return Err(format!("{block:?} was found and not registered"));
                }
                self.seen.one("withdrawn");
            }
        }
        Ok(())
    }

    pub(super) fn start(&mut self) {
        for order in self.state.start(self.now) {
            self.jobs.push(Job::new(order, self.ill_percent, &mut self.random));
        }
    }

    /// Advances the executors in random order.
    pub(super) fn execute(&mut self) -> Result<(), Fault> {
        for _ in 0..self.random.random_range(1..12) {
            if self.jobs.is_empty() {
                break;
            }
            let at = self.random.random_range(0..self.jobs.len());
            let outcome = self.jobs[at].step(&mut self.storage, &mut self.random);
            if let Some(outcome) = outcome {
                let job = self.jobs.swap_remove(at);
                self.settle(&job, outcome)?;
            }
        }
        Ok(())
    }

    fn settle(&mut self, job: &Job, outcome: Outcome) -> Result<(), Fault> {
        let order = &job.order;
        let Some(settled) = self.state.finish(order.id, outcome, self.now) else {
            return Err(format!("{:?} is unknown", order.id));
        };
        if self.random.random_range(0..4) == 0
            && let Some(again) = self.state.finish(order.id, outcome, self.now)
        {
            return Err(format!("one outcome counts twice: {again:?}"));
        }
        match settled.verdict {
            Verdict::Committed => {
                if job.is_cancelled {
                    return Err(format!("{order:?} was cancelled and is committed"));
                }
                let Some(copy) = &settled.copy else { return Err("a copy is missing".to_owned()) };
                self.is_committed(copy, order.destination)?;
                self.seen.one(if order.id.route.is_up() { "onboarded" } else { "offloaded" });
            }
            Verdict::Corrupt { side: Side::Source } => {
                self.seen.one("corrupt source");
                let source = self.info(order.id.route.from, order.source);
                if source.is_some_and(|block| block.identity == order.identity) {
                    return Err(format!("{order:?}: a corrupt source is still registered"));
                }
            }
            Verdict::Corrupt { side: Side::Destination } => self.seen.one("corrupt destination"),
            Verdict::Short { .. } => self.seen.one("short"),
            Verdict::Failed { .. } => self.seen.one("failed"),
            Verdict::Cancelled => self.seen.one("cancelled"),
            Verdict::Late => self.seen.one("late"),
            Verdict::Refused { error } => return Err(format!("{order:?}: {error}")),
        }
        if settled.verdict != Verdict::Committed && settled.copy.is_some() {
            return Err(format!("{order:?} failed and has a copy"));
        }
        Ok(())
    }

    fn info(&self, tier: BlockTier, slot: SlotId) -> Option<BlockInfo> {
        self.state.pool(tier)?.slot_block(slot)
    }

    /// A copy has a checksum, which its bytes match unless a bit may have flipped since. If the engine was faster, its
    /// block replaces the copy.
    fn is_committed(&mut self, copy: &TierBlock, destination: SlotId) -> Result<(), Fault> {
        if copy.slot() != destination {
            self.seen.one("overtaken");
            return if copy.tier() == self.top { self.is_true(copy) } else { Ok(()) };
        }
        let Some(stated) = copy.checksum() else {
            return Err(format!("{copy:?} lost its checksum"));
        };
        if stated != checksum(&truth(copy.identity())) {
            return Err(format!("{copy:?} has the checksum of wrong bytes"));
        }
        if copy.tier() == self.top { self.is_true(copy) } else { Ok(()) }
    }

    fn cancel(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let at = self.random.random_range(0..self.jobs.len());
        let job = &mut self.jobs[at];
        let is_new = if self.random.random() {
            self.state.cancel(job.order.id)
        } else {
            self.state.cancel_onboard(job.order.identity.sequence).contains(&job.order.id)
        };
        job.is_cancelled |= is_new;
    }

    pub(super) fn expire(&mut self) {
        self.now += Duration::from_millis(self.random.random_range(0..60));
        let before = self.state.stats().pools.values().map(|pool| pool.pins_expired).sum::<u64>();
        let expired: BTreeSet<_> = self.state.expire(self.now).into_iter().collect();
        for job in &mut self.jobs {
            job.is_cancelled |= expired.contains(&job.order.id);
        }
        let after = self.state.stats().pools.values().map(|pool| pool.pins_expired).sum::<u64>();
        if after > before {
            self.seen.one("expired pin");
        }
    }

    fn let_go(&mut self) {
        for _ in 0..self.random.random_range(1..8) {
            if !self.users.is_empty() {
                drop(self.users.swap_remove(self.random.random_range(0..self.users.len())));
            }
        }
        self.hands.pop();
    }

    fn pin(&mut self) {
        let deadline = self.now + Duration::from_millis(self.random.random_range(0..100));
        match (self.users.last(), self.state.device(), self.state.host()) {
            (Some(TierBlock::Device(block)), Some(pool), _) => drop(pool.pin(block, deadline)),
            (Some(TierBlock::Host(block)), _, Some(pool)) => drop(pool.pin(block, deadline)),
            _ => {}
        }
    }

    fn reset(&mut self) -> Result<(), Fault> {
        let at = self.random.random_range(0..self.config.tiers.len());
        let tier = self.config.tiers.keys().nth(at).expect("a tier");
        let pool = self.state.pool(*tier).expect("a pool");
        let before = pool.stats().inactive;
        let gone = pool.reset_inactive().len() as u64;
        let left = pool.stats().inactive;
        if before == gone + left { Ok(()) } else { Err(format!("{before} are {gone} and {left}")) }
    }

    /// Flips a bit in a lower tier.
    fn rot(&mut self) {
        let lower = self.config.tiers.len() - 1;
        let at = self.random.random_range(0..lower) + 1;
        let tier = *self.config.tiers.keys().nth(at).expect("a tier");
        self.storage.rot(tier, &mut self.random);
    }

    /// Kills the process at any point, and restarts it with the content of its disks.
    fn kill(&mut self) {
        self.seen.one("killed");
        self.jobs.clear();
        self.users.clear();
        self.weak.clear();
        self.hands.clear();
        self.storage.lose_memory(&mut self.random);
        self.state = KvBlockManagerState::new(self.config.clone()).expect("a manager");
        self.reader = self.reader.of_new_process();
        for tier in [BlockTier::Disk, BlockTier::Volume] {
            let Some(pool) = self.state.pool(tier) else { continue };
            for (slot, place) in (0..).zip(self.storage.places(tier)) {
                let Some(Header { identity, checksum }) = place.header else { continue };
                let slot = SlotId(slot);
                let checksum = Some(checksum);
                let block = BlockInfo { slot, identity, checksum, priority: Priority(0) };
                // Two slots may contain the same block.
                if pool.restore(block).is_ok() {
                    self.seen.one("restored");
                }
            }
        }
    }
}
