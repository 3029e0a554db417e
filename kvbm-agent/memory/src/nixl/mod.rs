//! Transfers by NIXL between this process's memory and that of peers (its plugin `UCX`) or files (`POSIX`).
//!
//! The library is found at run time ([`Library::load`]). An [`Agent`] owns the slots of the transfers that it has started:
//! they come back when a transfer has completed. Neither an error nor an invalidated peer proves that NIXL writes no more, so
//! the slots of other transfers are freed only after the agent has been destroyed.
//!
//! - `error`: why a call failed. `calls`: the functions of `libnixl_capi.so`. `lists`: descriptors. `agent`: the agent.

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

/// Maximum bytes of an agent's metadata. That of one arena takes less than 1 KiB for each network device.
pub const METADATA_BYTES_MAX: usize = 16 << 10;
/// Maximum pieces of one transfer.
pub const PIECES_MAX: usize = 1_024;
/// Maximum bytes of an agent's name.
pub const NAME_BYTES_MAX: usize = 512;

/// NIXL's plugin, and its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    /// Its name: `UCX` or `POSIX`.
    pub name: String,
    /// Names and values, as NIXL's documentation lists them.
    pub parameters: Vec<(String, String)>,
}

impl Plugin {
    /// With the plugin's own parameters.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), parameters: Vec::new() }
    }
}
