//! Options that all programs share, described and checked once. A program flattens them into its own options.

use crate::access::{Access, Guard};
use crate::config::{ConfigError, Retired};
use crate::http::HttpConfig;
use crate::nats::{NatsAccess, NatsServers};
use crate::telemetry::{LogConfig, LogFormat};
use crate::text::{self, ServerUrl, Span};
use clap::{ArgAction, Args};
use kvasir_access::Rate;
use kvasir_proto::broker::{Delivery, Namespace};
use kvasir_proto::target::{is_tls, read_target};
use kvasir_tls::{ClientFiles, Dialer, Identity, ServerFiles, ServerTls, TlsError};
use serde::Serialize;
use std::env;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Default NATS server.
const NATS_DEFAULT: &str = "nats://127.0.0.1:4222";

/// Age at which a client is asked to reconnect, give or take a tenth. Clients thus look up addresses again, and
/// connections of removed identities and certificates end.
const CONNECTION_AGE: Duration = Duration::from_secs(1_800);

/// Retired options of every program with [`ProcessOptions`].
pub const PROCESS_RETIRED: &[Retired] = &[
    Retired::ignored("tenant-query-burst", "a burst may have as many queries as one second"),
    Retired::ignored("connection-age", "a client is asked to reconnect after 30 minutes"),
];

/// Retired options of every program with [`NatsAccessOptions`].
pub const NATS_RETIRED: &[Retired] = &[Retired::renamed("nats-nkey-seed", "nats-credentials")];

/// TLS of a program's ports, and the clients that may call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Access")]
pub struct EntryOptions {
    /// TLS certificate of this process's ports (PEM), with intermediate certificates. Requires --tls-key. The process
    /// also presents it to servers that request one, and reloads all TLS files when they change. If not set: no TLS
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate in --tls-cert (PEM, without a passphrase). Required with --tls-cert
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Certificate authorities that must have signed clients' certificates (PEM). Clients without a certificate can
    /// read only /livez and /readyz on the side port. Requires --tls-cert. If not set: clients need no certificate
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Revocation lists for client certificates (PEM), one per authority. Clients of an authority without a list are
    /// refused. Requires --tls-client-ca
    #[arg(long, value_name = "FILE")]
    pub tls_client_crl: Option<PathBuf>,
    /// File of identities and their permissions (TOML). It lists who may call, with which role, for which tenants,
    /// models and workers. The process reloads the file when it changes. If not set: everybody may do everything
    #[arg(long, value_name = "FILE")]
    pub identities: Option<PathBuf>,
}

/// Ports, logs and how the process stops. The two addresses have no default of their own: each program names its
/// [`DEFAULTS`](crate::config::Options::DEFAULTS).
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Process")]
pub struct ProcessOptions {
    /// Address of the port that serves clients
    #[arg(long, value_name = "ADDRESS", required = false)]
    pub listen: SocketAddr,
    /// Address of the HTTP side port, which serves /metrics, /livez and /readyz
    #[arg(long, value_name = "ADDRESS", required = false)]
    pub http_listen: SocketAddr,
    /// Admission to the ports.
    #[command(flatten)]
    #[serde(flatten)]
    pub entry: EntryOptions,
    /// Rate limit of each tenant, in queries per second, over all callers. Each prompt, dump and worker selection is
    /// one query; a burst may have as many queries as one second. Identities may have further limits. If not set: no limit
    #[arg(long, value_name = "NUMBER", help_heading = "Access")]
    pub tenant_queries_per_second: Option<u32>,
    /// File with the bearer token that this process sends to servers. If not set: no token
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    pub token_file: Option<PathBuf>,
    /// Certificate authorities trusted for servers at https:// addresses (PEM). Required if this process connects to an
    /// https:// address
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    pub tls_ca: Option<PathBuf>,
    /// DANGEROUS: listens without TLS on addresses that other machines reach. The process logs a warning at each start
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false, help_heading = "Access")]
    pub insecure: bool,
    /// Format of log lines: text or json
    #[arg(long, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    #[serde(serialize_with = "text::serialize")]
    pub log_format: LogFormat,
    /// Log filter: a level, or module=level pairs separated by commas
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log_filter: String,
    /// OTLP endpoint that receives spans (gRPC without TLS), such as http://127.0.0.1:4317. All requests are traced, unless
    /// OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG select a share. If not set: no spans are exported
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Maximum time for a graceful shutdown, after which the process exits
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(10))]
    pub drain_timeout: Span,
}

