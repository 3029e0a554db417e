//! Loads of the worker's ranks: how many requests, tokens and blocks each rank has. The latest report of a rank
//! replaces earlier ones. Reports have three sources:
//! - [`WorkerMetricsPublisher`]: an engine that embeds the agent reports its loads;
//! - `ReportLoad`: a gRPC client reports the loads;
//! - [`scrape`]: the agent reads the engine's Prometheus endpoint.
//!
//! [`Loads`] stores the latest report of each rank, and which ranks changed. Pure. [`LoadBoard`] shares it between
//! tasks. A value is absent until the engine reports it, and becomes absent if its last report is too old.

mod board;
mod config;
mod error;
mod loads;
pub mod scrape;

pub use board::{LoadBoard, WorkerMetricsPublisher};
pub use config::LoadConfig;
pub use error::LoadError;
pub use kvasir_engine::scrape::UrlError;
pub use loads::{Known, Loads, Totals};
