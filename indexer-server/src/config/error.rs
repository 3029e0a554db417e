use std::path::PathBuf;

/// Why the configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A flag or a variable of the environment cannot be read.
    #[error("{0}")]
    Arguments(#[from] clap::Error),
    /// The file cannot be had.
    #[error("config file {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file cannot be understood.
    #[error("config file {}: {error}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and why.
        error: Box<toml::de::Error>,
    },
    /// An option's value cannot be used.
    #[error("{field}: {problem}")]
    Invalid {
        /// The option.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl ConfigError {
    pub(super) fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }
}
