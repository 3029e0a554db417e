//! The snapshot store on a real disk: stored data survives crashes, damage and full disks.
#![expect(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it measured"
)]

mod model;

mod t10_store;
mod t20_kill;
mod t25_checkpoint;
mod t30_damage;
mod t40_full;
mod t50_size;
mod t60_export;
