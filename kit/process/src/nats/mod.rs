//! Connects to NATS: all programs parse a URL, sign on and time out alike. Each program decides what to do when a
//! connection breaks.

mod sign_on;

use crate::config::ConfigError;
use crate::text::ServerUrl;
use async_nats::{Auth, AuthError, ConnectOptions, ServerAddr};
use kvasir_proto::broker::Namespace;
use sign_on::{SignOn, read_file};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// Timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the server's answer to a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of keepalive pings. A missing answer ends the connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Initial reconnect backoff; it doubles with each attempt.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
/// Maximum reconnect backoff.
const RECONNECT_MAX: Duration = Duration::from_secs(2);

/// The servers of one NATS cluster, the credentials, and the prefix of all names in that cluster. `Debug` and `Display`
/// hide the secret.
#[derive(Clone)]
pub struct NatsServers {
    url: ServerUrl,
    addresses: Vec<ServerAddr>,
    access: NatsAccess,
    sign_on: Arc<SignOn>,
}

/// Access settings beside the URL. Secrets are in files, which are read again for each connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NatsAccess {
    /// Credentials file (a JWT, and the seed of the user's key), or a file with the seed of a user's nkey.
    pub credentials: Option<PathBuf>,
    /// PEM file with the authorities that sign servers' certificates. Replaces the system's authorities.
    pub tls_ca: Option<PathBuf>,
    /// PEM file with the client certificate. Requires `tls_key`.
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's key. Requires `tls_cert`.
    pub tls_key: Option<PathBuf>,
    /// Prefix of all names.
    pub namespace: Namespace,
}

impl NatsAccess {
    /// Returns the first option that is set although it requires `nats-url`, or `None` if all are unset.
    #[must_use]
    pub fn first_set(&self) -> Option<&'static str> {
        let set = [
            ("nats-credentials", self.credentials.is_some()),
            ("nats-tls-ca", self.tls_ca.is_some()),
            ("nats-tls-cert", self.tls_cert.is_some()),
            ("nats-tls-key", self.tls_key.is_some()),
            ("nats-namespace", self.namespace != Namespace::default()),
        ];
        set.into_iter().find(|(_, is_set)| *is_set).map(|(name, _)| name)
    }

    fn uses_tls(&self) -> bool {
        self.tls_ca.is_some() || self.tls_cert.is_some()
    }

    /// Checks that the TLS files exist and contain what their options require.
    fn check_tls(&self) -> Result<(), ConfigError> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => {
                return Err(ConfigError::invalid("nats-tls-cert", "needs nats-tls-key beside it"));
            }
            (None, Some(_)) => {
                return Err(ConfigError::invalid("nats-tls-key", "needs nats-tls-cert beside it"));
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        has("nats-tls-ca", self.tls_ca.as_deref(), "CERTIFICATE")?;
        has("nats-tls-cert", self.tls_cert.as_deref(), "CERTIFICATE")?;
        has("nats-tls-key", self.tls_key.as_deref(), "PRIVATE KEY")
    }
}

/// Checks that a PEM file has a section of the given kind, if the option is set.
fn has(option: &str, path: Option<&Path>, kind: &str) -> Result<(), ConfigError> {
    let Some(path) = path else { return Ok(()) };
    let text = read_file(path).map_err(|why| ConfigError::invalid(option, why))?;
    let begins = |line: &str| line.starts_with("-----BEGIN ") && line.contains(kind);
    if text.lines().any(begins) {
        return Ok(());
    }
    let why = format!("{} has no {kind} in PEM form", path.display());
    Err(ConfigError::invalid(option, why))
}

impl NatsServers {
    /// Reads `nats://host:port` or `tls://host:port`, with `user:password@` or `token@` if the servers require it.
    /// Several addresses are separated by commas. Also checks the files of `access`.
    ///
    /// # Errors
    /// If an address is invalid, or a file does not contain what its option requires. The error names the option and
    /// shows no secret.
    pub fn read(url: &ServerUrl, access: NatsAccess) -> Result<Self, ConfigError> {
        let refused = |why: String| ConfigError::invalid("nats-url", why);
        let addresses = addresses(url).map_err(|why| {
            refused(format!("{why}: write nats://host:port, several with commas between"))
        })?;
        access.check_tls()?;
        let by_url = auth(&addresses);
        let has_user = by_url.username.is_some() || by_url.token.is_some();
        let sign_on = access.credentials.clone().map_or(SignOn::Url(by_url), SignOn::File);
        let option = sign_on.option();
        if has_user && !matches!(sign_on, SignOn::Url(_)) {
            let why = "is set beside a user or a token in nats-url: leave one of them out";
            return Err(ConfigError::invalid(option, why));
        }
        let answered = sign_on.answer(b"");
        answered.map_err(|why| ConfigError::invalid(option, why))?;
        Ok(Self { url: url.clone(), addresses, access, sign_on: Arc::new(sign_on) })
    }

