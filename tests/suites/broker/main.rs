//! Kvasir over a real nats-server: what is said over core NATS and JetStream, whatever happens to the
//! broker; and questions to agents.

mod access;
mod agents;
mod answers;
#[path = "../agent/engine.rs"]
mod engine;
mod fleet;
mod indexes;
mod keys;
mod leases;
mod loads;
mod mute;
mod namespaces;
mod outages;
mod published;
mod scripted;
mod server;
mod shards;
mod starting;
mod streams;