/// The checked process options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessConfig {
    /// Address of the gRPC port.
    pub listen: SocketAddr,
    /// Admission to the gRPC port.
    pub guard: Guard,
    /// The HTTP side port.
    pub http: HttpConfig,
    /// Connects to servers.
    pub dialer: Dialer,
    /// Logging and export of spans.
    pub log: LogConfig,
    /// Maximum duration of a graceful shutdown.
    pub drain_timeout: Duration,
}

impl EntryOptions {
    /// Opens the files. Checks that ports that other machines reach have TLS, or that `insecure` is set.
    ///
    /// # Errors
    /// If a file is invalid, options contradict each other, or a port is unprotected. The error names the option.
    pub fn guard(
        &self,
        addresses: &[(&'static str, SocketAddr)],
        insecure: bool,
    ) -> Result<Guard, ConfigError> {
        let tls = self.server_tls()?;
        for (option, address) in addresses {
            if tls.is_none() && !insecure && !address.ip().is_loopback() {
                let why = format!(
                    "{address} can be reached from other machines, and there is no TLS: set tls-cert and tls-key, or \
                     insecure to accept that, or listen on 127.0.0.1"
                );
                return Err(ConfigError::invalid(*option, why));
            }
        }
        let access = self.identities.clone().map(Access::of_file).transpose();
        let access = access.map_err(unusable)?.unwrap_or_default();
        Ok(Guard { tls, access, connection_age: Some(CONNECTION_AGE) })
    }

    /// Returns certificate and key, which require each other, or `None` if both are unset.
    fn identity(&self) -> Result<Option<Identity>, ConfigError> {
        let lacks = |field, other| {
            ConfigError::invalid(
                field,
                format!("is required with {other}: set both options, or neither"),
            )
        };
        match (self.tls_cert.clone(), self.tls_key.clone()) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => Ok(Some(Identity { cert, key })),
            (Some(_), None) => Err(lacks("tls-key", "tls-cert")),
            (None, Some(_)) => Err(lacks("tls-cert", "tls-key")),
        }
    }

    /// Opens the TLS files of the server. Returns `None` if `tls-cert` is unset, and fails if other TLS options are set
    /// then.
    fn server_tls(&self) -> Result<Option<ServerTls>, ConfigError> {
        let client_ca = self.tls_client_ca.clone();
        let client_crl = self.tls_client_crl.clone();
        let Some(Identity { cert, key }) = self.identity()? else {
            let given = [("tls-client-ca", &client_ca), ("tls-client-crl", &client_crl)];
            let given = given.into_iter().find(|(_, file)| file.is_some());
            return given.map_or(Ok(None), |(field, _)| {
                Err(ConfigError::invalid(
                    field,
                    "needs tls-cert and tls-key: without them there is no TLS",
                ))
            });
        };
        if client_crl.is_some() && client_ca.is_none() {
            let why = "needs tls-client-ca: without it clients show no certificate";
            return Err(ConfigError::invalid("tls-client-crl", why));
        }
        let opened = ServerTls::open(ServerFiles { cert, key, client_ca, client_crl });
        opened.map(Some).map_err(unusable)
    }
}

impl ProcessOptions {
    /// Checks the options.
    ///
    /// # Errors
    /// If an option is invalid. The error names it.
    pub fn check(&self) -> Result<ProcessConfig, ConfigError> {
        if self.listen == self.http_listen && self.listen.port() != 0 {
            return Err(ConfigError::invalid("http-listen", "must differ from listen"));
        }
        let otlp_endpoint = self.otlp_endpoint.as_deref();
        let otlp_endpoint = otlp_endpoint.map(otlp_target).transpose()?;
        let addresses = [("listen", self.listen), ("http-listen", self.http_listen)];
        let mut guard = self.entry.guard(&addresses, self.insecure)?;
        guard.access = guard.access.with_tenant_rate(self.tenant_rate()?);
        let format = self.log_format;
        let filter = self.log_filter.clone();
        Ok(ProcessConfig {
            listen: self.listen,
            http: HttpConfig { listen: self.http_listen, guard: guard.clone() },
            guard,
            dialer: self.dialer()?,
            log: LogConfig { format, filter, otlp_endpoint },
            drain_timeout: positive("drain-timeout", self.drain_timeout)?,
        })
    }

