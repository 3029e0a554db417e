//! The example gateway: an OpenAI-compatible front of a fleet, based on the router's library.
//!
//! - [`request`] and [`hints`] read and check a request; [`tokens`] and [`prompt`] convert its prompt to tokens.
//! - The library chooses a worker. [`engines`] sends the request to its engine, and [`answer`] reads the engine's
//!   answer, which is passed to the client as it arrives.
//! - [`gateway`] combines these steps for one request. It retries on another worker, uses prefill workers, and prefills
//!   conversations ahead.
//! - [`mismatch`] detects tokens that differ from the engines' tokens.
//! - [`server`] is the port, [`config`] has the options, and [`app`] starts all parts and stops them in order.

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
