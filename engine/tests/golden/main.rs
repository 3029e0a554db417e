//! Tests decoding and normalising with frames that engines sent.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests, which may fail"
)]

mod accounting;
mod decoding;
mod expected;
mod frames;
mod lmcache;
mod mutations;
mod normalising;
mod pack;
mod proposed;
