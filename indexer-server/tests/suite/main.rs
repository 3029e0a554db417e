//! The complete server in process, over real gRPC on ports chosen by the system; and its binary.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

mod harness;

mod t10_find;
mod t10_placement;
mod t10_publish;
mod t12_reuse;
mod t15_recovery;
mod t20_dump;
mod t20_registry;
mod t30_engine;
mod t31_events;
mod t32_sockets;
mod t40_limits;
mod t41_rates;
mod t50_life;
mod t55_rank_states;
mod t60_process;
mod t70_shards;
mod t71_ownership;
