//! Counts calls that end because a message of the client is longer than it may be. The transport refuses
//! such messages before a handler sees them, and says so in the status of the answer only: no handler ever
//! gives this status itself.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use tonic::{
    Code, Status,
    codegen::http::{HeaderMap, Uri},
};

/// Which call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabels {
    /// Name of the method.
    call: String,
}

/// Calls that ended for a message that was too long.
pub type TooLong = Family<CallLabels, Counter>;

/// A call, of which the status is looked at.
#[derive(Debug, Clone)]
pub struct Call {
    uri: Uri,
    too_long: TooLong,
}

impl Call {
    /// A call of this path.
    #[must_use]
    pub fn new(uri: &Uri, too_long: &TooLong) -> Self {
        Self { uri: uri.clone(), too_long: too_long.clone() }
    }

    /// Looks at the headers or trailers of the answer.
    pub fn look(&self, headers: &HeaderMap) {
        let status = headers.get(Status::GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()));
        if status == Some(Code::OutOfRange) {
            let path = self.uri.path();
            let call = path.rsplit_once('/').map_or(path, |(_, name)| name).to_owned();
            self.too_long.get_or_create(&CallLabels { call }).inc();
        }
    }
}
