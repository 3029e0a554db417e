//! How busy an engine is by its Prometheus endpoint: fetched with a plain GET, within a time and a number of bytes, and read
//! strictly, but only the lines that are needed.

mod engine;
mod error;
mod exposition;
mod fetch;
mod kind;
mod target;

pub use engine::read_metrics;
pub use error::{FetchError, ReadError, UrlError};
pub use fetch::fetch;
pub use kind::ScrapedEngine;
pub use target::Target;