    /// Returns options of a connection that signs on only while `may_sign_on` returns true. The client library calls
    /// `may_sign_on` for each attempt. Credentials are read again for each attempt.
    pub fn options(
        &self,
        may_sign_on: impl Fn() -> bool + Send + Sync + 'static,
    ) -> ConnectOptions {
        let by = Arc::clone(&self.sign_on);
        let sign_on = move |nonce: Vec<u8>| {
            let allowed = may_sign_on();
            let by = Arc::clone(&by);
            async move {
                if !allowed {
                    return Err(AuthError::new(
                        "the first connection was lost, and this client does not reconnect",
                    ));
                }
                let option = by.option();
                let read = spawn_blocking(move || by.answer(&nonce)).await;
                let read = read.unwrap_or_else(|_stopped| Err("was not read".to_owned()));
                read.map_err(|why| {
                    tracing::warn!(option, why, "no connection to NATS");
                    AuthError::new(format!("{option}: {why}"))
                })
            }
        };
        let options = ConnectOptions::with_auth_callback(sign_on)
            .connection_timeout(CONNECT_TIMEOUT)
            .request_timeout(Some(REQUEST_TIMEOUT))
            .ping_interval(PING_INTERVAL)
            .require_tls(self.access.uses_tls());
        let options = match &self.access.tls_ca {
            Some(path) => options.add_root_certificates(path.clone()),
            None => options,
        };
        match (&self.access.tls_cert, &self.access.tls_key) {
            (Some(cert), Some(key)) => options.add_client_certificate(cert.clone(), key.clone()),
            (None, _) | (_, None) => options,
        }
    }

    /// Options of a connection that the client library reconnects by itself, starting with the first attempt.
    pub fn reconnecting(&self) -> ConnectOptions {
        let delay = |attempts: usize| {
            let doublings = u32::try_from(attempts).unwrap_or(u32::MAX).min(8);
            RECONNECT_MIN.saturating_mul(1 << doublings).min(RECONNECT_MAX)
        };
        self.options(|| true).retry_on_initial_connect().reconnect_delay_callback(delay)
    }

    /// Addresses of the servers.
    #[must_use]
    pub fn addresses(&self) -> &[ServerAddr] {
        &self.addresses
    }

    /// Prefix of all names at these servers.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        &self.access.namespace
    }

    /// Whether connections use TLS.
    #[must_use]
    pub fn uses_tls(&self) -> bool {
        self.access.uses_tls() || self.addresses.iter().any(ServerAddr::tls_required)
    }

    /// Adds the options to check to the client library's error. Returns an unknown error unchanged.
    #[must_use]
    pub fn explain(&self, error: &str) -> String {
        let lower = error.to_lowercase();
        let options = if lower.contains("authorization violation") {
            self.sign_on.option()
        } else if lower.contains("fatal alert") {
            "nats-tls-cert and nats-tls-key"
        } else if lower.contains("certificate") {
            "nats-tls-ca"
        } else {
            return error.to_owned();
        };
        format!("{error}: look at {options}")
    }
}

/// Parses the URLs of the servers, which are separated by commas.
fn addresses(url: &ServerUrl) -> Result<Vec<ServerAddr>, String> {
    let read = |text: &str| {
        if !["nats://", "tls://"].iter().any(|scheme| text.starts_with(scheme)) {
            return Err("a server must start with nats:// or tls://".to_owned());
        }
        let address: ServerAddr = text.parse().map_err(|error| format!("{error}"))?;
        if address.host().is_empty() { Err("there is no host".to_owned()) } else { Ok(address) }
    };
    url.expose().split(',').map(read).collect()
}

/// Returns the user and password, or the token, in the URLs.
fn auth(addresses: &[ServerAddr]) -> Auth {
    let mut auth = Auth::new();
    for server in addresses {
        let user = server.username().map(str::to_owned);
        match server.password().map(str::to_owned) {
            Some(password) => (auth.username, auth.password) = (user, Some(password)),
            None => auth.token = user.or(auth.token),
        }
    }
    auth
}

impl fmt::Display for NatsServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for NatsServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for NatsServers {
    fn eq(&self, other: &Self) -> bool {
        self.url == other.url && self.access == other.access
    }
}

impl Eq for NatsServers {}

#[cfg(test)]
mod nats_test;
