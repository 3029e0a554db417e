use std::{path::PathBuf, time::Duration};

/// Where checkpoints are kept and how often they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointConfig {
    /// Folder of the store.
    pub folder: PathBuf,
    /// Time between two checkpoints.
    pub interval: Duration,
}
