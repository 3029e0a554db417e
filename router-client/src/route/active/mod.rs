//! What requests under way ask of the ranks: blocks in use and tokens to be computed ("slot manager" of document
//! 001; `--router-track-*` of document 004).
//!
//! - A request counts from the moment it is *added*, before its rank has heard of it. Its prefill counts until the first
//!   token (*prefill completed*), its blocks until it is *freed*.
//! - Blocks that requests of one rank share count once ([`KvReuse`]).
//! - Blocks of output count as they are begun, with less weight the nearer the output is to its expected end.
//! - A request whose router is not heard of for a *lease* is freed: a client that crashed leaves no load.
//! - Routers can compare what they know by digests that do not depend on order ([`LoadDigest`]).
//!
//! Counts are whole numbers, so nothing is left when all requests are freed, and none is ever negative.

mod chains;
#[cfg(test)]
mod chains_test;
mod config;
mod key;
mod loads;
#[cfg(test)]
mod loads_test;
#[cfg(test)]
mod model_test;
mod outcome;
mod prefills;
mod rank;
mod request;
mod requests;
mod slab;

pub use config::{
    ACTIVE_BLOCKS_MAX, ACTIVE_RANKS_MAX, ACTIVE_REQUESTS_MAX, ActiveConfig, BlockTracking, KvReuse,
    REQUEST_LEASE_MAX,
};
pub use key::{REQUEST_ID_BYTES_MAX, RequestKey, RouterId};
pub use loads::ActiveLoads;
pub use outcome::{AddError, Expired, Placed, SharedBlocks, Update};
pub use rank::{LoadDigest, RankId, RankLoad};
pub use request::{
    ActiveRequest, NewRequest, PromptBlocks, REQUEST_BLOCKS_MAX, REQUEST_TOKENS_MAX, RequestNotes,
};
