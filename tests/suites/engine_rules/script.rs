//! Seeded scripts: an engine, and what happens to it and to the index.

use crate::prompt::{Prompt, UNNAMED};
use crate::setup::Setup;
use kvasir_proto::types::{DpRank, Tier};
use kvasir_tests::script::ScriptRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::fmt;

/// Something that happens. `choice` seeds what is decided on the way, so that actions can be left out of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Request {
        rank: DpRank,
        prompt: Prompt,
        choice: u64,
    },
    /// Another adapter is loaded under the name of the prompt's.
    Replace {
        rank: DpRank,
        prompt: Prompt,
        choice: u64,
    },
    /// A request for the adapter that was replaced.
    Late {
        rank: DpRank,
        prompt: Prompt,
        choice: u64,
    },
    /// A late connector announces what it has stored.
    Offload {
        rank: DpRank,
        choice: u64,
    },
    Evict {
        rank: DpRank,
        tier: Tier,
        choice: u64,
    },
    Clear {
        rank: DpRank,
        tier: Option<Tier>,
        has_own_kind: bool,
    },
    Move {
        rank: DpRank,
        from: Tier,
        to: Tier,
        choice: u64,
    },
    Inactive {
        rank: DpRank,
    },
    /// Blocks go, and the event does not show which.
    Vanish {
        rank: DpRank,
        tier: Tier,
        is_unreadable: bool,
    },
    /// The index restarts from its images. With a loss, what names mean is forgotten.
    RestartIndex {
        is_lossy: bool,
    },
    RestartEngine,
}

impl Action {
    pub const fn rank(&self) -> DpRank {
        match self {
            Self::Request { rank, .. }
            | Self::Replace { rank, .. }
            | Self::Late { rank, .. }
            | Self::Offload { rank, .. }
            | Self::Evict { rank, .. }
            | Self::Clear { rank, .. }
            | Self::Move { rank, .. }
            | Self::Inactive { rank }
            | Self::Vanish { rank, .. } => *rank,
            Self::RestartIndex { .. } | Self::RestartEngine => 0,
        }
    }
}

/// A script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    pub seed: u64,
    pub setup: Setup,
    /// With a number each, which outlives the removal of others.
    pub actions: Vec<(u64, Action)>,
    /// Prompts that are asked for.
    pub prompts: Vec<Prompt>,
}

const ACTIONS: std::ops::RangeInclusive<usize> = 8..=28;

impl Script {
    pub fn generate(seed: u64) -> Self {
        let mut rng = ScriptRng::seed_from_u64(seed);
        let setup = Setup::draw(&mut rng);
        let mut prompts: Vec<Prompt> = Vec::new();
        let count = rng.random_range(ACTIONS);
        let actions =
            (0..count as u64).map(|at| (at, draw(&setup, &mut prompts, &mut rng))).collect();
        Self { seed, setup, actions, prompts }
    }
}

/// A prompt: a new one, one again, or the next turn of one.
fn draw_prompt(setup: &Setup, prompts: &mut Vec<Prompt>, rng: &mut ScriptRng) -> Prompt {
    let earlier = prompts.choose(rng).cloned().filter(|_| rng.random_bool(0.6));
    let prompt = match earlier {
        Some(again) if rng.random_bool(0.3) => return again,
        Some(mut turn) => {
            let length = turn.tokens.len();
            if rng.random_bool(0.3) {
                turn.cut_whole(rng.random_range(0..=length), setup.block_size);
            }
            turn.grow(setup, rng.random_range(1..=2), rng);
            turn
        }
        None => Prompt::draw(setup, rng),
    };
    prompts.push(prompt.clone());
    prompt
}

fn draw(setup: &Setup, prompts: &mut Vec<Prompt>, rng: &mut ScriptRng) -> Action {
    let options = setup.options;
    let rank = rng.random_range(0..setup.ranks);
    let choice = rng.random();
    let has_host = setup.connector.is_some() || options.moves;
    let tier = if has_host && rng.random_bool(0.4) { Tier::Host } else { Tier::Device };
    match rng.random_range(0..100) {
        0..6 => Action::Clear {
            rank,
            tier: rng.random_bool(0.6).then_some(tier),
            has_own_kind: rng.random_bool(0.5),
        },
        6..14 => Action::Evict { rank, tier, choice },
        14..22 if options.moves => {
            let pairs = [
                (Tier::Device, Tier::Host),
                (Tier::Host, Tier::Disk),
                (Tier::Host, Tier::Device),
                (Tier::Disk, Tier::Host),
            ];
            let (from, to) = *pairs.choose(rng).expect("not empty");
            Action::Move { rank, from, to, choice }
        }
        22..32 if setup.connector.is_some_and(|at| at.is_late) => Action::Offload { rank, choice },
        32..40 if options.adapters && options.replaces_adapters => {
            let mut prompt = draw_prompt(setup, prompts, rng);
            prompt.adapter = Some(rng.random_range(0..UNNAMED));
            if rng.random_bool(0.7) {
                Action::Replace { rank, prompt, choice }
            } else {
                Action::Late { rank, prompt, choice }
            }
        }
        40..46 => Action::RestartIndex { is_lossy: options.lossy_restarts && rng.random_bool(0.5) },
        46..48 => Action::RestartEngine,
        48..50 => Action::Inactive { rank },
        50..58 if options.is_odd => {
            Action::Vanish { rank, tier, is_unreadable: rng.random_bool(0.5) }
        }
        _ => Action::Request { rank, prompt: draw_prompt(setup, prompts, rng), choice },
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.setup)?;
        for (number, action) in &self.actions {
            writeln!(f, "#{number} {action:?}")?;
        }
        Ok(())
    }
}
