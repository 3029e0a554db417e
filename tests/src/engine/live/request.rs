//! A request, and how far it is.

use crate::engine::pool::BlockId;

/// A request for an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Submission {
    /// Tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Tokens of the answer that the model will give, at least one.
    pub answer: Vec<u32>,
    /// Whether the answer is shorter than the model's because the caller limits it.
    pub is_cut: bool,
    /// Whether another engine has computed the prompt, so that its keys and values come from there.
    pub is_remote: bool,
    /// Whether its blocks stay in use after its end, for another engine to fetch.
    pub is_held: bool,
}

/// How far a request is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Tokens of the answer that are out.
    pub out: usize,
    /// Whether it has ended.
    pub is_done: bool,
    /// Once it has ended: tokens of its prompt that were not computed here, because they were cached or came from another
    /// engine.
    pub cached_tokens: usize,
    /// Once it has ended: the blocks that are held for another engine.
    pub held: Vec<BlockId>,
}
