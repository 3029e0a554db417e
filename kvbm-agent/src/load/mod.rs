//! Loads of the worker's ranks. An engine that embeds the agent reports them ([`WorkerMetricsPublisher`]), or a caller
//! of `ReportLoad`, or they are read from the engine's Prometheus endpoint ([`scrape`]). The latest report counts.
//!
//! [`Loads`] has the latest report of each rank, and its changes. Pure. [`LoadBoard`] shares it between tasks. A value
//! is absent until the engine reports it, and again once its last report is too old.

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
