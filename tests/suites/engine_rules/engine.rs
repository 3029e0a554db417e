//! A model of an engine: what it caches, what it publishes, and what it can reuse.

use crate::cache::Cache;
use crate::chain::{Block, Name, blocks};
use crate::prompt::{ADAPTERS, Prompt};
use crate::publish;
use crate::script::Action;
use crate::setup::Setup;
use crate::wire::Event;
use kvasir_proto::types::{DpRank, Tier, TierSet};
use kvasir_tests::script::ScriptRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// An adapter under one name: where it was loaded from, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adapter {
    pub path: u64,
    pub number: u64,
}

/// One rank.
#[derive(Debug)]
struct Rank {
    cache: Cache,
    adapters: [Adapter; ADAPTERS.len()],
    /// What each name stood for before.
    earlier: [Vec<Adapter>; ADAPTERS.len()],
    /// Blocks that a late connector has yet to announce.
    pending: Vec<(Vec<Block>, Adapter)>,
}

impl Rank {
    fn new() -> Self {
        Self {
            cache: Cache::default(),
            adapters: [1, 2, 3].map(|number| Adapter { path: number, number }),
            earlier: Default::default(),
            pending: Vec::new(),
        }
    }

    fn adapter(&self, prompt: &Prompt) -> Adapter {
        prompt.adapter.map_or(Adapter { path: 0, number: 0 }, |adapter| self.adapters[adapter])
    }
}

/// An engine.
#[derive(Debug)]
pub struct Engine {
    setup: Setup,
    ranks: Vec<Rank>,
    next_path: u64,
    next_number: u64,
}

impl Engine {
    pub fn new(setup: Setup) -> Self {
        let ranks = (0..setup.ranks).map(|_| Rank::new()).collect();
        Self { setup, ranks, next_path: 10, next_number: 10 }
    }

    /// All blocks are gone, and adapters are numbered anew. Where adapters are loaded from stays.
    pub fn restart(&mut self) {
        for rank in &mut self.ranks {
            let paths = rank.adapters.map(|adapter| adapter.path);
            *rank = Rank::new();
            rank.adapters.iter_mut().zip(paths).for_each(|(adapter, path)| adapter.path = path);
        }
        self.next_number = 10;
    }

    /// For each complete block of a prompt, the tiers from which a rank can reuse the block.
    pub fn reusable(&self, rank: DpRank, prompt: &Prompt) -> Vec<TierSet> {
        let at = &self.ranks[rank as usize];
        let looks_ahead = self.setup.options.looks_ahead;
        let path = at.adapter(prompt).path;
        let blocks = blocks(prompt, self.setup.block_size, path, looks_ahead);
        let tiers = blocks.iter().map(|block| {
            if looks_ahead && block.content.next.is_none() {
                at.cache.tiers_under_any_next(&block.content)
            } else {
                at.cache.tiers(block.name)
            }
        });
        tiers.collect()
    }

    /// Does something, and returns the events of one batch.
    pub fn act(&mut self, action: &Action) -> (DpRank, Vec<Event>) {
        let mut events = Vec::new();
        let rank = action.rank();
        match action {
            Action::Request { prompt, choice, .. } => {
                let adapter = self.ranks[rank as usize].adapter(prompt);
                self.request(rank, prompt, adapter, *choice, &mut events);
            }
            Action::Replace { prompt, choice, .. } => {
                self.replace(rank, prompt, *choice, &mut events);
            }
            Action::Late { prompt, choice, .. } => {
                let earlier =
                    prompt.adapter.and_then(|at| self.at(rank).earlier[at].last().copied());
                if let Some(adapter) = earlier {
                    self.request(rank, prompt, adapter, *choice, &mut events);
                }
            }
            Action::Offload { choice, .. } => {
                let pending = std::mem::take(&mut self.at(rank).pending);
                for (blocks, adapter) in pending {
                    self.offload(rank, &blocks, adapter, *choice, &mut events);
                }
            }
            Action::Evict { tier, choice, .. } => self.evict(rank, *tier, *choice, &mut events),
            Action::Clear { tier, has_own_kind, .. } => {
                let cleared = tier.map_or(Tier::ALL.to_vec(), |tier| vec![tier]);
                cleared.into_iter().for_each(|tier| self.at(rank).cache.clear(tier));
                let has_own_kind = *has_own_kind;
                let event = |tier| Event::ClearedTier { tier, has_own_kind };
                events.push(tier.map_or(Event::Cleared, event));
            }
            Action::Move { from, to, choice, .. } => {
                self.move_blocks(rank, *from, *to, *choice, &mut events);
            }
            Action::Inactive { .. } => {
                events.push(Event::Inactive(self.at(rank).cache.copies(Tier::Device).to_vec()));
            }
            Action::Vanish { tier, is_unreadable, .. } => {
                let cache = &mut self.at(rank).cache;
                let names: Vec<Name> = cache.copies(*tier).iter().copied().take(2).collect();
                for &name in &names {
                    cache.remove(*tier, name);
                }
                if *is_unreadable {
                    events.push(Event::Unreadable);
                } else {
                    events.push(Event::Unknown(names));
                }
            }
            Action::RestartIndex { .. } | Action::RestartEngine => {}
        }
        (rank, events)
    }

