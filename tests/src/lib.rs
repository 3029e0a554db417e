//! The library of Kvasir's system tests.
//!
//! - [`oracle`]: the reference index, literal and slow, which defines the correct answers.
//! - [`script`]: seeded streams of events for the oracle and for the index.
//! - [`image_store`]: an in-memory store of images of the index, with deliberate faults.
//! - [`raw_codec`]: gRPC messages as bytes.
//! - [`wheel`]: programs from PyPI.
//! - [`nats`]: a real nats-server process.
//! - [`authority`]: certificates for tests.
//! - [`collector`]: a real OpenTelemetry collector.

pub mod oracle;
pub mod script;

pub mod image_store;

pub mod authority;
pub mod collector;
pub mod nats;
pub mod raw_codec;
pub mod wheel;
