//! The engines that a user names: addresses, facts that they state themselves, and their registration at the index.

mod facts;
mod follow;
mod kubernetes;
mod pods;
mod source;
mod spec;

pub use facts::{Facts, FactsError, ask, registration};
pub use follow::{Engines, Seen, Watch};
pub use pods::{Listed, ServicePort};
pub use source::{EngineList, EngineSource, distinct};
pub use spec::{ENGINES_MAX, EngineSpec, Pod, Stated};
