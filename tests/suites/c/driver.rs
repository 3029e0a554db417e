//! A publisher in C that does as it is told.

use crate::build::{Linked, Program, compile, source};
use kvasir_sim::client;
use kvasir_sim::server::Server;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{sleep, timeout};

/// Nothing in these tests takes nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The same, as the driver takes it.
pub const PATIENCE_MS: u32 = 60_000;
/// How often the index is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Codes of the header.
pub const OK: i32 = 0;
pub const INVALID_ARGUMENT: i32 = 1;
pub const FULL: i32 = 3;
pub const SHUT_DOWN: i32 = 4;
pub const TIMEOUT: i32 = 5;
pub const REFUSED: i32 = 6;

fn program() -> &'static Program {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("cc", "-std=c11", &source("driver.c"), Linked::Dynamically))
}

/// Who opens a publisher.
#[derive(Debug, Clone)]
pub struct Options {
    pub endpoint: String,
    pub worker: &'static str,
    pub source: &'static str,
    pub block_size: u32,
    pub rank: u32,
    pub lease_ms: u32,
    pub held_blocks_max: usize,
    pub journal_bytes_max: usize,
}

impl Options {
    pub fn new(endpoint: String) -> Self {
        Self {
            endpoint,
            worker: "worker-0",
            source: "engine",
            block_size: 4,
            rank: 0,
            lease_ms: 0,
            held_blocks_max: 0,
            journal_bytes_max: 0,
        }
    }
}

pub struct Driver {
    _process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Driver {
    pub async fn open(options: Options) -> Self {
        let mut process = Command::new(&program().path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("our program runs");
        let input = process.stdin.take().expect("a pipe");
        let output = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let mut driver = Self { _process: process, input, output };
        let Options { endpoint, worker, source, block_size, rank, lease_ms, .. } = options;
        let held = options.held_blocks_max;
        let bytes = options.journal_bytes_max;
        let who = format!("{endpoint} {worker} {source}");
        let line = format!("open {who} {block_size} {rank} {lease_ms} {held} {bytes}");
        driver.done(&line).await;
        driver
    }

    /// Has something done; the code, and what is said with it.
    pub async fn ask(&mut self, line: &str) -> (i32, String) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.expect("it reads");
        let answer = timeout(PATIENCE * 2, self.output.next_line()).await.expect("in time");
        let answer = answer.expect("text").expect("it has not ended");
        let (code, text) = answer.split_once(' ').expect("a code and a text");
        (code.parse().expect("a number"), text.to_owned())
    }

    /// Has something done that must succeed.
    pub async fn done(&mut self, line: &str) -> String {
        let (code, text) = self.ask(line).await;
        assert_eq!(code, OK, "{line}: {text}");
        text
    }

    pub async fn flush(&mut self) {
        self.done(&format!("flush {PATIENCE_MS}")).await;
    }

    /// One number of its status.
    pub async fn status(&mut self, field: &str) -> u64 {
        let status = self.done("status").await;
        let found = status.split(' ').find_map(|word| word.strip_prefix(field)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{field} in {status}")).parse().expect("a number")
    }
}

/// Waits until the index holds just these names for a worker.
pub async fn indexed_until(
    index: &Server,
    (model, worker): (&str, &str),
    names: &BTreeSet<u64>,
    patience: Duration,
) {
    let mut last = BTreeMap::new();
    let same = async {
        let mut indexer = client::connect(index.addresses.grpc).await.expect("it listens");
        loop {
            // The worker may be unknown yet.
            let known = client::find_worker(&mut indexer, model, worker).await.expect("an answer");
            if known.is_some_and(|worker| !worker.sources.is_empty()) {
                last =
                    client::dump_device_copies(&mut indexer, model, worker).await.expect("a dump");
                if last.keys().eq(names) {
                    return;
                }
            }
            sleep(LOOK).await;
        }
    };
    let waited = timeout(patience, same).await;
    assert!(waited.is_ok(), "the index has {} names, not {}", last.len(), names.len());
}
