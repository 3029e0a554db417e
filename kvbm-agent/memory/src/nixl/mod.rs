//! Transfers blocks with NIXL between this process's memory and peers (plugin `UCX`) or files (`POSIX`).
//!
//! The library is loaded at run time ([`Library::load`]). An [`Agent`] owns the slots of its transfers, and returns
//! them when a transfer has completed. Neither an error nor an invalidated peer proves that NIXL has stopped writing.
//! Slots of failed transfers are therefore freed only after the agent has been destroyed.
//!
//! - `error`: errors. `calls`: the functions of `libnixl_capi.so`. `lists`: descriptors. `agent`: the agent.

#[expect(unsafe_code, reason = "NIXL is C")]
mod agent;
#[expect(unsafe_code, reason = "NIXL is C")]
mod calls;
mod error;
#[expect(unsafe_code, reason = "NIXL is C")]
mod lists;

pub use agent::{Agent, Direction, Far, FileId, Peer, Piece, Progress, TransferId};
pub use calls::Library;
pub use error::NixlError;

/// Maximum bytes of an agent's metadata. The metadata of one arena takes less than 1 KiB per network device.
pub const METADATA_BYTES_MAX: usize = 16 << 10;
/// Maximum pieces of one transfer.
pub const PIECES_MAX: usize = 1_024;
/// Maximum bytes of an agent's name.
pub const NAME_BYTES_MAX: usize = 512;

/// A NIXL plugin and its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    /// The plugin's name: `UCX` or `POSIX`.
    pub name: String,
    /// Names and values, as listed in NIXL's documentation.
    pub parameters: Vec<(String, String)>,
}

impl Plugin {
    /// Creates a plugin with default parameters.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), parameters: Vec::new() }
    }
}
