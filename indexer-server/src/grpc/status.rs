use crate::ingest::IngestError;
use crate::query::QueryError;
use crate::snapshot::CheckpointError;
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::{self, ConvertError};
use kvasir_proto::shard::WrongShard;
use tonic::Status;

/// Converts an error to a gRPC status: the code from the common table, the text as the message.
pub(super) fn status(error: impl Into<Failure>) -> Status {
    let Failure { code, message, wrong_shard } = error.into();
    let mut status = Status::new(code.into(), message);
    if let Some(wrong) = wrong_shard {
        convert::write_owner(&wrong, status.metadata_mut());
    }
    status
}

/// The server is stopping.
pub(super) fn stopping() -> Status {
    Status::unavailable("the server is stopping")
}

pub(super) struct Failure {
    code: ErrorCode,
    message: String,
    wrong_shard: Option<WrongShard>,
}

macro_rules! failures {
    ($($error:ty),*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self { code: error.code(), message: error.to_string(), wrong_shard: None }
            }
        })*
    };
}

failures!(ConvertError, QueryError, CheckpointError);

impl From<IngestError> for Failure {
    fn from(error: IngestError) -> Self {
        let code = error.code();
        let message = error.to_string();
        let mut wrong_shard = None;
        if let IngestError::WrongShard(wrong) = error {
            wrong_shard = Some(wrong);
        }
        Self { code, message, wrong_shard }
    }
}
