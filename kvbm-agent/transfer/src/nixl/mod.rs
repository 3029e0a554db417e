//! Blocks that peers read from one another's memory by NIXL.
//!
//! - `options`: where the library is. `export`: the owner's memory. `reads`: the thread that reads, with its agents. `staging`:
//!   memory for blocks of other sizes.
//!
//! An owner can't stop a peer that reads, and NIXL does not stop a transfer that was abandoned: neither an error nor an
//! invalidated peer is proof of its end. So slots that are read into belong to the agent until the transfer has completed; those
//! of other transfers are free only after the agent was destroyed, which closes its connections. What arrives is registered only
//! if its checksum is the one that the owner has computed before it lent the block.

mod export;
mod options;
mod reads;
mod staging;

pub use kvasir_memory::nixl::NixlError;
pub use options::NixlOptions;
pub(crate) use options::agent_name;
pub(crate) use reads::{Reading, Reads};
pub(crate) use staging::{InUse, Pieces, Place};
