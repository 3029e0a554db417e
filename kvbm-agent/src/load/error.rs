use kvasir_engine::scrape::UrlError;
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::ConvertError;
use std::time::Duration;

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
