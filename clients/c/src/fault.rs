use crate::types::Code;
use kvasir_feed::hub::HubError;
use kvasir_feed::publisher::PublishError;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Argument(String),
    #[error("this is no publisher, or it was freed")]
    Handle,
    #[error("{count} {what}, the limit is {limit}: {fix}")]
    Full { count: usize, what: &'static str, limit: usize, fix: &'static str },
    #[error("the publisher was shut down")]
    ShutDown,
    #[error("{0}")]
    Timeout(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Internal(String),
}

impl Fault {
    pub(crate) fn argument(field: &str, problem: impl fmt::Display) -> Self {
        Self::Argument(format!("{field} {problem}"))
    }

    /// Returns the error code of the fault.
    pub(crate) const fn code(&self) -> Code {
        match self {
            Self::Argument(_) => Code::KVASIR_INVALID_ARGUMENT,
            Self::Handle => Code::KVASIR_BAD_HANDLE,
            Self::Full { .. } => Code::KVASIR_FULL,
            Self::ShutDown => Code::KVASIR_SHUT_DOWN,
            Self::Timeout(_) => Code::KVASIR_TIMEOUT,
            Self::Refused(_) => Code::KVASIR_REFUSED,
            Self::Internal(_) => Code::KVASIR_INTERNAL,
        }
    }
}

impl From<PublishError> for Fault {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::ShutDown => Self::ShutDown,
            PublishError::Hub(error) => error.into(),
            other @ (PublishError::NoNames
            | PublishError::ParentOfKnown
            | PublishError::Tokens { .. }
            | PublishError::Locals { .. }
            | PublishError::TooLong { .. }) => Self::Argument(other.to_string()),
        }
    }
}

impl From<HubError> for Fault {
    fn from(error: HubError) -> Self {
        Self::Argument(error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Stores the text of a fault for this thread.
pub(crate) fn remember(fault: &Fault) {
    let bytes: Vec<u8> = fault.to_string().bytes().filter(|byte| *byte != 0).collect();
    let text = CString::new(bytes).unwrap_or_default();
    // An ending thread does not read the text again.
    let _ending = LAST.try_with(|last| last.replace(text));
}

/// The text of this thread's last fault, valid until the next fault.
pub(crate) fn last() -> *const c_char {
    const NONE: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(NONE.as_ptr())
}
