//! Authorisation on a shared network: identities from a file, their roles, the tenants, models and workers that each
//! may use, and their rate limits. Pure: no I/O and no clock. Ports read the file, authenticate each call, and check
//! permissions here.

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
