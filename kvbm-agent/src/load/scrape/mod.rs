//! Reads an engine's load from its Prometheus endpoint at an interval, with [`kvasir_engine::scrape`].

mod config;
mod error;
mod run;

pub use config::ScrapeConfig;
pub use error::ScrapeError;
pub use kvasir_engine::scrape::{FetchError, ReadError, ScrapedEngine, read_metrics};
pub use run::{ScrapeStatus, scrape};
