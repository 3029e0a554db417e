//! Options that every program has, described and checked once. A program flattens them into its own.

use crate::{
    access::{Access, Guard},
    config::ConfigError,
    http::HttpConfig,
    nats::{NatsAccess, NatsServers},
    telemetry::{LogConfig, LogFormat},
    text::{self, ServerUrl, Span, SpanOrOff},
};
use clap::{ArgAction, Args};
use kvasir_access::{Rate, RateError};
use kvasir_proto::{
    broker::{Delivery, Namespace},
    target::{is_tls, read_target},
};
use kvasir_tls::{ClientFiles, Dialer, Identity, ServerFiles, ServerTls, TlsError};
use serde::Serialize;
use std::{env, ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};
use tokio::sync::Semaphore;

/// The NATS server where nothing names one.
const NATS_DEFAULT: &str = "nats://127.0.0.1:4222";

/// TLS of a program's ports, and who may call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct EntryOptions {
    /// TLS certificate (PEM) of this process's ports, with those between it and its authority. The process also shows
    /// it to servers that demand one. Read again when it changes, as all TLS files are
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Key of tls-cert (PEM, without a passphrase)
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Authorities (PEM) whose certificates clients need; none needed if not set. Without one, the side
    /// port shows a client /livez and /readyz only
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Lists of revoked client certificates (PEM), one of each authority: if set, clients of an
    /// authority without a list are refused
    #[arg(long, value_name = "FILE")]
    pub tls_client_crl: Option<PathBuf>,
    /// File of identities (TOML): who may call, with which role, for which tenants, models and workers. Everybody may do
    /// everything if not set. Read again when it changes
    #[arg(long, value_name = "FILE")]
    pub identities: Option<PathBuf>,
}

/// Ports, logs and how the process stops. The two addresses have no default of their own: each program names its
/// [`DEFAULTS`](crate::config::Options::DEFAULTS).
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProcessOptions {
    /// Address of the port for clients
    #[arg(long, value_name = "ADDRESS", required = false)]
    pub listen: SocketAddr,
    /// Address of the HTTP side port: /metrics, /livez, /readyz
    #[arg(long, value_name = "ADDRESS", required = false)]
    pub http_listen: SocketAddr,
    /// Who gets into the ports.
    #[command(flatten)]
    #[serde(flatten)]
    pub entry: EntryOptions,
    /// Most queries per second of each tenant, over all its callers; any number if not set. Each prompt, dump and
    /// selection of a worker is one. Identities may have a rate of their own
    #[arg(long, value_name = "NUMBER")]
    pub tenant_queries_per_second: Option<u32>,
    /// Most queries of a tenant at once, after a pause; a second's worth if not set
    #[arg(long, value_name = "NUMBER")]
    pub tenant_query_burst: Option<u32>,
    /// File with the token that this process shows to the servers it connects to
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Authorities (PEM) of the servers that this process connects to by https:// addresses
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// DANGEROUS: listens without TLS on addresses that other machines reach, with a warning at each
    /// start
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false)]
    pub insecure: bool,
    /// Age at which the client of a connection is told to open another one, up to a tenth more or less, or off. Streams
    /// then end between two messages, and what is still under way after 120s is cut off. So clients look addresses
    /// up again, and the connections of a removed identity or certificate end
    #[arg(long, value_name = "TIME", default_value_t = SpanOrOff(Some(Span::seconds(1_800))))]
    pub connection_age: SpanOrOff,
    /// Format of the log lines: text or json
    #[arg(long, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    #[serde(serialize_with = "text::serialize")]
    pub log_format: LogFormat,
    /// What to log: a level, or module=level pairs separated by commas
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log_filter: String,
    /// Export spans to this OTLP endpoint (gRPC), such as http://127.0.0.1:4317
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Stop after this time at the latest
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(10))]
    pub drain_timeout: Span,
}

/// The same, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessConfig {
    /// Address of the gRPC port.
    pub listen: SocketAddr,
    /// Who gets into the gRPC port.
    pub guard: Guard,
    /// The HTTP side port.
    pub http: HttpConfig,
    /// What connects to servers.
    pub dialer: Dialer,
    /// What is logged, how, and where spans go.
    pub log: LogConfig,
    /// Longest time that stopping takes.
    pub drain_timeout: Duration,
}

