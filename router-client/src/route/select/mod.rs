//! Selects a rank for a request.
//!
//! 1. *Hard filters* remove ranks that must not receive it: not allowed, excluded, not pinned, of another role, or
//!    without a required label. Workers with recent failures are *ejected* unless no other worker remains.
//! 2. *Busy thresholds* remove ranks with too much load. If no rank remains, the request is refused.
//! 3. The *mode* chooses among the remaining ranks. In mode `kv` the lowest score wins: the [cost](crate::route::Cost)
//!    times two factors. One is below 1 for a *preferred* rank (labels, session, adapter), the other above 1 for a rank
//!    that has just joined (*slow start*). Equal scores go to the least loaded rank, then round-robin.
//!
//! The decision includes its reason and, on request, the data known of each rank.

mod busy;
mod decision;
mod filter;
mod mode;
mod pick;
mod question;
#[cfg(test)]
mod reference_test;
mod score;
mod selector;
#[cfg(test)]
mod selector_test;

pub use busy::BusyThresholds;
pub use decision::{Decision, Explanation, Reason, Removed, SelectError};
pub use mode::Mode;
pub use question::{
    Candidate, Candidates, Constraints, Pin, Preferences, PreferredLabel, Question, Vitals,
};
pub use score::{PreferenceWeights, SlowStart};
pub use selector::{SelectConfig, Selector};
