//! Sending side of an answer stream: closes a stream whose client does not read.

use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::ConvertError;
use std::fmt;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use tonic::Status;

/// Why a stream ends early: its client is gone, or takes no message.
pub(super) struct CutOff;

/// Whether a stream continues.
pub(super) type Sent = Result<(), CutOff>;

/// Sending side of a stream, used by its task.
pub(super) struct Outlet<T> {
    pub(super) parts: mpsc::Sender<Result<T, Status>>,
    pub(super) stall_timeout: Duration,
    pub(super) _stream: OwnedSemaphorePermit,
}

impl<T> Outlet<T> {
    /// Sends a part to the client. Fails if the client is gone, or does not read within the timeout.
    pub(super) async fn send(&self, part: Result<T, Status>) -> Sent {
        match timeout(self.stall_timeout, self.parts.send(part)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_gone)) => Err(CutOff),
            Err(_late) => {
                tracing::info!("closed the stream of a client that does not read");
                Err(CutOff)
            }
        }
    }
}

/// Creates a status from an error code and text.
pub(crate) fn failed(code: ErrorCode, error: impl fmt::Display) -> Status {
    Status::new(code.into(), error.to_string())
}

pub(super) fn refused(error: ConvertError) -> Status {
    failed(error.code(), error)
}
