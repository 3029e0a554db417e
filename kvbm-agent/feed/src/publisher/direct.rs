use super::PublishError;
use crate::hub::{Hub, Inlet};
use kvasir_proto::hash::{MultimodalSpan, Namespace, local_hashes, tokens_le};
use kvasir_proto::limits::NAME_BYTES_MAX;
use kvasir_proto::types::{
    BlockName, CopyMode, DpRank, KvEvent, LocalHash, SourceState, SourceStatus, StoredBlock, Tier,
};
use std::sync::Arc;

/// Publishes the blocks of one rank of an engine. Calls are allowed from any thread, and never wait for a peer. On
/// return, the event is in the agent's journal, in the order of the event ids.
///
/// Clones, and publishers of other ranks, share one source: shutting one down shuts all down.
#[derive(Debug, Clone)]
pub struct KvEventPublisher {
    inlet: Arc<Inlet>,
    rank: DpRank,
}

/// Blocks that are cached now, each the parent of the next.
#[derive(Debug, Clone, Copy)]
pub struct NewBlocks<'a> {
    /// Parent of the first block; `None` at the start of a prompt.
    pub parent: Option<BlockName>,
    /// The engine's names of the blocks, 1 to 65,536 in number.
    pub names: &'a [BlockName],
    /// Content of the blocks.
    pub content: Content<'a>,
    /// Tier of the blocks.
    pub tier: Tier,
}

/// Content of blocks.
#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    /// Tokens, a block size for each name. They are hashed immediately, and not stored.
    Tokens {
        /// The tokens.
        tokens: &'a [u32],
        /// Adapter and salt.
        namespace: Namespace<'a>,
        /// Multimodal content, by position in `tokens`.
        multimodal: &'a [MultimodalSpan],
    },
    /// Local hashes, one for each name.
    Locals(&'a [LocalHash]),
    /// The names are known from another tier, so their content is omitted.
    Known,
}

impl<'a> Content<'a> {
    /// Tokens without adapter, salt or multimodal content.
    #[must_use]
    pub fn tokens(tokens: &'a [u32]) -> Self {
        Self::Tokens { tokens, namespace: Namespace::default(), multimodal: &[] }
    }
}

impl KvEventPublisher {
    /// Registers the engine as a source of the agent, without blocks, and publishes for one rank.
    ///
    /// # Errors
    /// If the agent refuses the source.
    pub fn open(
        hub: &Arc<Hub>,
        source: &str,
        copy_mode: CopyMode,
        rank: DpRank,
    ) -> Result<Self, PublishError> {
        let inlet = Arc::new(hub.open(source, copy_mode)?);
        inlet.count(|counts| counts.incarnations = 1);
        inlet.show(SourceStatus {
            state: SourceState::Exact,
            connected: true,
            ..SourceStatus::default()
        });
        Ok(Self { inlet, rank })
    }

    /// Publisher of the same source for another rank, with its own event ids.
    #[must_use]
    pub fn at_rank(&self, rank: DpRank) -> Self {
        Self { inlet: Arc::clone(&self.inlet), rank }
    }

    /// Publishes stored blocks. Returns the event's id.
    ///
    /// # Errors
    /// If the fields contradict each other, a limit is reached, or the publisher was shut down.
    pub fn publish_stored(&self, blocks: &NewBlocks<'_>) -> Result<u64, PublishError> {
        let NewBlocks { parent, names, content, tier } = *blocks;
        if names.is_empty() {
            return Err(PublishError::NoNames);
        }
        let locals = match content {
            Content::Known if parent.is_some() => return Err(PublishError::ParentOfKnown),
            Content::Known => {
                return self.publish(KvEvent::StoredNames { tier, names: names.to_vec() });
            }
            Content::Locals(locals) if locals.len() != names.len() => {
                let locals = locals.len();
                let blocks = names.len();
                return Err(PublishError::Locals { locals, blocks });
            }
            Content::Locals(locals) => locals.to_vec(),
            Content::Tokens { tokens, namespace, multimodal } => {
                self.hash(tokens, names.len(), namespace, multimodal)?
            }
        };
        let blocks = names.iter().zip(locals);
        let blocks = blocks.map(|(&name, local)| StoredBlock { name, local }).collect();
        self.publish(KvEvent::Stored { parent, tier, blocks })
    }

    /// Publishes that blocks were removed from a tier. Returns the event's id.
    ///
    /// # Errors
    /// If `names` is empty, a limit is reached, or the publisher was shut down.
    pub fn publish_removed(&self, names: &[BlockName], tier: Tier) -> Result<u64, PublishError> {
        if names.is_empty() {
            return Err(PublishError::NoNames);
        }
        self.publish(KvEvent::Removed { tier, names: names.to_vec() })
    }

    /// Publishes that the rank's blocks were removed from all tiers. Returns the event's id.
    ///
    /// # Errors
    /// If a limit is reached, or the publisher was shut down.
    pub fn publish_all_cleared(&self) -> Result<u64, PublishError> {
        self.publish(KvEvent::Cleared)
    }

    /// Ends the engine: removes its blocks at all ranks, and refuses further events. Dropping a publisher does not do
    /// this.
    pub fn shutdown(&self) {
        self.inlet.close();
    }

    fn publish(&self, event: KvEvent) -> Result<u64, PublishError> {
        Ok(self.inlet.take(self.rank, vec![event])?.id)
    }

    /// Hashes the tokens of complete blocks. Fails if a text is too long, or if the number of tokens does not match
    /// the blocks.
    fn hash(
        &self,
        tokens: &[u32],
        blocks: usize,
        namespace: Namespace<'_>,
        multimodal: &[MultimodalSpan],
    ) -> Result<Vec<LocalHash>, PublishError> {
        let texts = [("lora_name", namespace.lora_name), ("cache_salt", namespace.cache_salt)];
        for (field, text) in texts {
            if text.len() > NAME_BYTES_MAX {
                return Err(PublishError::TooLong { field, bytes: text.len() });
            }
        }
        let block_size = self.inlet.block_size();
        let size = usize::try_from(block_size).unwrap_or(usize::MAX);
        if blocks.checked_mul(size) != Some(tokens.len()) {
            return Err(PublishError::Tokens { tokens: tokens.len(), blocks, block_size });
        }
        let mut locals = Vec::new();
        local_hashes(&tokens_le(tokens), size, namespace.seed(), multimodal, &mut locals);
        Ok(locals)
    }
}
