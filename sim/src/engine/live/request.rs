//! A request and its progress.

use crate::engine::pool::BlockId;

/// A request for an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Submission {
    /// Tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Tokens of the answer, at least one.
    pub answer: Vec<u32>,
    /// Cache salt: prompts with different salts share no blocks.
    pub salt: Option<String>,
    /// Whether the caller's limit cuts the answer short.
    pub is_cut: bool,
    /// Whether another engine has computed the prompt and supplies its keys and values.
    pub is_remote: bool,
    /// Whether the request's blocks stay in use after its end, for another engine to fetch.
    pub is_held: bool,
}

/// Progress of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Number of answer tokens sent.
    pub out: usize,
    /// Whether the request has ended.
    pub is_done: bool,
    /// After the end: prompt tokens that were not computed here, because they were cached or came from another engine.
    pub cached_tokens: usize,
    /// After the end: the blocks that are kept for another engine.
    pub held: Vec<BlockId>,
}
