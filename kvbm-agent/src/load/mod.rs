//! How busy the worker's ranks are: told by whoever embeds the agent ([`WorkerMetricsPublisher`]) or by
//! `ReportLoad`, or read from the engine's Prometheus endpoint ([`scrape`]); the last word counts.
//!
//! [`Loads`] keeps the latest of each rank and what changed: pure. [`LoadBoard`] shares it between tasks.
//! What an engine does not say stays absent, and what was not said again for too long becomes so.

mod board;
mod config;
mod error;
mod loads;
pub mod scrape;

pub use board::{LoadBoard, WorkerMetricsPublisher};
pub use config::LoadConfig;
pub use error::{LoadError, UrlError};
pub use loads::{Known, Loads, Totals};
