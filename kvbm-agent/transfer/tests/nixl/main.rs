//! Owners and fetching agents over NIXL: PyPI's library, UCX on loopback.
#![expect(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "helpers of tests, which may fail"
)]

#[path = "../peers/cases.rs"]
mod cases;
mod fetching;
#[path = "../../../memory/tests/nixl/found.rs"]
mod found;
mod killed;
mod parts;
#[path = "../peers/place.rs"]
mod place;
#[path = "../peers/ranks.rs"]
mod ranks;
mod refused;
