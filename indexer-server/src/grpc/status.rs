use crate::{ingest::IngestError, query::QueryError, snapshot::CheckpointError};
use kvasir_proto::{code::ErrorCode, convert::ConvertError};
use tonic::Status;

/// An error as a status: its code by the one table, its text as the message.
pub(super) fn status(error: impl Into<Failure>) -> Status {
    let Failure { code, message } = error.into();
    Status::new(code.into(), message)
}

/// The server is stopping.
pub(super) fn stopping() -> Status {
    Status::unavailable("the server is stopping")
}

pub(super) struct Failure {
    code: ErrorCode,
    message: String,
}

macro_rules! failures {
    ($($error:ty),*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self { code: error.code(), message: error.to_string() }
            }
        })*
    };
}

failures!(ConvertError, QueryError, IngestError, CheckpointError);
