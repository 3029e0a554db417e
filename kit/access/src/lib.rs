//! Who may do what on a shared network: identities as a file describes them, the roles of each, and the tenants, models and workers
//! that it may name; and how much may be asked. Pure: no I/O and no clock. Ports read the file, find the identity of each call and ask here.

mod denied;
mod file;
mod identities;
mod names;
mod principal;
mod rate;
mod role;

pub use denied::Denied;
pub use identities::{IDENTITIES_MAX, Identities, IdentitiesError, TOKEN_BYTES_MAX, token_sha256};
pub use names::{NAMES_MAX, Names};
pub use principal::Principal;
pub use rate::{NAMES_TRACKED_MAX, QUERIES_PER_SECOND_MAX, Rate, RateError, Used};
pub use role::Role;
