//! The two servers behind one face.

mod dynamo;
mod http;
mod kvasir;

pub use dynamo::Dynamo;
pub use kvasir::Kvasir;

use crate::{process::Server, stream::Prompt};
use anyhow::{Context, Result};
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

/// Model that all workers serve.
const MODEL: &str = "bench";
/// Longest wait for a server to listen.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How often something is looked at that nothing announces.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Where the servers' programs are.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `indexer-server`, a release build.
    pub indexer_server: PathBuf,
    /// The Python that `python -m dynamo.indexer` works with.
    pub dynamo_python: PathBuf,
}

/// How a prompt is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// By the local hashes of its blocks.
    Hashes,
    /// By its tokens.
    Tokens,
}

/// What a series of queries took.
#[derive(Debug, Default)]
pub struct Latencies {
    /// From the first byte handed over to the whole answer, one each.
    pub each: Vec<Duration>,
    /// Answers that did not name exactly the holder, with exactly the depth.
    pub wrong: u64,
}

/// What a dump of everything brought.
#[derive(Debug)]
pub struct Dump {
    /// (worker, block) pairs.
    pub pairs: u64,
    /// Bytes of its messages or body.
    pub bytes: u64,
    /// From the first request to the last byte.
    pub wall: Duration,
}

/// A server that follows publishers and answers questions.
pub trait Subject: Sized {
    /// As in the report.
    const NAME: &'static str;
    /// A question by the hashes of a prompt, ready to be sent again and again.
    type Question;

    /// Starts the server and waits until it listens.
    async fn start(programs: &Programs, log: &Path) -> Result<Self>;
    /// Its process.
    fn server(&mut self) -> &mut Server;
    /// Attaches it to a worker's publisher.
    async fn register(&mut self, worker: usize, port: u16) -> Result<()>;
    /// Pairs applied so far.
    async fn applied_pairs(&mut self) -> Result<u64>;
    /// Asks `prompts` one after the other, in turn, `requests` times, on one connection.
    async fn ask(&mut self, form: Form, prompts: &[Prompt], requests: usize) -> Result<Latencies>;
    /// The same on one stream, `in_flight` at a time; none if it has no such thing.
    async fn ask_pipelined(
        &mut self,
        form: Form,
        prompts: &[Prompt],
        requests: usize,
        in_flight: usize,
    ) -> Result<Option<Latencies>>;
    /// The question for a prompt.
    fn question(&self, prompt: &Prompt) -> Self::Question;
    /// Whether it says that the prompt's worker holds all of it. An answer that names other workers is an error. `None` if it
    /// should be asked in a stream, and has no such thing.
    async fn holds(
        &mut self,
        question: &Self::Question,
        prompt: &Prompt,
        is_streamed: bool,
    ) -> Result<Option<bool>>;
    /// Everything it holds.
    async fn dump(&mut self) -> Result<Dump>;
    /// Ends it.
    async fn stop(self) -> Result<()>;
}

/// A port of the loopback interface that nobody listens on.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Waits until somebody listens.
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
