//! The two servers with a common interface.

mod dynamo;
mod http;
mod kvasir;

pub use dynamo::Dynamo;
pub use kvasir::Kvasir;

use crate::process::Server;
use crate::stream::Prompt;
use anyhow::{Context, Result};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

/// Name of the model of all workers.
const MODEL: &str = "bench";
/// Timeout for a server to listen.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Polling interval.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Paths of the servers' programs.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Path of `indexer-server` (release build).
    pub indexer_server: PathBuf,
    /// Python interpreter for `python -m dynamo.indexer`.
    pub dynamo_python: PathBuf,
}

/// Form of a query's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Local hashes of the blocks.
    Hashes,
    /// Tokens.
    Tokens,
}

/// Results of a series of queries.
#[derive(Debug, Default)]
pub struct Latencies {
    /// Time of each query, from the first byte sent to the complete answer.
    pub each: Vec<Duration>,
    /// Number of answers that did not name exactly the holder with exactly its depth.
    pub wrong: u64,
}

/// Results of a complete dump.
#[derive(Debug)]
pub struct Dump {
    /// Number of (worker, block) pairs.
    pub pairs: u64,
    /// Bytes of the messages or of the body.
    pub bytes: u64,
    /// Time from the first request to the last byte.
    pub wall: Duration,
}

/// A server that follows publishers and answers queries.
pub trait Subject: Sized {
    /// Name in the report.
    const NAME: &'static str;
    /// An encoded query by a prompt's hashes, to be sent repeatedly.
    type Question;

    /// Starts the server and waits until it listens.
    async fn start(programs: &Programs, log: &Path) -> Result<Self>;
    /// The server's process.
    fn server(&mut self) -> &mut Server;
    /// Connects the server to a worker's publisher.
    async fn register(&mut self, worker: usize, port: u16) -> Result<()>;
    /// Number of pairs applied so far.
    async fn applied_pairs(&mut self) -> Result<u64>;
    /// Queries `prompts` in turn, `requests` times in total, sequentially on one connection.
    async fn ask(&mut self, form: Form, prompts: &[Prompt], requests: usize) -> Result<Latencies>;
    /// Queries on one stream, `in_flight` at a time; none if the server has no stream.
    async fn ask_pipelined(
        &mut self,
        form: Form,
        prompts: &[Prompt],
        requests: usize,
        in_flight: usize,
    ) -> Result<Option<Latencies>>;
    /// Encodes the query for a prompt.
    fn question(&self, prompt: &Prompt) -> Self::Question;
    /// Whether the answer states that the prompt's worker has all its blocks. An answer that names other workers is an
    /// error. `None` if a stream is requested and the server has none.
    async fn holds(
        &mut self,
        question: &Self::Question,
        prompt: &Prompt,
        is_streamed: bool,
    ) -> Result<Option<bool>>;
    /// Dumps the complete index.
    async fn dump(&mut self) -> Result<Dump>;
    /// Stops the server.
    async fn stop(self) -> Result<()>;
}

/// An unused port of the loopback interface.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Waits until the server listens.
async fn listening(server: &mut Server, address: SocketAddr, log: &Path) -> Result<TcpStream> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        server.check().with_context(|| format!("see {}", log.display()))?;
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() >= deadline => {
                return Err(error).with_context(|| format!("nobody listens on {address}"));
            }
            Err(_not_yet) => sleep(POLL_INTERVAL).await,
        }
    }
}
