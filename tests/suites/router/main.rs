//! The router as a process: decisions over a real index with mock engines, replicas over a real nats-server, and a trace
//! that goes on while processes are killed.

#[path = "../agent/aged.rs"]
mod aged;
mod chaos;
mod decisions;
mod disaggregated;
mod fleet;
mod gateway;
mod limits;
mod recorded;
mod replicas;
mod reports;
mod traces;
