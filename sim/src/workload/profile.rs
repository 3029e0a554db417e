//! Measures statistics of a workload while it runs.

use super::Request;
use std::collections::HashSet;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Lengths, gaps and prefix reuse of the requests seen so far.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    block_size: usize,
    requests: u64,
    prompt_tokens: u64,
    answer_tokens: u64,
    blocks: u64,
    reused_blocks: u64,
    seen: HashSet<u64>,
    last_arrival: Duration,
}

impl Profile {
    /// Creates an empty profile. Reuse is counted in blocks of `block_size` tokens; the last block may be shorter.
    ///
    /// # Panics
    /// If `block_size` is 0.
    #[must_use]
    pub fn new(block_size: usize) -> Self {
        assert!(block_size > 0, "a block needs a token");
        Self { block_size, ..Self::default() }
    }

    /// Counts a request.
    pub fn record(&mut self, request: &Request) {
        self.requests += 1;
        self.prompt_tokens += request.prompt.len() as u64;
        self.answer_tokens += request.answer.len() as u64;
        self.last_arrival = self.last_arrival.max(request.arrival);
        let mut parent = 0;
        let mut reusing = true;
        for block in request.prompt.chunks(self.block_size) {
            parent = xxh3_64_with_seed(&kvasir_proto::hash::tokens_le(block), parent);
            let known = !self.seen.insert(parent);
            reusing &= known;
            self.blocks += 1;
            self.reused_blocks += u64::from(reusing);
        }
    }

    /// Number of requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Mean length of a prompt in tokens.
    #[must_use]
    pub fn mean_prompt_tokens(&self) -> f64 {
        self.prompt_tokens as f64 / self.requests.max(1) as f64
    }

    /// Mean length of an answer in tokens.
    #[must_use]
    pub fn mean_answer_tokens(&self) -> f64 {
        self.answer_tokens as f64 / self.requests.max(1) as f64
    }

    /// Mean gap between arrivals in seconds.
    #[must_use]
    pub fn mean_gap_secs(&self) -> f64 {
        self.last_arrival.as_secs_f64() / self.requests.saturating_sub(1).max(1) as f64
    }

    /// Fraction of prompt blocks that an infinite cache has already seen in the same prefix.
    #[must_use]
    pub fn reuse_share(&self) -> f64 {
        self.reused_blocks as f64 / self.blocks.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuse_counts_leading_blocks_only() {
        let mut profile = Profile::new(2);
        let request = |prompt: &[u32]| Request {
            arrival: Duration::ZERO,
            prompt: prompt.to_vec(),
            answer: vec![0; 3],
        };
        profile.record(&request(&[1, 2, 3, 4]));
        profile.record(&request(&[1, 2, 9, 9, 3, 4]));
        assert_eq!(profile.reuse_share(), 1.0 / 5.0);
        assert_eq!(profile.mean_prompt_tokens(), 5.0);
        assert_eq!(profile.mean_answer_tokens(), 3.0);
    }
}