impl EntryOptions {
    /// Opens the files, and checks that what other machines reach has TLS, or that `insecure` accepts it.
    ///
    /// # Errors
    /// If a file cannot be used, options contradict each other, or an address is open; the error names the option.
    pub fn guard(
        &self,
        addresses: &[(&'static str, SocketAddr)],
        insecure: bool,
        connection_age: SpanOrOff,
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
        Ok(Guard { tls, access, connection_age: self::connection_age(connection_age)? })
    }

    /// Certificate and key, which go together.
    fn identity(&self) -> Result<Option<Identity>, ConfigError> {
        let lacks = |field, other| {
            ConfigError::invalid(field, format!("is required with {other}: set both, or none"))
        };
        match (self.tls_cert.clone(), self.tls_key.clone()) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => Ok(Some(Identity { cert, key })),
            (Some(_), None) => Err(lacks("tls-key", "tls-cert")),
            (None, Some(_)) => Err(lacks("tls-cert", "tls-key")),
        }
    }

    fn server_tls(&self) -> Result<Option<ServerTls>, ConfigError> {
        let (client_ca, client_crl) = (self.tls_client_ca.clone(), self.tls_client_crl.clone());
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
    /// If one of them cannot be used; the error names it.
    pub fn check(&self) -> Result<ProcessConfig, ConfigError> {
        if self.listen == self.http_listen && self.listen.port() != 0 {
            return Err(ConfigError::invalid("http-listen", "must differ from listen"));
        }
        let otlp_endpoint = self.otlp_endpoint.as_deref();
        let otlp_endpoint = otlp_endpoint.map(otlp_target).transpose()?;
        let addresses = [("listen", self.listen), ("http-listen", self.http_listen)];
        let mut guard = self.entry.guard(&addresses, self.insecure, self.connection_age)?;
        guard.access = guard.access.with_tenant_rate(self.tenant_rate()?);
        let (format, filter) = (self.log_format, self.log_filter.clone());
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
        let (per_second, burst) = (self.tenant_queries_per_second, self.tenant_query_burst);
        let Some(per_second) = per_second else {
            let needs = "needs tenant-queries-per-second beside it";
            let refused = |_| Err(ConfigError::invalid("tenant-query-burst", needs));
            return burst.map_or(Ok(None), refused);
        };
        let rate = Rate::new(per_second, burst);
        rate.map(Some).map_err(|error| {
            let field = match error {
                RateError::PerSecond(_) => "tenant-queries-per-second",
                RateError::Burst => "tenant-query-burst",
            };
            ConfigError::invalid(field, error.to_string())
        })
    }

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

/// With less, clients would do little else but connect.
const CONNECTION_AGE_MIN: Duration = Duration::from_secs(1);

fn connection_age(SpanOrOff(age): SpanOrOff) -> Result<Option<Duration>, ConfigError> {
    match age {
        Some(age) if age.0 < CONNECTION_AGE_MIN => {
            let why = format!("is {age}, must be 1s or longer, or off");
            Err(ConfigError::invalid("connection-age", why))
        }
        age => Ok(age.map(|Span(age)| age)),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unusable(error: TlsError) -> ConfigError {
    let TlsError { option, path, problem } = &error;
    ConfigError::invalid(*option, format!("{}: {problem}", path.display()))
}

/// The NATS server that agents publish through and indexes read from.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NatsOptions {
    /// NATS server between agents and indexes, such as nats://127.0.0.1:4222 or
    /// nats://USER:PASSWORD@HOST:4222; several servers of a cluster separated by commas. If not set, and another
    /// option needs NATS: the server in the variable NATS_SERVER, else nats://127.0.0.1:4222
    #[arg(long, hide_env_values = true, hide_default_value = true, value_name = "URL")]
    pub nats_url: Option<ServerUrl>,
    /// How events travel over NATS: core (at most once), or jetstream (from a stream that retains them). Events travel
    /// over NATS if this or nats-url is set; core if only nats-url is
    #[arg(long, value_name = "DELIVERY")]
    #[serde(serialize_with = "text::optional::serialize", skip_serializing_if = "Option::is_none")]
    pub nats_delivery: Option<Delivery>,
    /// How to sign on, and what stands before all names.
    #[command(flatten)]
    #[serde(flatten)]
    pub access: NatsAccessOptions,
}

/// How a program signs on to NATS if the URL does not say it, and what stands before all names there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NatsAccessOptions {
    /// Sign on to NATS with this credentials file (JWT and seed). It is read for each connection
    #[arg(long, value_name = "FILE")]
    pub nats_credentials: Option<PathBuf>,
    /// Sign on to NATS with the seed of a user's nkey in this file. It is read for each connection
    #[arg(long, value_name = "FILE")]
    pub nats_nkey_seed: Option<PathBuf>,
    /// Use TLS to NATS, and accept servers whose certificates an authority in this PEM file has signed. With
    /// tls:// in the URL and without this option, the system's authorities count
    #[arg(long, value_name = "FILE")]
    pub nats_tls_ca: Option<PathBuf>,
    /// Use TLS to NATS, and show this certificate (PEM) to servers that ask for one
    #[arg(long, value_name = "FILE")]
    pub nats_tls_cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub nats_tls_key: Option<PathBuf>,
    /// Put this name before all subjects, the stream and the buckets, so that several fleets share an account of NATS.
    /// All programs of a fleet have the same: 1 to 64 ASCII letters, digits, - and _
    #[arg(long, value_name = "NAME")]
    #[serde(serialize_with = "text::optional::serialize", skip_serializing_if = "Option::is_none")]
    pub nats_namespace: Option<Namespace>,
}

impl NatsAccessOptions {
    /// The same; the files are not read yet.
    #[must_use]
    pub fn access(&self) -> NatsAccess {
        NatsAccess {
            credentials: self.nats_credentials.clone(),
            nkey_seed: self.nats_nkey_seed.clone(),
            tls_ca: self.nats_tls_ca.clone(),
            tls_cert: self.nats_tls_cert.clone(),
            tls_key: self.nats_tls_key.clone(),
            namespace: self.nats_namespace.clone().unwrap_or_default(),
        }
    }

    /// Whether one of these is set, so that the program needs NATS.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.access().first_set().is_some()
    }

    /// The servers of `url`, or else the default one.
    ///
    /// # Errors
    /// If the URL names no server, or a file is not what its option wants.
    pub fn servers(&self, url: Option<&ServerUrl>) -> Result<NatsServers, ConfigError> {
        let default = || default_nats_url(env::var_os("NATS_SERVER"));
        NatsServers::read(&url.cloned().unwrap_or_else(default), self.access())
    }
}

/// The server where no option names one: that of the variable `NATS_SERVER`, often without a scheme, or else the default
/// port on this machine.
fn default_nats_url(variable: Option<OsString>) -> ServerUrl {
    let named = variable.and_then(|url| url.into_string().ok()).filter(|url| !url.is_empty());
    let with_scheme = |url: String| if url.contains("://") { url } else { format!("nats://{url}") };
    ServerUrl::from(named.map_or_else(|| NATS_DEFAULT.to_owned(), with_scheme))
}

impl NatsOptions {
    /// The servers and how events travel. `None` if nothing needs NATS: no option of it is set, and not `is_wanted`.
    ///
    /// # Errors
    /// If the URL names no server, or a file is not what its option wants.
    pub fn check(&self, is_wanted: bool) -> Result<Option<(NatsServers, Delivery)>, ConfigError> {
        let is_set = self.nats_url.is_some() || self.nats_delivery.is_some();
        if !(is_wanted || is_set || self.access.is_set()) {
            return Ok(None);
        }
        let servers = self.access.servers(self.nats_url.as_ref())?;
        Ok(Some((servers, self.nats_delivery.unwrap_or(Delivery::Core))))
    }
}

/// A time longer than nothing.
///
/// # Errors
/// If it is 0.
pub fn positive(field: &str, Span(time): Span) -> Result<Duration, ConfigError> {
    if time.is_zero() {
        return Err(ConfigError::invalid(field, "is 0s, must be longer"));
    }
    Ok(time)
}

/// A number of permits of a semaphore.
///
/// # Errors
/// If it is 0, or more than a semaphore has.
pub fn count(field: &str, value: usize) -> Result<usize, ConfigError> {
    let max = Semaphore::MAX_PERMITS;
    if !(1..=max).contains(&value) {
        return Err(ConfigError::invalid(field, format!("is {value}, must be 1 to {max}")));
    }
    Ok(value)
}

/// The address of a gRPC port that this process connects to.
///
/// # Errors
/// If it is none, or is `https://` and there are no authorities to trust.
pub fn dialled(field: &str, text: &str, dialer: &Dialer) -> Result<String, ConfigError> {
    dialer.check(text).map_err(|error| ConfigError::invalid(field, error.to_string()))
}

/// The exporter of spans has no TLS.
fn otlp_target(text: &str) -> Result<String, ConfigError> {
    const FIELD: &str = "otlp-endpoint";
    let url = target(FIELD, text)?;
    if is_tls(&url) {
        let why = format!("{url:?}: spans are exported without TLS only, write http://");
        return Err(ConfigError::invalid(FIELD, why));
    }
    Ok(url)
}

/// The address of a gRPC port of others.
///
/// # Errors
/// If it is none.
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
