use kvasir_process::text::{Setting, Settings, Unset};
use kvasir_proto::convert::ImageTokens;
use kvasir_proto::pb;

/// Facts about the engine that its events do not state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineFactsSettings {
    /// Tokens per chunk of chunked local attention.
    pub attention_chunk_tokens: Unset<u32>,
    /// Whether the engine drops the last cached block of a prompt.
    pub eagle_drops_block: Unset<bool>,
    /// Cached tokens that the engine computes again.
    pub replay_tokens: Unset<u32>,
    /// Tokens between two lengths at which a prompt can be reused.
    pub prefix_match_unit: Unset<u32>,
    /// Whether the engine has groups that it never announces.
    pub unannounced_groups: Unset<bool>,
    /// Form of an image's tokens in the engine's events.
    pub image_tokens: Unset<ImageTokens>,
}

impl EngineFactsSettings {
    /// The facts for a registration.
    pub(super) fn message(&self) -> pb::EngineFacts {
        pb::EngineFacts {
            attention_chunk_tokens: self.attention_chunk_tokens.0.unwrap_or(0),
            eagle_drops_block: self.eagle_drops_block.0.unwrap_or(false),
            replay_tokens: self.replay_tokens.0.unwrap_or(0),
            prefix_match_unit: self.prefix_match_unit.0.unwrap_or(0),
            unannounced_groups: self.unannounced_groups.0.unwrap_or(false),
        }
    }
}

impl Settings for EngineFactsSettings {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("attention-chunk-tokens", &mut self.attention_chunk_tokens),
            ("eagle-drops-block", &mut self.eagle_drops_block),
            ("replay-tokens", &mut self.replay_tokens),
            ("prefix-match-unit", &mut self.prefix_match_unit),
            ("unannounced-groups", &mut self.unannounced_groups),
            ("image-tokens", &mut self.image_tokens),
        ]
    }
}
