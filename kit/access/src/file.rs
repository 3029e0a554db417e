use crate::Role;
use serde::Deserialize;

/// The file of identities, as parsed from TOML.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default, rename = "identity")]
    pub(super) identities: Vec<Entry>,
}

/// One identity in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Entry {
    pub(super) name: String,
    /// SHA-256 of the identity's token, in hexadecimal digits.
    pub(super) token_sha256: Option<String>,
    /// A name in a client certificate: its common name, or one of its alternative names.
    pub(super) certificate: Option<String>,
    pub(super) roles: Vec<Role>,
    /// Tenants that the identity may use. If not set: only the tenant without a name.
    pub(super) tenants: Option<Vec<String>>,
    /// Models that the identity may use. If not set: all.
    pub(super) models: Option<Vec<String>>,
    /// Workers for which the identity publishes. Required for publishers.
    pub(super) workers: Option<Vec<String>>,
    /// Rate limit in queries per second. If not set: no limit.
    pub(super) queries_per_second: Option<u32>,
    /// Burst of the rate limit, in queries. If not set: the queries of one second.
    pub(super) query_burst: Option<u32>,
}
