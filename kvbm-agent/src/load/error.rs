use kvasir_engine::scrape::UrlError;
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::ConvertError;
use std::time::Duration;

/// Why a load or the configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A value is out of range.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// A time is too short.
    #[error("{field} is {actual:?}, must be at least {min:?}")]
    TooShort {
        /// Name of the field.
        field: &'static str,
        /// Configured time.
        actual: Duration,
        /// Minimum time.
        min: Duration,
    },
    /// The URL of the metrics is not valid.
    #[error("scrape.url {0}")]
    Url(#[from] UrlError),
}

impl LoadError {
    /// Error code to report.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Convert(error) => error.code(),
            Self::TooShort { .. } | Self::Url(_) => ErrorCode::InvalidArgument,
        }
    }
}
