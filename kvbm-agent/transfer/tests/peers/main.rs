//! Owners and fetching agents over real sockets: received and refused blocks.
#![expect(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "helpers of tests, which may fail"
)]

mod cases;
mod fake;
mod fetching;
mod parts;
mod parts_refused;
mod place;
mod ranks;
mod refused;
