//! Simulated engines and their load, the demo and the sweep: the library of the programs `mock-engine`, `demo` and
//! `sweep`.
//!
//! - [`place`]: free ports, and the folder for downloads.
//! - [`server`], [`client`]: an `indexer-server` process, and queries to it.
//! - [`stop_signals`]: Ctrl-C and SIGTERM.
//! - [`workload`]: prompts for engines: a seeded generator, and traces.
//! - [`engine`]: a mock engine: a block pool and a publisher that behave like vLLM's, without time or in real time,
//!   with an HTTP API.
//! - [`sweep`]: compares routing policies in virtual time, and repeats one point with processes.
//! - [`demo`]: the demo, which combines all of these.

pub mod client;
pub mod place;
pub mod server;
pub mod stop_signals;

pub mod engine;
pub mod workload;

pub mod demo;
pub mod sweep;
