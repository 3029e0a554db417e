//! Disaggregated serving: one engine computes a prompt, another engine fetches its blocks and answers.
//!
//! A client, such as a gateway, sends the prompt to the first engine with `kv_transfer_params: {"do_remote_decode":
//! true}` and `max_tokens: 1`. The blocks stay in use there. The client passes the answer's `kv_transfer_params` to the
//! second engine with the prompt. The second engine asks the first one, at `remote_host` and `remote_port`, whether it
//! still has the blocks of exactly this prompt. (vLLM's connectors use sockets of their own; mock engines use their
//! HTTP ports.) If so, the request gets its blocks when it is admitted, and they are cached after the transfer time.
//! When the first token is sent, the first engine may release its copy; otherwise it does so after `--hold-timeout-ms`.
//! A granted transfer takes place even if that time ends before it begins.
//!
//! If the first engine does not answer within [`ASK_TIMEOUT`], or no longer has the blocks, the second engine computes
//! the prompt itself or rejects the request: `--load-failure`.

use super::body::KvTransferParams;
use super::client::call;
use anyhow::{Context, Result, ensure};
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use xxhash_rust::xxh3::xxh3_64;

/// Timeout for the answer of another engine.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Path of an engine's answers to other engines, followed by its id and the id of the request.
pub const PATH: &str = "/mock/transfers";

/// Treatment of a prompt whose blocks cannot be fetched; vLLM's `kv_load_failure_policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LoadFailure {
    /// The engine computes the prompt itself.
    #[default]
    Recompute,
    /// The engine rejects the request with status 500.
    Fail,
}

/// An engine's answer about blocks that it keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Hash of the prompt, in hexadecimal digits.
    pub prompt: String,
}

impl Held {
    /// Creates the answer for this prompt.
    #[must_use]
    pub fn of(prompt: &[u32]) -> Self {
        let bytes: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
        Self { prompt: format!("{:016x}", xxh3_64(&bytes)) }
    }
}

/// A claim on blocks at another engine, which releases them on drop.
pub struct Claim {
    host: String,
    port: u16,
    path: String,
    tasks: Arc<TaskTracker>,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({}:{}{})", self.host, self.port, self.path)
    }
}

impl Claim {
    /// Asks the engine in `params` for the blocks of a prompt. The release will run as one of `tasks`.
    ///
    /// # Errors
    /// If the engine does not answer, or does not have the blocks.
    pub async fn ask(
        params: &KvTransferParams,
        prompt: &[u32],
        tasks: Arc<TaskTracker>,
    ) -> Result<Self> {
        let host = params.remote_host.clone().context("remote_host is missing")?;
        let port = params.remote_port.context("remote_port is missing")?;
        let engine = params.remote_engine_id.as_deref().context("remote_engine_id is missing")?;
        let request = params.remote_request_id.as_deref();
        let request = request.context("remote_request_id is missing")?;
        let path = format!("{PATH}/{engine}/{request}");
        let (status, body) = call(Method::POST, (&host, port), &path, "", ASK_TIMEOUT).await?;
        ensure!(status == StatusCode::OK, "{host}:{port} does not hold request {request}");
        let held: Held = serde_json::from_slice(&body)?;
        ensure!(held == Held::of(prompt), "request {request} has another prompt");
        Ok(Self { host, port, path, tasks })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let host = std::mem::take(&mut self.host);
        let port = self.port;
        let path = std::mem::take(&mut self.path);
        let release = async move {
            // If the call fails, the other engine releases the blocks after its timeout.
            drop(call(Method::DELETE, (&host, port), &path, "", ASK_TIMEOUT).await);
        };
        if let Ok(runtime) = Handle::try_current() {
            self.tasks.spawn_on(release, &runtime);
        }
    }
}
