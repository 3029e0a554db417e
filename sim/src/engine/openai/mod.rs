//! An engine's HTTP API like vLLM's: OpenAI's API over a [live engine](crate::engine::live).
//!
//! Routes: `POST /v1/completions` and `/v1/chat/completions`, with streaming; `/render` under both, which answers with
//! the tokens of the prompt, like `POST /tokenize`; `GET /v1/models`, `/health` and `/metrics`. Sampling parameters are
//! ignored: [`text::Text::answer`] derives the answer from the prompt. The route `/mock/truth` returns the engine's
//! cached blocks.
//!
//! Disaggregated serving follows vLLM's convention (`kv_transfer_params`): [`remote`].
//!
//! - [`text`], [`template`]: tokens from text and chats, and answers (pure);
//! - [`training`]: a small tokenizer, for tests;
//! - [`body`]: requests of clients (pure);
//! - [`answer`]: answers to clients (pure);
//! - [`error`]: errors in OpenAI's form;
//! - [`client`]: one request to another engine;
//! - [`remote`]: blocks that one engine computes and another engine fetches;
//! - `state`: shared state of the routes;
//! - `generate`, `stream`: processing of a request from its body to its answer;
//! - [`server`]: the routes and the port;
//! - [`args`], [`process`]: the command line of `mock-engine`, and a handle to such a process.

pub mod answer;
pub mod args;
pub mod body;
pub mod client;
pub mod error;
pub(crate) mod generate;
pub mod process;
pub mod remote;
pub mod server;
pub(crate) mod state;
pub(crate) mod stream;
pub mod template;
pub mod text;
pub mod training;

pub use args::Args;
pub use process::ServerProcess;
pub use server::{EngineServer, ServerConfig};
pub use text::Text;
