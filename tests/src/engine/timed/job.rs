//! Requests by the names of their blocks: the machine needs no tokens.

use super::model::{Nanos, TransferModel};

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// When it arrives.
    pub arrival: Nanos,
    /// Tokens of its prompt, at least 1.
    pub prompt_tokens: usize,
    /// Tokens of its answer, at least 1.
    pub answer_tokens: usize,
    /// Names of all whole blocks of the prompt, and of the answer without its last token. A name stands for the block
    /// with all before it.
    pub names: Vec<u64>,
}

/// What disaggregated serving asks of an engine beside a [`Job`]. The default is nothing of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// Another engine has computed the prompt: what is not cached here comes from there, in this time.
    pub transfer: Option<TransferModel>,
    /// It ends with its first token, whatever its answer has: another engine gives that.
    pub is_prompt_only: bool,
    /// Its blocks stay in use after its end, until they are released: another engine will fetch them.
    pub is_held: bool,
    /// Leading blocks of it come from other engines.
    pub fetch: Option<PeerFetch>,
}

/// A fetch from other engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerFetch {
    /// Leading blocks of the prompt that are there once it has ended, cached ones included.
    pub blocks: usize,
    /// When it ends.
    pub at: Nanos,
}

// === impl Job ===

impl Job {
    /// Tokens that are computed in all: the last token of the answer is never an input.
    #[must_use]
    pub fn total_tokens(&self) -> usize {
        self.prompt_tokens + self.answer_tokens - 1
    }

    /// The names of the whole blocks of its prompt.
    #[must_use]
    pub fn prompt_names(&self, block_size: usize) -> &[u64] {
        let blocks = self.prompt_tokens / block_size;
        self.names.get(..blocks).unwrap_or(&self.names)
    }
}

// === impl Terms ===

impl Terms {
    /// Tokens of a request that are in the pool once it ends.
    #[must_use]
    pub fn total_tokens(&self, job: &Job) -> usize {
        if self.is_prompt_only { job.prompt_tokens } else { job.total_tokens() }
    }

    /// Tokens of a request that need not be computed, of which so many are cached.
    #[must_use]
    pub fn present_tokens(&self, job: &Job, cached: usize) -> usize {
        if self.transfer.is_some() { job.prompt_tokens - 1 } else { cached }
    }
}
