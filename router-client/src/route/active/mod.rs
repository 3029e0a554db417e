//! Load accounting: the blocks in use and the prefill tokens that active requests cause at each rank ("slot manager" of
//! document 001; `--router-track-*` of document 004).
//!
//! - A request counts from the moment it is *added*, before its rank has received it. Its prefill counts until the
//!   first token (*prefill completed*), its blocks until it is *freed*.
//! - Blocks that requests of one rank share count once ([`KvReuse`]).
//! - Output blocks count from their first token, with a weight that falls as the output nears its expected length.
//! - A request without an update from its router is freed when its *lease* expires, so a crashed client leaves no load.
//! - Routers compare their states by digests that do not depend on order ([`LoadDigest`]).
//!
//! Counts are integers, so they return to exactly 0 when all requests are freed, and never become negative.

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
    ActiveRequest, ExpectedReuse, NewRequest, PromptBlocks, REQUEST_BLOCKS_MAX, REQUEST_TOKENS_MAX,
    RequestNotes,
};
