//! The manager with real storages: sessions, leases, restarts, shutdown.

mod sessions;
mod world;