    fn tenant_rate(&self) -> Result<Option<Rate>, ConfigError> {
        let rate = self.tenant_queries_per_second.map(|per_second| Rate::new(per_second, None));
        rate.transpose()
            .map_err(|error| ConfigError::invalid("tenant-queries-per-second", error.to_string()))
    }

    /// Opens the TLS files and the token for connections to other servers.
    fn dialer(&self) -> Result<Dialer, ConfigError> {
        let mut dialer = Dialer::default();
        if let Some(ca) = self.tls_ca.clone() {
            let files = ClientFiles { ca, identity: self.entry.identity()? };
            dialer = Dialer::open(files).map_err(unusable)?;
        }
        match self.token_file.clone() {
            Some(file) => dialer.with_token(file).map_err(unusable),
            None => Ok(dialer),
        }
    }
}

/// Converts the error of a file that an option names.
#[must_use]
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub fn unusable(error: TlsError) -> ConfigError {
    let TlsError { option, path, problem } = &error;
    ConfigError::invalid(*option, format!("{}: {problem}", path.display()))
}

/// The NATS server through which agents publish and from which indexes read.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "NATS")]
pub struct NatsOptions {
    /// URL of the NATS server, such as nats://127.0.0.1:4222 or nats://USER:PASSWORD@HOST:4222. Separate several
    /// servers of a cluster by commas. If not set, and another option needs NATS: the variable NATS_SERVER, else
    /// nats://127.0.0.1:4222
    #[arg(long, hide_env_values = true, hide_default_value = true, value_name = "URL")]
    pub nats_url: Option<ServerUrl>,
    /// Delivery of events over NATS: core or jetstream. core delivers at most once; jetstream retains events in a
    /// stream. Events use NATS if --nats-delivery or --nats-url is set. If not set: core
    #[arg(long, value_name = "DELIVERY")]
    #[serde(serialize_with = "text::optional::serialize", skip_serializing_if = "Option::is_none")]
    pub nats_delivery: Option<Delivery>,
    /// How to sign on, and what stands before all names.
    #[command(flatten)]
    #[serde(flatten)]
    pub access: NatsAccessOptions,
}

/// Authentication to NATS where the URL has none, TLS to NATS, and the namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "NATS")]
pub struct NatsAccessOptions {
    /// Credentials file for NATS (JWT and seed), or a file with the seed of an nkey. Read at each connection
    #[arg(long, value_name = "FILE")]
    pub nats_credentials: Option<PathBuf>,
    /// Certificate authorities trusted for NATS servers (PEM). Enables TLS to NATS. If not set: the system's
    /// authorities, for tls:// URLs
    #[arg(long, value_name = "FILE")]
    pub nats_tls_ca: Option<PathBuf>,
    /// Client certificate for NATS servers that request one (PEM). Enables TLS to NATS. Requires --nats-tls-key
    #[arg(long, value_name = "FILE")]
    pub nats_tls_cert: Option<PathBuf>,
    /// Private key of the certificate in --nats-tls-cert (PEM). Required with --nats-tls-cert
    #[arg(long, value_name = "FILE")]
    pub nats_tls_key: Option<PathBuf>,
    /// Prefix of all NATS subjects, streams and buckets of this fleet. Several fleets can then share a NATS account.
    /// All programs of a fleet need the same prefix: 1 to 64 ASCII letters, digits, - and _
    #[arg(long, value_name = "NAME")]
    #[serde(serialize_with = "text::optional::serialize", skip_serializing_if = "Option::is_none")]
    pub nats_namespace: Option<Namespace>,
}

impl NatsAccessOptions {
    /// Returns the access settings. Does not read the files.
    #[must_use]
    pub fn access(&self) -> NatsAccess {
        NatsAccess {
            credentials: self.nats_credentials.clone(),
            tls_ca: self.nats_tls_ca.clone(),
            tls_cert: self.nats_tls_cert.clone(),
            tls_key: self.nats_tls_key.clone(),
            namespace: self.nats_namespace.clone().unwrap_or_default(),
        }
    }

    /// Whether one of these options is set, so that the program needs NATS.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.access().first_set().is_some()
    }

    /// The servers of `url`, or the default server.
    ///
    /// # Errors
    /// If the URL has no server, or the content of a file does not suit its option.
    pub fn servers(&self, url: Option<&ServerUrl>) -> Result<NatsServers, ConfigError> {
        let default = || default_nats_url(env::var_os("NATS_SERVER"));
        NatsServers::read(&url.cloned().unwrap_or_else(default), self.access())
    }
}

