//! How busy the worker's ranks are: reported by an engine that embeds the agent ([`WorkerMetricsPublisher`]) or by
//! `ReportLoad`, or read from the engine's Prometheus endpoint ([`scrape`]); the latest report counts.
//!
//! [`Loads`] has the latest report of each rank and what changed: pure. [`LoadBoard`] shares it between tasks.
//! What an engine does not report is absent, and so is what it has not reported again for too long.

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
