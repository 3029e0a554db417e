use serde::Deserialize;
use std::fmt;

/// A role of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read: queries, dumps, lists, loads, routing decisions.
    Query,
    /// Publish events and loads of the identity's own workers, and register these workers.
    Publish,
    /// All of the above for all workers, and calls that change the server: its sockets, checkpoints, thresholds.
    Admin,
}

impl Role {
    /// Name of the role in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Publish => "publish",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
