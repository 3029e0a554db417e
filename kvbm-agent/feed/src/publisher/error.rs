use crate::hub::HubError;
use kvasir_proto::limits::NAME_BYTES_MAX;

/// Why an event is not published. The journal is unchanged, and no event id is used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The publisher was shut down.
    #[error("the publisher was shut down")]
    ShutDown,
    /// The list of names is empty.
    #[error("names must not be empty")]
    NoNames,
    /// Known blocks have a parent already.
    #[error("parent must not be set for blocks without tokens or local hashes")]
    ParentOfKnown,
    /// The number of tokens does not match the number of blocks.
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
    /// The number of local hashes does not match the number of names.
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
        /// Name of the field.
        field: &'static str,
        /// Length of the value in bytes.
        bytes: usize,
    },
    /// The agent refuses the event.
    #[error(transparent)]
    Hub(HubError),
}

impl From<HubError> for PublishError {
    fn from(error: HubError) -> Self {
        if error == HubError::Closed { Self::ShutDown } else { Self::Hub(error) }
    }
}
