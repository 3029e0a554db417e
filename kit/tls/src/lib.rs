//! TLS for all programs and for the client library: rustls with ring, certificates in PEM files.
//!
//! - [`Dialer`]: connects clients, plain to `http://` targets and over TLS to `https://` targets.
//! - [`Token`]: a bearer token in a file, which clients send.
//! - `ServerTls` (feature `server`): the certificate of a port, and the certificates that it requires.
//! - `CertificateNames` (feature `server`): the names in a client's certificate.
//!
//! Both sides reload their files when these change, without a restart. While a new file is invalid, the previous
//! content stays in force, and the log shows the reason.

mod addresses;
mod again;
mod alpn;
mod channel;
mod dial;
mod error;
#[cfg(feature = "server")]
mod names;
mod pem;
mod reload;
#[cfg(feature = "server")]
mod server;
mod token;

pub use alpn::BLOCKS_ALPN;
pub use channel::{Channel, LocalServer};
pub use dial::{ClientFiles, DialError, Dialer, IN_PROCESS, Identity, Stream};
pub use error::{Problem, TlsError};
#[cfg(feature = "server")]
pub use names::CertificateNames;
pub use pem::{Contents, Source};
pub use reload::{CHECK_INTERVAL, Reloaded};
#[cfg(feature = "server")]
pub use server::{Protocol, ServerFiles, ServerTls};
pub use token::Token;
