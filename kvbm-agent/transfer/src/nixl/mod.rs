//! NIXL transfers: peers read blocks from each other's memory.
//!
//! - `options`: configuration. `export`: makes the owner's memory accessible. `reads`: the reading thread and its
//!   agents. `staging`: memory for blocks of other sizes.
//!
//! An owner can't stop a peer that reads, and NIXL does not stop an abandoned transfer: neither an error nor an
//! invalidated peer proves its end. Therefore the agent owns the slots until the transfer has completed. Slots of other
//! transfers are freed only after the agent was destroyed, which closes its connections. A received block is registered
//! only if its checksum equals the owner's, which was computed before the block was lent.

mod export;
mod options;
mod reads;
mod staging;

pub use kvasir_memory::nixl::NixlError;
pub use options::NixlOptions;
pub(crate) use options::agent_name;
pub(crate) use reads::{Reading, Reads};
pub(crate) use staging::{InUse, Pieces, Place};
