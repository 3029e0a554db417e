use crate::Role;
use serde::Deserialize;

/// The file of identities, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default, rename = "identity")]
    pub(super) identities: Vec<Entry>,
}

/// One identity.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Entry {
    pub(super) name: String,
    /// In hexadecimal digits.
    pub(super) token_sha256: Option<String>,
    /// A name in a client certificate: its common name, or one of its alternative names.
    pub(super) certificate: Option<String>,
    pub(super) roles: Vec<Role>,
    /// The tenant without a name if not set.
    pub(super) tenants: Option<Vec<String>>,
    /// All if not set.
    pub(super) models: Option<Vec<String>>,
    /// Those that it speaks for: a publisher must say which.
    pub(super) workers: Option<Vec<String>>,
    /// Any number if not set.
    pub(super) queries_per_second: Option<u32>,
    /// So many at once after a pause; a second's worth if not set.
    pub(super) query_burst: Option<u32>,
}
