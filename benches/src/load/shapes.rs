//! The queries: their sizes, the messages to the index, and messages of the same sizes to the echo.

use super::check::Expected;
use super::echo;
use super::fleet::{BLOCK_SIZE, Fleet, Kind, MODEL, worker_id};
use super::raw::Caller;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kvasir_proto::hash::{HASH_SCHEME, Namespace, local_hashes, tokens_le};
use kvasir_proto::pb::{FindMatchesRequest, FindMatchesResponse};
use kvasir_proto::types::LocalHash;
use prost::Message;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Additional bytes of a stream's answer compared with a single call's: two ids, a tag and a length.
const STREAM_EXTRA: usize = 6;
/// Duration of the hashing measurement.
const HASHING_TIME: Duration = Duration::from_millis(200);

/// A kind of query.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Name of the shape.
    pub name: &'static str,
    /// Kind of the prompts.
    pub kind: Kind,
    /// Number of blocks per query.
    pub blocks: usize,
    /// Whether the query has tokens instead of hashes.
    pub tokens: bool,
}

/// All shapes.
pub const SHAPES: [Shape; 6] = [
    Shape { name: "hash-256", kind: Kind::Own, blocks: 256, tokens: false },
    Shape { name: "hash-512", kind: Kind::Own, blocks: 512, tokens: false },
    Shape { name: "hash-256-all", kind: Kind::System, blocks: 256, tokens: false },
    Shape { name: "tokens-1k", kind: Kind::Own, blocks: 64, tokens: true },
    Shape { name: "tokens-8k", kind: Kind::Own, blocks: 512, tokens: true },
    Shape { name: "tokens-128k", kind: Kind::Long, blocks: 8_192, tokens: true },
];

/// One encoded query with its expected answer.
#[derive(Debug, Clone)]
pub struct Question {
    /// The message.
    pub message: Bytes,
    /// The expected answer.
    pub expected: Expected,
}

/// The queries of one shape.
#[derive(Debug, Clone)]
pub struct Questions {
    /// Queries to the index.
    pub index: Arc<[Question]>,
    /// Queries to the echo, with one answer each.
    pub echo: Arc<[Question]>,
    /// Queries to the echo, in a stream.
    pub echo_stream: Arc<[Question]>,
    /// Time to hash the tokens of one query on this machine; zero for hashes.
    pub hashing: Duration,
}

impl Questions {
    /// Bytes of a query and of its answer.
    pub fn sizes(&self) -> (usize, usize) {
        let question = self.index.first().map_or(0, |question| question.message.len());
        let answer = self.echo.first().map(|question| question.expected);
        match answer {
            Some(Expected::Bytes(bytes)) => (question, bytes),
            Some(Expected::Depth { .. }) | None => (question, 0),
        }
    }
}

impl Shape {
    /// Creates the queries, and sends each once to the index. The answers must be complete; their sizes determine the
    /// sizes of the echo's answers.
    pub async fn questions(self, fleet: Fleet, indexer: &mut Caller) -> Result<Questions> {
        let mut questions = Questions {
            index: [].into(),
            echo: [].into(),
            echo_stream: [].into(),
            hashing: Duration::ZERO,
        };
        let mut index = Vec::new();
        let mut echo = Vec::new();
        let mut echo_stream = Vec::new();
        for number in 0..fleet.prompts(self.kind) {
            let message = Bytes::from(self.request(fleet, number).encode_to_vec());
            let answer = indexer.ask(message.clone()).await.context(self.name)?;
            self.verify(fleet, number, &answer)
                .with_context(|| format!("{} {number}", self.name))?;
            echo.push(echo_of(message.len(), answer.len()));
            echo_stream.push(echo_of(message.len(), answer.len() + STREAM_EXTRA));
            let expected = Expected::Depth { id: number + 1, blocks: self.blocks as u64 };
            index.push(Question { message, expected });
        }
        questions.index = index.into();
        questions.echo = echo.into();
        questions.echo_stream = echo_stream.into();
        if self.tokens {
            questions.hashing = self.hashing(fleet);
        }
        Ok(questions)
    }

    fn request(self, fleet: Fleet, number: u64) -> FindMatchesRequest {
        let mut request = FindMatchesRequest {
            request_id: number + 1,
            model: MODEL.to_owned(),
            block_size: Some(BLOCK_SIZE),
            ..Default::default()
        };
        if self.tokens {
            let tokens = fleet.tokens(self.kind, number, self.blocks);
            request.token_ids_le = tokens_le(&tokens).into_owned().into();
        } else {
            request.hash_scheme = Some(HASH_SCHEME.to_owned());
            let locals = fleet.locals(self.kind, number, self.blocks);
            request.local_hashes = locals.iter().map(|local| local.0).collect();
        }
        request
    }

    fn verify(self, fleet: Fleet, number: u64, answer: &Bytes) -> Result<()> {
        let answer = FindMatchesResponse::decode(answer.clone())?;
        let mut found: Vec<_> = answer.matches.iter().map(|at| at.worker_id.clone()).collect();
        found.sort_unstable();
        let mut holders: Vec<_> =
            fleet.holders(self.kind, number).into_iter().map(worker_id).collect();
        holders.sort_unstable();
        holders.dedup();
        ensure!(found == holders, "{found:?} instead of {holders:?}");
        let blocks = self.blocks;
        let whole = answer.matches.iter().all(|at| at.matched_blocks as usize == blocks);
        ensure!(whole && answer.query_blocks as usize == blocks, "not all blocks: {answer:?}");
        Ok(())
    }

    /// Hashes one query after another, like the server. Returns the mean time of one.
    fn hashing(self, fleet: Fleet) -> Duration {
        let prompts = (0..fleet.prompts(self.kind))
            .map(|number| tokens_le(&fleet.tokens(self.kind, number, self.blocks)).into_owned());
        let prompts: Vec<Vec<u8>> = prompts.collect();
        let seed = Namespace::default().seed();
        let mut locals = Vec::<LocalHash>::new();
        let begin = Instant::now();
        let mut count = 0_u32;
        while begin.elapsed() < HASHING_TIME {
            for prompt in &prompts {
                locals.clear();
                local_hashes(black_box(prompt), BLOCK_SIZE as usize, seed, &[], &mut locals);
                black_box(&locals);
                count += 1;
            }
        }
        begin.elapsed() / count.max(1)
    }
}

/// A query to the echo with `bytes` bytes, whose answer has `answer_bytes`.
fn echo_of(bytes: usize, answer_bytes: usize) -> Question {
    let size = u32::try_from(answer_bytes).unwrap_or(u32::MAX);
    let question = |payload: usize| echo::Question {
        payload: vec![b'q'; payload].into(),
        // The answer's size includes a tag and a length.
        answer_bytes: size.saturating_sub(3),
    };
    let excess = question(bytes).encoded_len().saturating_sub(bytes);
    let message = question(bytes.saturating_sub(excess)).encode_to_vec().into();
    Question { message, expected: Expected::Bytes(answer_bytes) }
}
