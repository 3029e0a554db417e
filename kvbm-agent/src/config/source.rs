use kvasir_process::text::read_table;
use kvasir_proto::types::DpRank;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// One engine socket to relay, as configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SourceSpec {
    /// Endpoint where the engine publishes: `tcp://host:port`.
    pub endpoint: String,
    /// Endpoint of the engine's replay socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// Topic to read, or its beginning up to the end of a name; by default all topics.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub topic: String,
    /// Whether to listen on `endpoint` instead of connecting to it.
    #[serde(default)]
    pub bind: bool,
    /// Rank of batches that do not name one.
    #[serde(default)]
    pub dp_rank: DpRank,
}

impl FromStr for SourceSpec {
    type Err = String;

    /// Reads `key=value,key=value`. The keys are those of the file's `[[source]]`.
    fn from_str(text: &str) -> Result<Self, String> {
        read_table(text, &["dp-rank"], &["bind"], &[])
    }
}
