//! A mock inference engine: everything about KV caching that the index can observe, and nothing of the
//! model.
//!
//! - [`pool`]: fixed number of physical blocks, prefix cache, reference counts, LRU eviction (pure);
//! - [`scheduler`]: continuous batching over that pool: prefix hits, chunked prefill, decode (pure);
//! - [`wire`]: events and batches in vLLM's `MessagePack` forms (pure);
//! - [`direct`]: events in the form that an agent accepts (pure);
//! - [`publisher`]: the PUB socket and the replay ROUTER socket;
//! - [`mock`]: the running engine, one task around the parts above;
//! - [`process`]: the engine as a process, which can be killed;
//! - [`timed`]: a scheduler over the same pool whose steps take time, by a stated model (pure);
//! - [`live`]: that in real time, with the publisher;
//! - [`openai`]: its HTTP side, as vLLM has it.
//!
//! What it shares with vLLM's block manager: second physical copies (a completely cached prompt
//! computes its last block again; two requests may compute the same block at the same time), one store
//! event per copy and one removal per evicted copy, blocks freed tail first so that prefixes stay
//! longest, an optional second (sliding-window) group in the same pool, and a reset that works only
//! while nothing runs. What it leaves out: preemption (a request is admitted only once its full length is
//! reserved), speculation, and the model itself (the request contains its answer). A step of [`mock`] takes
//! no time; one of [`live`] does, and that has no second group.

pub mod direct;
pub mod live;
pub mod mock;
pub mod openai;
pub mod pool;
pub mod process;
pub mod publisher;
pub mod scheduler;
pub mod timed;
pub mod wire;

pub use mock::{EngineConfig, EngineError, MockEngine, Truth};
pub use process::EngineProcess;
pub use scheduler::{Completion, Prompt};
pub use wire::{HashForm, WireForm};
