use std::fmt;

/// Actual reuse of a prompt by its engine, beside the prediction of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PromptReuse {
    /// Tokens of the prompt, at least 1.
    pub prompt: u32,
    /// Predicted reuse, in tokens, at most `prompt`.
    pub expected: u32,
    /// Cached tokens that the engine reported, at most `prompt`.
    pub cached: u32,
}

impl PromptReuse {
    /// Cached tokens that the index had not expected; negative if the engine reused fewer. 0 for a full hit: a connector
    /// also counts the last block (`block_size` tokens), which the engine computes again.
    #[must_use]
    pub fn difference(&self, block_size: u32) -> i64 {
        let is_full_hit = self.cached == self.prompt;
        if is_full_hit && self.expected.saturating_add(block_size) >= self.prompt {
            return 0;
        }
        i64::from(self.cached) - i64::from(self.expected)
    }
}

impl fmt::Display for PromptReuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prompt, expected, cached } = self;
        write!(f, "prompt_tokens={prompt} expected_tokens={expected} cached_tokens={cached}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_hit_of_a_connector_differs_in_no_token() {
        let at = |prompt, expected, cached| PromptReuse { prompt, expected, cached };
        assert_eq!(at(256, 224, 256).difference(32), 0);
        assert_eq!(at(256, 192, 256).difference(32), 64);
        assert_eq!(at(256, 224, 192).difference(32), -32);
        assert_eq!(at(257, 224, 256).difference(32), 32);
        assert_eq!(at(257, 256, 256).difference(32), 0);
    }
}
