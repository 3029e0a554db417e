use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::ConvertError;
use std::time::Duration;

/// Why metrics cannot be read from a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It is none.
    #[error("{url:?} is not a URL: {reason}")]
    Malformed {
        /// As configured.
        url: String,
        /// Why.
        reason: String,
    },
    /// It is another kind of URL.
    #[error(
        "{0:?} must be host:port or http://host:port, with a path unless that is /metrics, and nothing more"
    )]
    Unsupported(String),
}

/// Why a load is refused, or the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It is out of range.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// A time is too short.
    #[error("{field} is {actual:?}, must be at least {min:?}")]
    TooShort {
        /// Which.
        field: &'static str,
        /// As configured.
        actual: Duration,
        /// The least that is taken.
        min: Duration,
    },
    /// Metrics cannot be read there.
    #[error("scrape.url {0}")]
    Url(#[from] UrlError),
}

impl LoadError {
    /// Code to report it with.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Convert(error) => error.code(),
            Self::TooShort { .. } | Self::Url(_) => ErrorCode::InvalidArgument,
        }
    }
}
