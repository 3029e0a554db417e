//! Stub of the block manager, for builds without the feature `blocks`: types without values.

use kvasir_feed::feed::Feed;
use kvasir_feed::hub::{Hub, HubError};
use kvasir_process::net::SocketFile;
use kvasir_process::port::Services;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::types::{NameError, WorkerId};
use std::convert::Infallible;
use std::future::Ready;
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Configuration of a block manager. Cannot exist in this build.
#[derive(Debug, Clone)]
pub enum BlocksConfig {}

impl BlocksConfig {
    /// Never called.
    #[must_use]
    pub const fn slots(&self) -> usize {
        match *self {}
    }

    /// Never called.
    #[must_use]
    pub const fn peer_address(&self) -> Option<&str> {
        match *self {}
    }

    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub const fn pool(&self) -> Result<Option<WorkerId>, NameError> {
        match *self {}
    }
}

/// Error of a block manager. Cannot occur in this build.
pub type BlocksError = Infallible;

/// Block manager. Cannot exist in this build.
#[derive(Debug)]
pub enum Blocks {}

/// Source of a block manager. Cannot exist in this build.
#[derive(Debug)]
pub enum BlockSource {}

impl Blocks {
    /// Never called.
    ///
    /// # Errors
    /// Never.
    #[expect(clippy::needless_pass_by_value, reason = "as the real one")]
    pub fn start(
        config: BlocksConfig,
        _address: WorkerAddress,
    ) -> Ready<Result<(Self, Option<SocketFile>), BlocksError>> {
        match config {}
    }

    /// Never called.
    pub fn add_to(&self, _services: &mut Services) {
        match *self {}
    }

    /// Never called.
    #[must_use]
    pub const fn has_peer_port(&self) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn serve_peers(self: Arc<Self>) -> Ready<()> {
        match *self {}
    }

    /// Never called.
    #[must_use]
    pub const fn stop_calls(&self) -> &CancellationToken {
        match *self {}
    }

    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub const fn open_source(
        &self,
        _hub: &Arc<Hub>,
        _pool: Option<&Arc<Feed>>,
    ) -> Result<BlockSource, HubError> {
        match *self {}
    }

    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub fn publish(
        self: Arc<Self>,
        _source: BlockSource,
        _stop: CancellationToken,
    ) -> Ready<Result<(), Infallible>> {
        match *self {}
    }

    /// Never called.
    pub fn search_volume(self: Arc<Self>, _stop: CancellationToken) -> Ready<()> {
        match *self {}
    }

    /// Never called.
    pub const fn stop(&self, _deadline: Instant) -> Ready<bool> {
        match *self {}
    }
}
