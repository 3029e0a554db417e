//! The example gateway: an OpenAI-compatible front of a fleet, on the router's library.
//!
//! A request is read and checked ([`request`], [`hints`]), its prompt becomes tokens ([`tokens`], [`prompt`]), the library chooses a
//! worker, and the request goes to that worker's engine ([`engines`]), whose answer goes to the client as it comes
//! ([`answer`]). [`gateway`] does all of that for one request: it tries another worker if one fails, has prompts computed by
//! prefill workers, and prefills conversations ahead. [`mismatch`] notices tokens that are not the engines'. [`server`] is
//! the port, [`config`] the options, [`app`] runs all of it and stops it in order.

pub mod answer;
pub mod app;
pub mod config;
pub mod engines;
pub mod error;
pub mod gateway;
pub mod hints;
pub mod metrics;
pub mod mismatch;
pub mod prompt;
pub mod request;
pub mod server;
pub mod tokens;
