use std::fmt;

/// Kind of a holder of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HolderKind {
    /// A process that serves requests.
    #[default]
    Worker,
    /// A store that several workers can read. It serves no requests.
    Pool,
}

impl fmt::Display for HolderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Worker => "worker",
            Self::Pool => "pool",
        })
    }
}
