use kvasir_memory::{AllocateError, ArenaError};
use kvasir_process::net::SocketFileError;
use kvasir_process::program::ListenError;
use kvasir_tiers::manager::StartError;
use kvasir_tiers::{DiskError, VolumeError};
use kvasir_transfer::OwnerError;

/// Why there is no block manager. Each names the option.
#[derive(Debug, thiserror::Error)]
pub enum BlocksError {
    /// There is no memory for its blocks.
    #[error("blocks-host-bytes: {0}: ask for less, or choose another blocks-arena")]
    Memory(#[from] AllocateError),
    /// Slots do not fit into it.
    #[error("blocks-host-bytes: {0}")]
    Arena(#[from] ArenaError),
    /// The disk tier cannot be opened.
    #[error("blocks-disk: {0}")]
    Disk(#[from] DiskError),
    /// The volume cannot be used.
    #[error("blocks-volume: {0}")]
    Volume(#[from] VolumeError),
    /// The manager refuses.
    #[error("blocks: {0}")]
    Start(#[from] StartError),
    /// The socket cannot be had.
    #[error("blocks-socket: {0}")]
    Socket(#[from] SocketFileError),
    /// The port for other agents cannot be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Blocks cannot be served to other agents.
    #[error("blocks-peer-listen: {0}")]
    Owner(#[from] OwnerError),
    /// NIXL cannot be used.
    #[cfg(feature = "nixl")]
    #[error("blocks-peer-nixl-library: {0}")]
    Nixl(#[from] kvasir_transfer::nixl::NixlError),
    /// A fault of ours.
    #[error("blocks: the block manager failed while it began: see the log")]
    Panic,
}
