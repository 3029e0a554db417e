//! Replica sync (anti-entropy): the routers of one partition exchange the requests that they placed ("Inter-Router
//! Communication" of document 001, `--router-replica-sync` of document 004).
//!
//! Messages may be lost, repeated or reordered, because NATS core stores nothing. So a router sends two kinds of
//! messages.
//!
//! - *Events*, immediately: a request was added, completed its prefill, or was freed. Any event may be lost.
//! - *Digests*, every few seconds, even without a change: the sum over all of the router's requests. A replica with a
//!   different sum asks for a *list* of the requests, frees requests that are not on it, and asks for missing ones. So
//!   the first digest that arrives, with its list, repairs every loss.
//!
//! Each router alone reports its own requests, so no consensus is needed: its own loads are authoritative. A digest
//! also serves as a heartbeat, with which replicas renew the leases of the router's requests. A router that misses six
//! digests in a row is gone. Its requests are freed, because a restarted router has another id.
//!
//! Lists and requested requests are sent to all routers, like all messages, at most once a second. So the cost of a
//! loss does not grow with the square of the number of replicas.
//!
//! [`Replication`] needs a caller that transports its messages:
//!
//! 1. After each change of a request of this router in [`ActiveLoads`](super::ActiveLoads), including expiry, call
//!    [`Replication::local_added`], [`Replication::local_prefill_completed`] or [`Replication::local_freed`]. The first
//!    output of a request also completes its prefill. Digests repair missed calls.
//! 2. Every few milliseconds, send the messages from [`Replication::flush`].
//! 3. Pass each received message to [`Replication::receive`].
//! 4. About once a second, call [`Replication::free_gone`].
//!
//! All replicas of a partition need the same [`ActiveConfig`](super::ActiveConfig), except its limits: if they track
//! blocks or tokens differently, digests never agree. Output is not synchronised.

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
