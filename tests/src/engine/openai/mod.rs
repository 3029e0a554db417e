//! An engine's HTTP side, as vLLM has it: OpenAI's API over a [live engine](crate::engine::live).
//!
//! `POST /v1/completions` and `/v1/chat/completions`, with streaming; `/render` under both, which answers with the tokens
//! of the prompt, as `POST /tokenize` does; `GET /v1/models`, `/health` and `/metrics`. Of the request, sampling is ignored: the answer is made from
//! the prompt by [`text::Text::answer`]. The last route, `/mock/truth`, states what the engine holds.
//!
//! Disaggregated serving follows vLLM's convention (`kv_transfer_params`): [`remote`].
//!
//! - [`text`], [`template`]: tokens from text and chats, and answers (pure);
//! - [`training`]: a small tokenizer, for tests;
//! - [`body`]: what clients send (pure);
//! - [`answer`]: what they get (pure);
//! - [`error`]: errors in OpenAI's form;
//! - [`client`]: one request to another engine;
//! - [`remote`]: blocks that one engine computes and another one fetches;
//! - `state`: what the routes share;
//! - `generate`, `stream`: a request from its body to its answer;
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
