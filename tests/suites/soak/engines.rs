//! The engines, and what one does at a time.

use super::namespaces::OUTSIDE;
use anyhow::{Context, Result};
use kvasir_sim::engine::publisher::Endpoints;
use kvasir_sim::engine::{EngineConfig, MockEngine, Prompt};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::{Mutex, MutexGuard};

/// Model of all engines.
pub const MODEL: &str = "m";
/// Tokens per block.
pub const BLOCK_SIZE: usize = 16;
/// Blocks of an engine: a few prompts, so that each prompt evicts others.
const CAPACITY_BLOCKS: usize = 256;
/// Window of each fourth engine, which has a second group of layers.
const WINDOW_TOKENS: usize = 128;
/// Batches that an engine can send again: more than it publishes while an index is away.
const BUFFER_BATCHES: usize = 2_000;
/// First port of the engines, below those that the system assigns: an engine that starts again has its ports.
const FIRST_PORT: u16 = 10_000;
/// Beginnings that prompts share.
const DOCUMENTS: u32 = 40;
/// Prompts that go on differently.
const ENDINGS: u32 = 1_000_000;

/// How an index learns of an engine's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the engine itself.
    Direct,
    /// From an agent, over gRPC.
    Agent,
    /// From an agent, over JetStream.
    Broker,
}

/// An engine.
#[derive(Debug)]
pub struct Engine {
    /// Name of the worker.
    pub worker: String,
    /// How its events travel.
    pub way: Way,
    /// Whether it has a second group of layers, whose blocks this test does not foresee.
    pub has_window: bool,
    engine: Mutex<MockEngine>,
    /// Options that name its sockets: `endpoint=…,replay=…`.
    pub sockets: String,
}

/// An engine that does nothing else meanwhile.
pub type Held<'a> = MutexGuard<'a, MockEngine>;

impl Engine {
    /// Starts the engine with this number.
    pub async fn start(number: u16, way: Way) -> Result<Self> {
        let port = FIRST_PORT + 2 * number;
        let endpoints = Endpoints {
            live: format!("tcp://{OUTSIDE}:{port}"),
            replay: format!("tcp://{OUTSIDE}:{}", port + 1),
        };
        let has_window = number % 4 == 3;
        let config = EngineConfig {
            block_size: BLOCK_SIZE,
            capacity_blocks: CAPACITY_BLOCKS,
            sliding_window: has_window.then_some(WINDOW_TOKENS),
            name_seed: number.into(),
            buffer_batches: BUFFER_BATCHES,
            ..EngineConfig::default()
        };
        let engine = MockEngine::start_at(config, &endpoints).await;
        let engine = engine.with_context(|| format!("start engine {number}"))?;
        let sockets = format!("endpoint={},replay={}", endpoints.live, endpoints.replay);
        Ok(Self {
            worker: format!("w{number}"),
            way,
            has_window,
            engine: Mutex::new(engine),
            sockets,
        })
    }

    /// Holds the engine, unless something else does.
    pub fn try_hold(&self) -> Option<Held<'_>> {
        self.engine.try_lock().ok()
    }

    /// Waits until the engine has ended what it does, and holds it.
    pub async fn hold(&self) -> Held<'_> {
        self.engine.lock().await
    }

    /// Starts the engine anew, with an empty cache and numbers from 0, and lets it answer until its numbers differ from
    /// those before. Returns false, without effect, if something else holds the engine.
    pub async fn try_restart(&self, random: &mut impl Rng) -> Result<bool> {
        let Some(held) = self.try_hold() else { return Ok(false) };
        let before = held.truth().await?.last_sequence;
        held.restart().await?;
        loop {
            held.run(prompt(random)).await?;
            let now = held.truth().await?.last_sequence;
            // A check compares the number that an index has applied with the engine's last one. They must not be equal
            // while the index still has the earlier life. If that life was long, this one reaches its number late.
            if before.is_none_or(|before| now > Some(before) || before > 300) {
                return Ok(true);
            }
        }
    }
}

/// Random numbers of a part of the test.
pub fn random(seed: u64, part: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed << 16 | part)
}

/// The beginning that some prompts share: 8 to 24 blocks.
fn document(number: u32) -> impl Iterator<Item = u32> {
    let blocks = 8 + number % 17;
    (0..blocks * BLOCK_SIZE as u32).map(move |at| number * 1_000 + at)
}

/// A prompt: a document, and 4 to 24 blocks that no other prompt has.
pub fn prompt(random: &mut impl Rng) -> Prompt {
    let ending = 1_000_000 + random.random_range(0..ENDINGS) * 500;
    let blocks: u32 = random.random_range(4..=24);
    let own = (0..blocks * BLOCK_SIZE as u32).map(|at| ending + at);
    let tokens = document(random.random_range(0..DOCUMENTS)).chain(own).collect();
    Prompt { tokens, answer: vec![1; 20] }
}

/// A question whose answer has many workers, and its number: a document.
pub fn question(random: &mut impl Rng) -> (u32, Vec<u32>) {
    let number = random.random_range(0..DOCUMENTS);
    (number, document(number).collect())
}
