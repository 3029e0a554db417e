//! The choice of a rank for a request.
//!
//! 1. *Hard filters* remove ranks that must not have it: not allowed, excluded, not pinned, of another role, without a
//!    required label. Ranks that failed of late are left alone (*ejected*) unless nobody else is left.
//! 2. *Busy thresholds* remove ranks that have too much to do. If that leaves nobody, the request is refused.
//! 3. The *mode* chooses among the rest. In mode `kv` the lowest score wins: the [cost](crate::route::Cost), times a
//!    factor below 1 for a rank that is *preferred* (labels, session, adapter) and one above 1 for one that has just
//!    joined (*slow start*). Equal scores go to the least loaded, then in turn.
//!
//! The answer names its reason and, if asked, what was known of each rank.

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
