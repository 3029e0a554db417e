//! The gateway as a process, asked by OpenAI's own client: an index, mock engines with vLLM's HTTP side, and workers that
//! fail on purpose.

mod answers;
mod api_server;
mod disaggregated;
mod fake;
mod faults;
mod fleet;
mod followed;
mod images;
mod kubernetes;
mod serve;
mod sources;
mod tokens;
mod traces;
