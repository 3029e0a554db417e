//! Under construction.
pub mod client;
pub mod demo;
pub mod engine;
pub mod oracle;
pub mod script;
pub mod workload;
