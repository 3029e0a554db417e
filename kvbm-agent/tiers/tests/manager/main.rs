//! The manager with real storages: sessions, leases, restarts, shutdown; and a scripted engine under faults and SIGKILL.

mod audit;
mod engine;
mod sessions;
mod soak;
mod world;
