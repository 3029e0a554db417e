use crate::hub::HubError;
use kvasir_proto::limits::NAME_BYTES_MAX;

/// Why an event is not published. Nothing has changed, and no event id is used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The publisher was shut down.
    #[error("the publisher was shut down")]
    ShutDown,
    /// No block is named.
    #[error("names must not be empty")]
    NoNames,
    /// A block that is known has its parent already.
    #[error("parent must not be set for blocks without tokens or local hashes")]
    ParentOfKnown,
    /// The tokens do not fill the blocks.
    #[error("{tokens} tokens are given for {blocks} blocks of {block_size}: give {}",
            blocks.saturating_mul(*block_size as usize))]
    Tokens {
        /// Tokens given.
        tokens: usize,
        /// Names given.
        blocks: usize,
        /// Tokens per block.
        block_size: u32,
    },
    /// There are not as many local hashes as names.
    #[error("{locals} local hashes are given for {blocks} blocks: give one for each")]
    Locals {
        /// Local hashes given.
        locals: usize,
        /// Names given.
        blocks: usize,
    },
    /// An adapter's name or a salt is too long.
    #[error("{field} has {bytes} bytes, the limit is {NAME_BYTES_MAX}")]
    TooLong {
        /// Which.
        field: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// The agent does not take it.
    #[error(transparent)]
    Hub(HubError),
}

impl From<HubError> for PublishError {
    fn from(error: HubError) -> Self {
        if error == HubError::Closed { Self::ShutDown } else { Self::Hub(error) }
    }
}
