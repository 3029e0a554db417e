use kvasir_memory::{AllocateError, ArenaError};
use kvasir_process::net::SocketFileError;
use kvasir_process::program::ListenError;
use kvasir_tiers::manager::StartError;
use kvasir_tiers::{DiskError, VolumeError};
use kvasir_transfer::OwnerError;

/// Why the block manager cannot start. Each message names the option.
#[derive(Debug, thiserror::Error)]
pub enum BlocksError {
    /// Memory for the blocks cannot be allocated.
    #[error("blocks-host bytes: {0}: ask for less, or choose another arena")]
    Memory(#[from] AllocateError),
    /// Slots do not fit into the memory.
    #[error("blocks-host bytes: {0}")]
    Arena(#[from] ArenaError),
    /// The disk tier cannot be opened.
    #[error("blocks-disk: {0}")]
    Disk(#[from] DiskError),
    /// The volume cannot be used.
    #[error("blocks-volume: {0}")]
    Volume(#[from] VolumeError),
    /// The manager refuses its configuration.
    #[error("blocks: {0}")]
    Start(#[from] StartError),
    /// The socket cannot be opened.
    #[error("blocks-socket: {0}")]
    Socket(#[from] SocketFileError),
    /// The port for other agents cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Blocks cannot be served to other agents.
    #[error("blocks-peer listen: {0}")]
    Owner(OwnerError),
    /// NIXL cannot be used.
    #[cfg(feature = "nixl")]
    #[error("blocks-peer nixl-library: {0}")]
    Nixl(#[from] kvasir_transfer::nixl::NixlError),
    /// The block manager panicked while it started.
    #[error("blocks: the block manager failed while it began: see the log")]
    Panic,
}

impl From<OwnerError> for BlocksError {
    fn from(error: OwnerError) -> Self {
        match error {
            #[cfg(feature = "nixl")]
            OwnerError::Nixl(error) => Self::Nixl(error),
            error => Self::Owner(error),
        }
    }
}

#[cfg(all(test, feature = "nixl"))]
mod tests {
    use super::*;
    use kvasir_transfer::nixl::NixlError;

    #[test]
    fn what_nixl_refuses_an_owner_names_nixls_option() {
        let error = NixlError::Count { field: "bytes", count: 9, max: 1 };
        let error = BlocksError::from(OwnerError::from(error));
        assert_eq!(error.to_string(), "blocks-peer nixl-library: NIXL: bytes: 9, must be 1 to 1");
    }
}
