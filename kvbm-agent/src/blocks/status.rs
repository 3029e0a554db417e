//! Converts refusals to gRPC statuses. Each text names the field or the limit.

use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::ConvertError;
use kvasir_tiers::manager::{AllocateError, PinError, ReadError, SessionError};
use std::fmt;
use tonic::Status;

pub(super) fn failed(code: ErrorCode, error: impl fmt::Display) -> Status {
    Status::new(code.into(), error.to_string())
}

pub(super) fn refused(error: ConvertError) -> Status {
    failed(error.code(), error)
}

pub(super) fn no_session() -> Status {
    failed(ErrorCode::NotFound, "session_id names no open session: open another one")
}

pub(super) fn stopping() -> Status {
    failed(ErrorCode::Unavailable, "the agent is stopping")
}

pub(super) fn of_session(error: SessionError) -> Status {
    let code = match error {
        SessionError::Ended => ErrorCode::NotFound,
        SessionError::Stopping => ErrorCode::Unavailable,
        SessionError::TooMany { .. } => ErrorCode::ResourceExhausted,
    };
    failed(code, error)
}

/// Converts the error of an allocation.
pub(super) fn of_allocate(error: AllocateError) -> Status {
    match error {
        AllocateError::Session(error) => of_session(error),
        AllocateError::Nothing => failed(ErrorCode::InvalidArgument, error),
        AllocateError::Lease { lease, max } => {
            let given = lease.as_millis();
            let max = max.as_millis();
            let text = format_args!("lease_ms is {given}, must be 1 to {max}");
            failed(ErrorCode::InvalidArgument, text)
        }
        AllocateError::Limit { .. } | AllocateError::Exhausted(_) => {
            failed(ErrorCode::ResourceExhausted, error)
        }
    }
}

/// Converts the error of reading or writing the slot that `field` names.
pub(super) fn of_read(field: &str, error: &ReadError) -> Status {
    let code = match error {
        ReadError::Session(error) => return of_session(*error),
        ReadError::NotHeld { .. } => ErrorCode::FailedPrecondition,
        ReadError::Access(_) => ErrorCode::InvalidArgument,
        ReadError::Corrupt { .. } | ReadError::Unreadable { .. } => ErrorCode::Internal,
    };
    failed(code, format_args!("{field}: {error}"))
}

/// Status for a time to live that is too long; `None` for refusals that concern one block only.
pub(super) fn of_ttl(error: &PinError) -> Option<Status> {
    let PinError::Ttl { ttl, max } = error else { return None };
    let given = ttl.as_millis();
    let max = max.as_millis();
    let text = format_args!("ttl_ms is {given}, must be 1 to {max}");
    Some(failed(ErrorCode::InvalidArgument, text))
}
