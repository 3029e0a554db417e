use crate::config::ConfigError;
use std::io;
use std::net::SocketAddr;

/// Why the process cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A port cannot be opened.
    #[error("cannot listen on {address}: {error}; choose another address with --{option}")]
    Bind {
        /// Option that names the address.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// The reason.
        error: io::Error,
    },
    /// An option's value is invalid, detected only after validation.
    #[error("{0}")]
    Config(#[source] ConfigError),
    /// The address of the broker is invalid.
    #[error("nats-url: {0}")]
    Broker(#[source] async_nats::ConnectError),
    /// The URL of a sibling is invalid.
    #[error("siblings: {url:?}: {error}")]
    Sibling {
        /// The URL.
        url: String,
        /// The reason.
        error: String,
    },
    /// The SIGHUP handler cannot be installed.
    #[error("SIGHUP: {0}")]
    Signal(#[source] io::Error),
    /// A writer thread cannot be started.
    #[error("writer thread: {0}")]
    Writer(#[source] io::Error),
}
