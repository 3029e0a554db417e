//! The mock engine's HTTP side: OpenAI's API with streams, metrics, disaggregated serving; and its cache against a real
//! index, with clients that leave.

mod answers;
mod disaggregated;
mod drive;
mod exact;
mod harness;
mod metrics;
mod process;
mod refusals;
mod replayed;
