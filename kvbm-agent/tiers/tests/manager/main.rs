//! The block manager with real storages: sessions, leases, restarts, shutdown; and a scripted engine under faults and
//! SIGKILL.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    reason = "helpers of tests, which may fail; the soak is told by variables of the environment"
)]

mod audit;
mod engine;
mod feed;
mod filled;
mod gate;
mod hang;
mod limits;
#[cfg(feature = "objects")]
mod objects;
mod sessions;
mod shared;
mod shelf;
mod soak;
mod volume;
mod world;
