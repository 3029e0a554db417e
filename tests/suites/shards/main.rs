//! An index in three shards of two replicas each, as processes, all fed by the same mock engines: what
//! a client is told while processes are killed, stopped and started, and while a bucket moves from
//! one shard to another.

mod edges;
mod fleet;
mod hang;
mod kills;
mod load;
mod moves;
