//! The agent: what an engine publishes goes through its journal to every index, whatever happens to
//! connections and indexes; and what an index missed it can ask for.

mod age;
mod audit;
mod crash;
mod disk;
mod engine;
mod fake;
mod fleet;
mod harness;
mod ingest;
mod loads;
mod local;
mod metrics;
mod names;
mod operator;
mod place;
mod process;
mod reasons;
mod relay;
mod stop;
mod tamper;
mod traces;
mod uplinks;
mod zmq;