    fn at(&mut self, rank: DpRank) -> &mut Rank {
        &mut self.ranks[rank as usize]
    }

    /// Another adapter is loaded under the name, and a request that needs a new block of it comes: only then do events
    /// show that the adapter is another one.
    fn replace(&mut self, rank: DpRank, prompt: &Prompt, choice: u64, events: &mut Vec<Event>) {
        let Some(name) = prompt.adapter else { return };
        let setup = self.setup;
        let mut rng = ScriptRng::seed_from_u64(choice);
        let number = self.next_number;
        let again = self.at(rank).earlier[name].choose(&mut rng).map(|adapter| adapter.path);
        let fresh = self.next_path;
        let path = again.filter(|_| rng.random_bool(0.3)).unwrap_or(fresh);
        let needs_block = |path| {
            let blocks = hashed(&setup, prompt, path);
            blocks.iter().any(|at| !self.ranks[rank as usize].cache.has(Tier::Device, at.name))
        };
        let Some(path) = [path, fresh].into_iter().find(|&path| needs_block(path)) else { return };
        self.next_number += 1;
        self.next_path += 1;
        let now = Adapter { path, number };
        let at = self.at(rank);
        let before = std::mem::replace(&mut at.adapters[name], now);
        at.earlier[name].push(before);
        self.request(rank, prompt, now, rng.random(), events);
    }

    /// Computes a prompt: blocks in device memory are reused, blocks in lower tiers are loaded, others computed.
    fn request(
        &mut self,
        rank: DpRank,
        prompt: &Prompt,
        adapter: Adapter,
        choice: u64,
        events: &mut Vec<Event>,
    ) {
        let setup = self.setup;
        let mut rng = ScriptRng::seed_from_u64(choice);
        let blocks = hashed(&setup, prompt, adapter.path);
        let cache = &mut self.at(rank).cache;
        let cached = blocks.iter().take_while(|at| cache.has(Tier::Device, at.name)).count();
        let used: Vec<Name> = blocks.iter().map(|at| at.name).collect();
        let mut middle = blocks.len();
        if rng.random_bool(0.3) && blocks.len() > cached + 1 {
            middle = rng.random_range(cached + 1..blocks.len());
        }
        let mut stored = vec![cached..middle, middle..blocks.len()];
        // Two requests at a time compute the same blocks.
        if rng.random_bool(0.2) && !blocks.is_empty() {
            stored.push(rng.random_range(0..blocks.len())..blocks.len());
        }
        for range in stored.into_iter().filter(|range| !range.is_empty()) {
            for block in &blocks[range.clone()] {
                make_room(&setup, cache, &used, events);
                cache.add(Tier::Device, block.name, &block.content);
            }
            let parent = range.start.checked_sub(1).map(|at| blocks[at].name);
            let stored = publish::stored(&setup, parent, &blocks[range], adapter.number);
            if setup.window_group().is_some() {
                publish::in_window(&setup, &mut cache.window, &stored, &mut rng, events);
            }
            events.push(Event::Stored(stored));
        }
        for block in blocks.iter().rev() {
            cache.touch(Tier::Device, block.name);
        }
        if let Some(connector) = setup.connector {
            if connector.is_late && rng.random_bool(0.7) {
                self.at(rank).pending.push((blocks, adapter));
            } else {
                self.offload(rank, &blocks, adapter, rng.random(), events);
            }
        }
    }

