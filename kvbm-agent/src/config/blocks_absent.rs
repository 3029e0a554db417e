//! Stub of the block manager's options, for builds without the feature `blocks`.

use crate::blocks::BlocksConfig;
use clap::Args;
use kvasir_process::config::ConfigError;
use kvasir_process::options::ProcessConfig;
use kvasir_proto::convert::WorkerAddress;
use serde::Serialize;

/// No options.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize)]
pub struct BlocksOptions {}

impl BlocksOptions {
    /// Returns `None`: this build has no block manager.
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "as the real one")]
    pub(super) const fn check(
        &self,
        _address: &WorkerAddress,
        _block_size: u32,
        _process: (&ProcessConfig, bool),
    ) -> Result<Option<BlocksConfig>, ConfigError> {
        Ok(None)
    }
    /// Returns false: this build has no storage events.
    #[expect(clippy::unused_self, reason = "as the real one")]
    pub(super) const fn needs_nats(&self) -> bool {
        false
    }
}
