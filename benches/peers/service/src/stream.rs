//! The workload: the blocks that each worker announces, and the prompts of the queries. Pure, and equal in each run.

use bench_figures::random::mixed;
use kvasir_proto::hash::{Namespace, local_hashes, tokens_le};
use rmp::encode::{ValueWriteError, write_array_len, write_f64, write_nil, write_str, write_uint};

/// Number of workers, with one publisher each, unless a trial has more.
pub const WORKERS: usize = 64;
/// Tokens per block.
pub const BLOCK_TOKENS: u32 = 16;
/// Blocks per event.
pub const EVENT_BLOCKS: u64 = 16;
/// Upper bound of token ids, as in Llama 3.
const VOCABULARY: u64 = 128_256;
/// Minimum and maximum length of a chain, in events of [`EVENT_BLOCKS`].
const CHAIN_EVENTS: (u64, u64) = (4, 32);
/// Each purpose has its own range of random numbers, which begins here.
const LENGTHS: u64 = 1 << 60;
const NAMES: u64 = 2 << 60;
const TOKENS: u64 = 3 << 60;
const PROMPTS: u64 = 4 << 60;
/// First number of the probes' blocks.
const PROBES: u64 = 1 << 40;

/// A chain of blocks that exactly one worker has.
#[derive(Debug, Clone, Copy)]
pub struct Chain {
    /// Index of the worker.
    pub worker: usize,
    /// Number of the chain's first block, over all chains; the others follow.
    first_block: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// One event: consecutive blocks of one chain.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// Number of the first block.
    first_block: u64,
    /// Number of blocks.
    blocks: u64,
    /// Kind of the event.
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Stores blocks; the first has no parent.
    StoredFirst,
    /// Stores blocks after the preceding block.
    Stored,
    Removed,
}

impl Event {
    /// The event that removes this event's blocks.
    pub const fn removed(self) -> Self {
        Self { kind: Kind::Removed, ..self }
    }
}

/// A query with its answer.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// The only worker with the blocks; it has all of them.
    pub worker: usize,
    /// The tokens of complete blocks.
    pub tokens: Vec<u32>,
    /// Local hashes of the blocks.
    pub local_hashes: Vec<u64>,
}

/// All announcements of the engines.
#[derive(Debug, Clone)]
pub struct Stream {
    workers: usize,
    chains: Vec<Chain>,
}

impl Stream {
    /// Creates a stream of `events` events over `workers` workers, whose numbers of events differ by at most one.
    pub fn new(events: u64, workers: usize) -> Self {
        let mut chains = Vec::new();
        let mut first_block = 0;
        let mut draws = 0_u64;
        for worker in 0..workers {
            let index = worker as u64;
            let count = workers as u64;
            let mut left = events / count + u64::from(index < events % count);
            while left > 0 {
                draws += 1;
                let (shortest, longest) = CHAIN_EVENTS;
                let drawn = mixed(LENGTHS ^ draws) % (longest - shortest + 1);
                let length = (shortest + drawn).min(left);
                let blocks = length * EVENT_BLOCKS;
                chains.push(Chain { worker, first_block, blocks });
                first_block += blocks;
                left -= length;
            }
        }
        Self { workers, chains }
    }

    /// Number of workers.
    pub const fn workers(&self) -> usize {
        self.workers
    }

    /// Number of announced (worker, block) pairs, all distinct.
    pub fn pairs(&self) -> u64 {
        self.chains.iter().map(|chain| chain.blocks).sum()
    }

    /// Number of announced events.
    pub fn events(&self) -> u64 {
        self.pairs() / EVENT_BLOCKS
    }

    /// Events of each worker, in order.
    pub fn events_by_worker(&self) -> Vec<Vec<Event>> {
        let mut events = vec![Vec::new(); self.workers];
        for chain in &self.chains {
            let starts = (0..chain.blocks).step_by(EVENT_BLOCKS as usize);
            events[chain.worker].extend(starts.map(|start| Event {
                first_block: chain.first_block + start,
                blocks: EVENT_BLOCKS,
                kind: if start == 0 { Kind::StoredFirst } else { Kind::Stored },
            }));
        }
        events
    }

    fn name(block: u64) -> u64 {
        mixed(NAMES ^ block)
    }

