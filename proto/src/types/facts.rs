/// Facts about an engine that no event states. They determine how much of a cached prompt the engine reuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EngineFacts {
    /// Tokens per chunk of chunked local attention; 0 if unknown. While it is unknown, all blocks of a prompt must be
    /// cached.
    pub attention_chunk_tokens: u32,
    /// Whether the engine drops the last cached block of a prompt, as vLLM does with EAGLE or MTP.
    pub eagle_drops_block: bool,
    /// Cached tokens that the engine computes again because a window is not cached (DeepSeek V4.1); 0 for none. A prompt
    /// with no more cached tokens is computed as a whole.
    pub replay_tokens: u32,
    /// Tokens between two lengths at which a prompt can be reused (vLLM's `prefix_match_unit`); 0 if unknown. Then it is
    /// taken from the announced block sizes.
    pub prefix_match_unit: u32,
    /// Whether the engine has groups that it never announces, as SGLang with sliding windows or Mamba. Then answers may
    /// be too high.
    pub unannounced_groups: bool,
}

impl EngineFacts {
    /// Whether the facts alone limit what an engine with one KV-cache group reuses.
    #[must_use]
    pub const fn limits_matches(&self) -> bool {
        self.eagle_drops_block || self.replay_tokens > 0
    }
}
