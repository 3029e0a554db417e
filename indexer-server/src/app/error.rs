use crate::config::ConfigError;
use std::{io, net::SocketAddr};

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
        /// Why.
        error: io::Error,
    },
    /// An option's value cannot be used, which shows only now.
    #[error("{0}")]
    Config(#[source] ConfigError),
    /// The address of the broker cannot be used.
    #[error("nats-url: {0}")]
    Broker(#[source] async_nats::ConnectError),
    /// The address of a sibling cannot be used.
    #[error("siblings: {url:?}: {error}")]
    Sibling {
        /// The address.
        url: String,
        /// Why.
        error: String,
    },
    /// SIGHUP cannot be listened to.
    #[error("SIGHUP: {0}")]
    Signal(#[source] io::Error),
    /// A writer thread cannot be started.
    #[error("writer thread: {0}")]
    Writer(#[source] io::Error),
}
