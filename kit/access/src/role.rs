use serde::Deserialize;
use std::fmt;

/// What an identity may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Ask: queries, dumps, lists, loads, routing decisions.
    Query,
    /// Publish events and loads of its own workers, and register these.
    Publish,
    /// All of that for all workers, and what changes the server: sockets it opens, checkpoints, thresholds.
    Admin,
}

impl Role {
    /// As the file has it.
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
