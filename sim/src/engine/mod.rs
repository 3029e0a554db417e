//! A mock inference engine: all behaviour of KV caching that the index can observe, without a model.
//!
//! - [`pool`]: a fixed number of physical blocks, prefix cache, reference counts, LRU eviction (pure);
//! - [`scheduler`]: continuous batching over this pool: prefix hits, chunked prefill, decode (pure);
//! - [`wire`]: events and batches in vLLM's `MessagePack` forms (pure);
//! - [`direct`]: events in the form that an agent accepts (pure);
//! - [`publisher`]: the PUB socket and the replay ROUTER socket;
//! - [`mock`]: the running engine, one task around these parts;
//! - [`process`]: the engine as a process, which can be killed;
//! - [`timed`]: a scheduler over the same pool with step times, by a stated model (pure);
//! - [`live`]: the timed engine in real time, with the publisher;
//! - [`openai`]: the HTTP API of the live engine, like vLLM's.
//!
//! The engine shares these properties with vLLM's block manager. A block may have second physical copies: a completely
//! cached prompt computes its last block again, and two requests may compute the same block at the same time. Each copy
//! has one store event, and each evicted copy one removal. Blocks are freed tail first, so that prefixes stay longest.
//! An optional second (sliding-window) group uses the same pool. A reset works only while no request runs.
//!
//! The engine omits preemption (a request is admitted only once its full length is reserved), speculation, and the
//! model itself (the request contains its answer). A step of [`mock`] takes no time. A step of [`live`] takes time, and
//! that engine has no second group.

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
