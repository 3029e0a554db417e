//! Beside an engine: tells the index what the engine holds.
//!
//! So far this is the [`uplink`] alone: one numbered, acknowledged stream of events to an indexer,
//! for engines that publish no events of their own.

pub mod uplink;
