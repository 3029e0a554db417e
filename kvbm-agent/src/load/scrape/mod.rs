//! How busy an engine is by its Prometheus endpoint: fetched with a plain GET every interval,
//! within a time and a number of bytes, and read strictly, but only the lines that are needed.

mod config;
mod engine;
mod error;
mod exposition;
mod fetch;
mod run;
mod target;

pub use config::{ScrapeConfig, ScrapedEngine};
pub use engine::read_metrics;
pub use error::{FetchError, ReadError, ScrapeError};
pub use run::{ScrapeStatus, scrape};
