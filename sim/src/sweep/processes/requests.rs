//! Converts requests of the sweep for processes: tokens instead of block names.
//!
//! A block's tokens are a function of its name, which represents the block and its complete prefix. So engines find
//! blocks equal exactly when the sweep's machine does, for any workload.

use super::fleet::MODEL;
use crate::engine::timed::{Job, Nanos};
use crate::workload::tokens;
use anyhow::Result;
use bytes::Bytes;
use router_client::Prompt;
use serde::Serialize;
use std::time::Duration;

/// Seed of the tokens in blocks.
const BLOCK_SEED: u64 = 0xb10c;
/// Seed of the tokens that fill no block and are unique to a request.
const REST_SEED: u64 = 0x4e57;

/// A request, ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// Sending time, in real time from the start.
    pub(super) due: Duration,
    /// Local hashes of the prompt's blocks, for the router.
    pub(super) local_hashes: Vec<u64>,
    /// Tokens of a prompt without a complete block.
    pub(super) token_ids: Vec<u32>,
    /// Number of prompt tokens.
    pub(super) prompt_tokens: usize,
    /// Number of answer tokens.
    pub(super) answer_tokens: usize,
    /// Request body for the engine.
    pub(super) body: Bytes,
}

/// A body in OpenAI's form, for a mock engine.
#[derive(Debug, Serialize)]
struct Body<'a> {
    model: &'a str,
    prompt: &'a [u32],
    max_tokens: usize,
    mock_answer: &'a [u32],
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Debug, Serialize)]
struct StreamOptions {
    include_usage: bool,
}

/// Converts requests that arrive at these times, accelerated by the time scale.
///
/// # Errors
/// Never: numbers can always be serialised.
pub(super) fn requests(
    jobs: &[Job],
    arrivals: &[Nanos],
    block_size: u32,
    time_scale: f64,
) -> Result<Vec<Request>> {
    let request = |(number, (job, &arrival)): (usize, (&Job, &Nanos))| {
        let tokens = tokens_of(job, number as u64, block_size as usize);
        let (prompt, mock_answer) = tokens.split_at(job.prompt_tokens);
        let body = Body {
            model: MODEL,
            prompt,
            max_tokens: mock_answer.len(),
            mock_answer,
            stream: true,
            stream_options: StreamOptions { include_usage: true },
        };
        let local_hashes = Prompt::new(MODEL, block_size, prompt).hashed().local_hashes;
        Ok(Request {
            due: Duration::from_nanos(arrival).div_f64(time_scale),
            token_ids: if local_hashes.is_empty() { prompt.to_vec() } else { Vec::new() },
            local_hashes,
            prompt_tokens: prompt.len(),
            answer_tokens: mock_answer.len(),
            body: serde_json::to_vec(&body)?.into(),
        })
    };
    jobs.iter().zip(arrivals).enumerate().map(request).collect()
}

/// The tokens of a prompt and its answer.
fn tokens_of(job: &Job, number: u64, block_size: usize) -> Vec<u32> {
    let all = job.prompt_tokens + job.answer_tokens;
    let mut out = Vec::with_capacity(all);
    for &name in &job.names {
        tokens::append(BLOCK_SEED, name, 0..block_size, &mut out);
    }
    tokens::append(REST_SEED, number, 0..all - out.len(), &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::super::super::job::Source;
    use super::*;
    use crate::engine::scheduler::block_names;
    use std::collections::BTreeMap;

    #[test]
    fn blocks_are_equal_where_their_names_are() {
        let jobs = [Source::Agents, Source::Document].map(|source| source.jobs(3, 200, 64));
        for jobs in jobs {
            let mut by_job = BTreeMap::new();
            let mut by_engine = BTreeMap::new();
            for (number, job) in jobs.iter().enumerate() {
                let tokens = tokens_of(job, number as u64, 64);
                assert_eq!(tokens.len(), job.total_tokens() + 1);
                // The last token of an answer is in no block.
                let names = block_names(&tokens[..job.total_tokens()], 64, 0);
                assert_eq!(names.len(), job.names.len());
                for (&ours, theirs) in job.names.iter().zip(names) {
                    assert_eq!(*by_job.entry(ours).or_insert(theirs), theirs);
                    assert_eq!(*by_engine.entry(theirs).or_insert(ours), ours);
                }
            }
            assert!(by_job.len() > 1_000, "{} blocks", by_job.len());
        }
    }

    #[test]
    fn a_prompt_without_a_whole_block_is_sent_as_tokens() {
        let job = Job { arrival: 0, prompt_tokens: 20, answer_tokens: 5, names: Vec::new() };
        let requests = requests(&[job], &[1_000_000_000], 64, 4.0).expect("a request");
        let [request] = &requests[..] else { panic!("{requests:?}") };
        assert_eq!((request.local_hashes.len(), request.token_ids.len()), (0, 20));
        assert_eq!(request.due, Duration::from_millis(250));
    }
}