/// The default server: the variable `NATS_SERVER`, often without a scheme, else the default port on this machine.
fn default_nats_url(variable: Option<OsString>) -> ServerUrl {
    let named = variable.and_then(|url| url.into_string().ok()).filter(|url| !url.is_empty());
    let with_scheme = |url: String| if url.contains("://") { url } else { format!("nats://{url}") };
    ServerUrl::from(named.map_or_else(|| NATS_DEFAULT.to_owned(), with_scheme))
}

impl NatsOptions {
    /// The servers and the delivery. `None` if NATS is unused: all NATS options are unset, and `is_wanted` is false.
    ///
    /// # Errors
    /// If the URL has no server, or the content of a file does not suit its option.
    pub fn check(&self, is_wanted: bool) -> Result<Option<(NatsServers, Delivery)>, ConfigError> {
        let is_set = self.nats_url.is_some() || self.nats_delivery.is_some();
        if !(is_wanted || is_set || self.access.is_set()) {
            return Ok(None);
        }
        let servers = self.access.servers(self.nats_url.as_ref())?;
        Ok(Some((servers, self.nats_delivery.unwrap_or(Delivery::Core))))
    }
}

/// Checks that a duration is above 0.
///
/// # Errors
/// If the duration is 0.
pub fn positive(field: &str, Span(time): Span) -> Result<Duration, ConfigError> {
    if time.is_zero() {
        return Err(ConfigError::invalid(field, "is 0s, must be longer"));
    }
    Ok(time)
}

/// Checks a number of permits for a semaphore.
///
/// # Errors
/// If the number is 0, or above a semaphore's maximum.
pub fn count(field: &str, value: usize) -> Result<usize, ConfigError> {
    let max = Semaphore::MAX_PERMITS;
    if !(1..=max).contains(&value) {
        return Err(ConfigError::invalid(field, format!("is {value}, must be 1 to {max}")));
    }
    Ok(value)
}

/// Checks the address of a gRPC port that this process connects to.
///
/// # Errors
/// If the address is invalid, or is `https://` without trusted authorities.
pub fn dialled(field: &str, text: &str, dialer: &Dialer) -> Result<String, ConfigError> {
    dialer.check(text).map_err(|error| ConfigError::invalid(field, error.to_string()))
}

/// Reads the OTLP endpoint. The exporter of spans has no TLS.
fn otlp_target(text: &str) -> Result<String, ConfigError> {
    const FIELD: &str = "otlp-endpoint";
    let url = target(FIELD, text)?;
    if is_tls(&url) {
        let why = format!("{url:?}: spans are exported without TLS only, write http://");
        return Err(ConfigError::invalid(FIELD, why));
    }
    Ok(url)
}

/// Checks the address of a gRPC port of another process.
///
/// # Errors
/// If the address is invalid.
pub fn target(field: &str, text: &str) -> Result<String, ConfigError> {
    read_target(text).map_err(|error| ConfigError::invalid(field, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_of_document_004_names_the_nats_server() {
        let url = |variable: Option<&str>| {
            let url = default_nats_url(variable.map(OsString::from));
            NatsServers::read(&url, NatsAccess::default()).map(|servers| servers.to_string())
        };
        for (variable, expected) in [
            (None, "nats://127.0.0.1:4222"),
            (Some(""), "nats://127.0.0.1:4222"),
            (Some("broker:4333"), "nats://broker:4333"),
            (Some("nats://a:1,tls://b:2"), "nats://a:1,tls://b:2"),
        ] {
            assert_eq!(url(variable).as_deref().ok(), Some(expected), "{variable:?}");
        }
    }

    #[test]
    fn nats_is_there_once_an_option_needs_it() {
        let none = NatsOptions {
            nats_url: None,
            nats_delivery: None,
            access: NatsAccessOptions::default(),
        };
        let checked = |options: &NatsOptions, is_wanted| options.check(is_wanted).expect("options");
        assert!(checked(&none, false).is_none());
        assert!(checked(&none, true).is_some());
        let delivery = NatsOptions { nats_delivery: Some(Delivery::Jetstream), ..none.clone() };
        assert!(matches!(checked(&delivery, false), Some((_, Delivery::Jetstream))));
        let namespace = Some("fleet".parse().expect("a name"));
        let access = NatsAccessOptions { nats_namespace: namespace, ..none.access.clone() };
        let named = NatsOptions { access, ..none };
        assert!(matches!(checked(&named, false), Some((_, Delivery::Core))));
    }
}
