//! Counts calls that end because a client's message is too long. The transport rejects such messages before a handler
//! sees them, and reports this only in the status of the answer. Handlers never return this status themselves.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tonic::codegen::http::{HeaderMap, Uri};
use tonic::{Code, Status};

/// Labels of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabels {
    /// Name of the method.
    call: String,
}

/// Number of calls that ended because of a too long message.
pub type TooLong = Family<CallLabels, Counter>;

/// A call whose status is checked.
#[derive(Debug, Clone)]
pub struct Call {
    uri: Uri,
    too_long: TooLong,
}

impl Call {
    /// Creates the call of a path.
    #[must_use]
    pub fn new(uri: &Uri, too_long: &TooLong) -> Self {
        Self { uri: uri.clone(), too_long: too_long.clone() }
    }

    /// Checks the headers or trailers of the answer.
    pub fn look(&self, headers: &HeaderMap) {
        let status = headers.get(Status::GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()));
        if status == Some(Code::OutOfRange) {
            let path = self.uri.path();
            let call = path.rsplit_once('/').map_or(path, |(_, name)| name).to_owned();
            self.too_long.get_or_create(&CallLabels { call }).inc();
        }
    }
}
