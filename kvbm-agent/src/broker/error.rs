use kvasir_feed::journal::RangeError;

/// Why a connection is closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokerError {
    #[error("no connection: {0}")]
    Connect(String),
    #[error("the connection is lost")]
    Lost,
    #[error("stream {name:?}: {error}")]
    Stream { name: String, error: String },
    #[error("batch {sequence} is not acknowledged: {error}")]
    NotAcknowledged { sequence: u64, error: String },
    #[error("publish: {0}")]
    Publish(String),
    #[error("subscribe: {0}")]
    Subscribe(String),
    /// The journal lacks batches of the current incarnation, which should be impossible.
    #[error("the journal lacks published batches: {0}")]
    Journal(#[from] RangeError),
}
