//! Reads an engine's load, and facts about its cache, from its Prometheus endpoint: a plain GET with limits on time and bytes. Only the
//! needed lines are parsed, strictly.

mod cache;
mod engine;
mod error;
mod exposition;
mod fetch;
mod kind;
mod target;

pub use cache::{CacheFacts, read_cache_facts};
pub use engine::read_metrics;
pub use error::{FetchError, ReadError, UrlError};
pub use fetch::fetch;
pub use kind::ScrapedEngine;
pub use target::Target;
