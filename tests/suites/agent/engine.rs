//! An engine that speaks to an agent directly.

use kvasir_proto::types::KvEvent;
use kvasir_sim::engine::direct::kv_events;
use kvasir_sim::engine::scheduler::{MAIN_GROUP, Prompt, Scheduler, SchedulerConfig};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

pub const BLOCK_SIZE: u32 = 4;
const CAPACITY_BLOCKS: usize = 400;
/// Prompts begin with one of so many prefixes.
const PREFIXES: u32 = 12;
/// Tokens of a prompt.
const PREFIX_TOKENS: u32 = 60;
const SUFFIX_TOKENS_MAX: u32 = 40;
const ANSWER_TOKENS: u32 = 20;

/// A scheduler under a seeded load that evicts, shares and computes blocks twice.
pub struct Engine {
    scheduler: Scheduler,
    random: ChaCha8Rng,
    requests: u64,
}

/// What prompts of a prefix have in common.
pub fn prompt_tokens(prefix: u32) -> Vec<u32> {
    (0..PREFIX_TOKENS).map(|at| prefix << 16 | at).collect()
}

impl Engine {
    pub fn new(seed: u64) -> Self {
        let scheduler = Scheduler::new(SchedulerConfig {
            block_size: BLOCK_SIZE as usize,
            capacity_blocks: CAPACITY_BLOCKS,
            sliding_window: None,
            name_seed: seed,
        });
        Self { scheduler, random: ChaCha8Rng::seed_from_u64(seed), requests: 0 }
    }

    /// The events of the next step that has any.
    pub fn batch(&mut self) -> Vec<KvEvent> {
        loop {
            if self.scheduler.is_idle() || self.random.random_bool(0.3) {
                self.submit();
            }
            let step = self.scheduler.step();
            if !step.events.is_empty() {
                return kv_events(&step.events, BLOCK_SIZE as usize);
            }
        }
    }

    fn submit(&mut self) {
        let prefix = self.random.random_range(0..PREFIXES);
        let suffix = self.random.random_range(1..SUFFIX_TOKENS_MAX);
        let first = self.random.random::<u32>();
        let tokens = prompt_tokens(prefix).into_iter();
        let tokens = tokens.chain((0..suffix).map(|at| first.wrapping_add(at))).collect();
        let answer = (0..ANSWER_TOKENS).map(|at| first.wrapping_add(1 << 20 | at)).collect();
        self.requests += 1;
        self.scheduler.submit(self.requests, Prompt { tokens, answer }).expect("a small prompt");
    }

    /// What it holds: names with their copies.
    pub fn truth(&self) -> BTreeMap<u64, u32> {
        self.scheduler.contents(MAIN_GROUP)
    }
}
