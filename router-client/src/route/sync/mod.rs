//! Replica sync: what the routers of one partition tell each other of the requests that they placed ("Inter-Router
//! Communication" of document 001, `--router-replica-sync` of document 004).
//!
//! Messages may be lost, repeated and overtaken: NATS core keeps nothing. So what a router tells is of two kinds.
//!
//! - *Events*, at once: a request was added, completed its prefill, or was freed. Any of them may be lost.
//! - *Digests*, every few seconds, even if nothing changed: what all of the router's requests add up to. A replica to
//!   which they add up differently asks for a *list* of them, frees those that are not on it, and asks for those that
//!   it lacks. So whatever was lost is healed by the first digest that arrives, with the list that follows it.
//!
//! Each router is the only one that tells of its requests, so there is nothing to agree on: its own loads are the truth
//! of them. A digest is also the router's sign of life, by which replicas renew the leases of its requests. A router of
//! which six digests in a row are missing is gone: its requests are freed, as it comes back under another id.
//!
//! Lists and requests that are asked for are sent to all, as all messages are; they are sent once a second at most. So
//! the cost of a loss does not grow with the square of the replicas.
//!
//! [`Replication`] needs a shell that carries its messages:
//!
//! 1. After each change of a request of this router in [`ActiveLoads`](super::ActiveLoads), expiry included, it calls
//!    [`Replication::local_added`], [`Replication::local_prefill_completed`] or [`Replication::local_freed`]. The first
//!    output of a request completes its prefill, too. What it does not tell, digests heal.
//! 2. Every few milliseconds it sends what [`Replication::flush`] returns.
//! 3. It hands what arrives to [`Replication::receive`].
//! 4. About once a second it calls [`Replication::free_gone`].
//!
//! All replicas of a partition need the same [`ActiveConfig`](super::ActiveConfig), but for its limits: where blocks or
//! tokens are tracked differently, digests never agree. Output is each router's own: no event tells of it.

mod answers;
mod changes;
mod config;
mod counts;
#[cfg(test)]
mod fixtures_test;
mod message;
mod pack;
mod peers;
#[cfg(test)]
mod peers_test;
#[cfg(test)]
mod property_test;
mod replication;
#[cfg(test)]
mod simulation_test;
#[cfg(test)]
mod sync_test;

pub use config::{SYNC_DIGEST_INTERVAL_MAX, SYNC_DIGEST_INTERVAL_MIN, SyncConfig};
pub use counts::{SyncCounts, SyncDrops};
pub use message::{
    SYNC_IDS_MAX, SYNC_ITEMS_MAX, SYNC_MESSAGE_BYTES_MAX, SyncItem, SyncList, SyncMessage,
};
pub use peers::SYNC_PEERS_MAX;
pub use replication::Replication;