    /// The connector stores blocks in host memory: those of the first blocks that are not there.
    fn offload(
        &mut self,
        rank: DpRank,
        blocks: &[Block],
        adapter: Adapter,
        choice: u64,
        events: &mut Vec<Event>,
    ) {
        let setup = self.setup;
        let Some(connector) = setup.connector else { return };
        let mut rng = ScriptRng::seed_from_u64(choice);
        let cache = &mut self.at(rank).cache;
        let wanted = rng.random_range(0..=blocks.len());
        let mut run = Vec::new();
        let mut runs = Vec::new();
        for (at, block) in blocks[..wanted].iter().enumerate() {
            if cache.has(Tier::Host, block.name) {
                runs.push(std::mem::take(&mut run));
                continue;
            }
            if cache.copies(Tier::Host).len() >= connector.host_blocks {
                // Blocks of this store are not announced yet.
                let is_old = |name: &Name| !blocks[..at].iter().any(|at| at.name == *name);
                let oldest = cache.copies(Tier::Host).iter().copied().find(is_old);
                let Some(oldest) = oldest else { break };
                events.push(remove(&setup, cache, Tier::Host, &[oldest]));
            }
            cache.add(Tier::Host, block.name, &block.content);
            run.push(at);
        }
        runs.push(run);
        for run in runs.into_iter().filter(|run| !run.is_empty()) {
            let names = || run.iter().map(|&at| blocks[at].name);
            let parent = run[0].checked_sub(1);
            // Only then can anyone notice a wrong parent.
            let is_known = names().all(|name| cache.has(Tier::Device, name))
                && blocks[0].content.keys.adapter.is_none();
            let skips = connector.skips_parents && is_known && rng.random_bool(0.5);
            let parent = if skips { parent.and_then(|at| at.checked_sub(1)) } else { parent };
            let parent = parent.map(|at| blocks[at].name);
            let range = &blocks[run[0]..=run[run.len() - 1]];
            let stored = publish::stored(&setup, parent, range, adapter.number);
            events.push(publish::by_connector(&setup, connector, stored, &mut rng));
        }
    }

    /// Evicts blocks for a reason of the engine's own.
    fn evict(&mut self, rank: DpRank, tier: Tier, choice: u64, events: &mut Vec<Event>) {
        let setup = self.setup;
        let mut rng = ScriptRng::seed_from_u64(choice);
        let cache = &mut self.at(rank).cache;
        if !cache.window.is_empty() && rng.random_bool(0.5) {
            let name = cache.window.swap_remove(rng.random_range(0..cache.window.len()));
            events.push(Event::Removed {
                tier: Tier::Device,
                group: setup.window_group(),
                names: vec![name],
                remaining: None,
            });
        }
        let mut names = Vec::new();
        for _ in 0..rng.random_range(1..=3) {
            let copies = cache.copies(tier);
            let name = if rng.random_bool(0.5) { copies.choose(&mut rng) } else { copies.first() };
            let Some(&name) = name.filter(|name| !names.contains(*name)) else { break };
            names.push(name);
        }
        if tier == Tier::Device {
            for name in names {
                events.push(remove(&setup, cache, tier, &[name]));
            }
        } else if !names.is_empty() {
            events.push(remove(&setup, cache, tier, &names));
        }
    }

    /// Moves copies to another tier.
    fn move_blocks(
        &mut self,
        rank: DpRank,
        from: Tier,
        to: Tier,
        choice: u64,
        events: &mut Vec<Event>,
    ) {
        let mut rng = ScriptRng::seed_from_u64(choice);
        let device_blocks = self.setup.device_blocks;
        let cache = &mut self.at(rank).cache;
        let mut names = Vec::new();
        for &name in cache.copies(from) {
            let has_room = to != Tier::Device
                || cache.copies(Tier::Device).len() + names.len() < device_blocks;
            if rng.random_bool(0.4) && !cache.has(to, name) && !names.contains(&name) && has_room {
                names.push(name);
            }
        }
        for &name in &names {
            cache.remove(from, name);
            let content = cache.content(name).clone();
            cache.add(to, name, &content);
        }
        if !names.is_empty() {
            events.push(Event::Moved { from, to, names });
        }
    }
}

/// The blocks of a prompt that the engine hashes.
fn hashed(setup: &Setup, prompt: &Prompt, path: u64) -> Vec<Block> {
    let looks_ahead = setup.options.looks_ahead;
    let mut blocks = blocks(prompt, setup.block_size, path, looks_ahead);
    blocks.retain(|block| !looks_ahead || block.content.next.is_some());
    blocks
}

/// Evicts the block that was used least recently, if device memory is full. Blocks in use stay.
fn make_room(setup: &Setup, cache: &mut Cache, used: &[Name], events: &mut Vec<Event>) {
    if cache.copies(Tier::Device).len() < setup.device_blocks {
        return;
    }
    let copies = cache.copies(Tier::Device).iter().copied();
    let mut free =
        copies.filter(|name| !used.contains(name) || cache.count(Tier::Device, *name) > 1);
    if let Some(name) = free.next() {
        events.push(remove(setup, cache, Tier::Device, &[name]));
    }
}

/// Removes a copy of each block.
fn remove(setup: &Setup, cache: &mut Cache, tier: Tier, names: &[Name]) -> Event {
    let remaining = names.iter().map(|&name| cache.remove(tier, name) as u64).collect();
    let states_group = tier == Tier::Device || setup.connector.is_some_and(|at| at.states_group);
    Event::Removed {
        tier,
        group: setup.main_group().filter(|_| states_group),
        names: names.to_vec(),
        remaining: Some(remaining).filter(|_| setup.options.counts_copies),
    }
}
