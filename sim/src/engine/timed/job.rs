//! Requests in terms of block names: the machine needs no tokens.

use super::model::{Nanos, TransferModel};

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Arrival time.
    pub arrival: Nanos,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: usize,
    /// Tokens of the answer, at least 1.
    pub answer_tokens: usize,
    /// Names of all complete blocks of the prompt, and of the answer without its last token. A name represents the
    /// block and its complete prefix.
    pub names: Vec<u64>,
}

/// Options of disaggregated serving for a [`Job`]. By default, none applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// Another engine has computed the prompt: blocks that are not cached here are transferred from there in this time.
    pub transfer: Option<TransferModel>,
    /// The request ends with its first token, regardless of its answer: another engine generates the answer.
    pub is_prompt_only: bool,
    /// The request's blocks stay in use after its end until they are released: another engine will fetch them.
    pub is_held: bool,
    /// Leading blocks that come from other engines.
    pub fetch: Option<PeerFetch>,
}

/// A fetch from other engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerFetch {
    /// Number of leading blocks present after the fetch, including cached ones.
    pub blocks: usize,
    /// End of the fetch.
    pub at: Nanos,
}

// === impl Job ===

impl Job {
    /// Number of tokens that are computed: the last token of the answer is never an input.
    #[must_use]
    pub fn total_tokens(&self) -> usize {
        self.prompt_tokens + self.answer_tokens - 1
    }

    /// Names of the complete blocks of the prompt.
    #[must_use]
    pub fn prompt_names(&self, block_size: usize) -> &[u64] {
        let blocks = self.prompt_tokens / block_size;
        self.names.get(..blocks).unwrap_or(&self.names)
    }
}

// === impl Terms ===

impl Terms {
    /// Number of tokens of a request in the pool at its end.
    #[must_use]
    pub fn total_tokens(&self, job: &Job) -> usize {
        if self.is_prompt_only { job.prompt_tokens } else { job.total_tokens() }
    }

    /// Number of tokens that need not be computed; `cached` of them are cached.
    #[must_use]
    pub fn present_tokens(&self, job: &Job, cached: usize) -> usize {
        if self.transfer.is_some() { job.prompt_tokens - 1 } else { cached }
    }
}
