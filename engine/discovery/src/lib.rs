//! Finds engines by file, DNS or Kubernetes, asks each for model and block size, and registers it at an index.

mod facts;
mod follow;
mod kubernetes;
mod pods;
mod registrar;
mod source;
mod spec;

pub use facts::{Facts, FactsError, ask, registration};
pub use follow::{Engines, Observer, Seen, Watch};
pub use pods::{Listed, ServicePort};
pub use registrar::{Registrar, Shard, is_found};
pub use source::{EngineList, EngineSource, distinct};
pub use spec::{ENGINES_MAX, EngineSpec, Pod, Stated};