    fn tokens(first_block: u64, blocks: u64) -> impl Iterator<Item = u32> {
        let per_block = u64::from(BLOCK_TOKENS);
        let first = first_block * per_block;
        (first..first + blocks * per_block).map(move |token| {
            let drawn = mixed(TOKENS ^ token) % VOCABULARY;
            u32::try_from(drawn).expect("a vocabulary of 32 bits")
        })
    }

    /// Background load: an event that stores a chain of its own. The caller sends event `number` to worker `number %
    /// WORKERS`.
    pub fn passing(&self, number: u64) -> Event {
        let first_block = self.pairs() + number * EVENT_BLOCKS;
        Event { first_block, blocks: EVENT_BLOCKS, kind: Kind::StoredFirst }
    }

    /// A block that occurs nowhere else, and the query that finds it at its worker.
    pub fn probe(number: u64) -> (Event, Prompt) {
        let first_block = PROBES + number;
        let worker = usize::try_from(number % WORKERS as u64).expect("an index");
        let event = Event { first_block, blocks: 1, kind: Kind::StoredFirst };
        (event, Self::prompt(worker, first_block, 1))
    }

    /// Encodes a batch like vLLM 0.11 to 0.23: msgpack, arrays.
    pub fn payload(events: &[Event], time: f64) -> Vec<u8> {
        let mut out = Vec::with_capacity(2048);
        let mut write = || -> Result<(), ValueWriteError> {
            write_array_len(&mut out, 3)?;
            write_f64(&mut out, time)?;
            write_array_len(&mut out, events.len() as u32)?;
            events.iter().try_for_each(|event| event.write(&mut out))?;
            write_uint(&mut out, 0).map(drop)
        };
        write().expect("a vector takes all bytes");
        out
    }

    /// `count` prompts of exactly `blocks` blocks, each the start of a chain, spread over the chains that are long
    /// enough.
    ///
    /// # Panics
    /// If no chain is long enough.
    pub fn prompts(&self, blocks: u64, count: usize) -> Vec<Prompt> {
        let long: Vec<Chain> =
            self.chains.iter().copied().filter(|chain| chain.blocks >= blocks).collect();
        assert!(!long.is_empty(), "no chain has {blocks} blocks");
        (0..count as u64)
            .map(|draw| {
                let drawn = mixed(PROMPTS ^ blocks << 32 ^ draw) % long.len() as u64;
                let chain = long[usize::try_from(drawn).expect("an index")];
                Self::prompt(chain.worker, chain.first_block, blocks)
            })
            .collect()
    }

    fn prompt(worker: usize, first_block: u64, blocks: u64) -> Prompt {
        let tokens: Vec<u32> = Self::tokens(first_block, blocks).collect();
        let bytes = tokens_le(&tokens);
        let mut hashes = Vec::new();
        let seed = Namespace::default().seed();
        local_hashes(&bytes, BLOCK_TOKENS as usize, seed, &[], &mut hashes);
        let local_hashes = hashes.into_iter().map(|hash| hash.0).collect();
        Prompt { worker, tokens, local_hashes }
    }
}

impl Event {
    fn write(self, out: &mut Vec<u8>) -> Result<(), ValueWriteError> {
        let nil = |out: &mut Vec<u8>| write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite);
        let is_stored = self.kind != Kind::Removed;
        write_array_len(out, if is_stored { 8 } else { 3 })?;
        write_str(out, if is_stored { "BlockStored" } else { "BlockRemoved" })?;
        write_array_len(out, self.blocks as u32)?;
        for block in self.first_block..self.first_block + self.blocks {
            write_uint(out, Stream::name(block))?;
        }
        if is_stored {
            match self.kind {
                Kind::Stored => write_uint(out, Stream::name(self.first_block - 1)).map(drop)?,
                Kind::StoredFirst | Kind::Removed => nil(out)?,
            }
            write_array_len(out, self.blocks as u32 * BLOCK_TOKENS)?;
            for token in Stream::tokens(self.first_block, self.blocks) {
                write_uint(out, token.into())?;
            }
            write_uint(out, BLOCK_TOKENS.into())?;
            nil(out)?;
        }
        write_str(out, "GPU")?;
        if is_stored { nil(out) } else { Ok(()) }
    }
}
