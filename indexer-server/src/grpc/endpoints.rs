//! Allowlist of endpoints in registrations: the server connects to them, so a caller must not choose any host (SSRF).

use ipnet::IpNet;
use kvasir_engine::zmtp::Endpoint;
use kvasir_proto::convert::Registration;
use kvasir_proto::types::ADDRESS_LABEL;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use tonic::codegen::http::Uri;

/// Maximum number of entries in the operator's list.
pub const ENDPOINT_PLACES_MAX: usize = 256;

/// Allowed locations of endpoints that callers register. The operator's own configuration may use any endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointRules {
    /// Locations that the operator allows.
    pub places: Vec<Place>,
    /// Whether only local processes reach the server. Then its loopback and link-local addresses need no protection.
    pub is_local: bool,
    /// Whether callers authenticate.
    pub has_identities: bool,
}

/// An allowed location: a network, a host, or all hosts below a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Addresses of a network, such as 10.0.0.0/8.
    Network(IpNet),
    /// A host by name.
    Host(String),
    /// Hosts whose names end with this suffix, written with a `*` before it.
    Domain(String),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(network) = text.parse() {
            return Ok(Self::Network(network));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Network(address.into()));
        }
        let (name, is_domain) = match text.strip_prefix('*') {
            Some(name) => (name, name.starts_with('.')),
            None => (text, false),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let digits_only = name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if digits_only || !name.bytes().all(is_name) || (text.starts_with('*') && !is_domain) {
            let form = "must be a network such as 10.0.0.0/8, a host name, or *.DOMAIN";
            return Err(format!("{text:?} {form}"));
        }
        let name = name.to_ascii_lowercase();
        Ok(if is_domain { Self::Domain(name) } else { Self::Host(name) })
    }
}

impl Place {
    /// Whether a host belongs to this place: an address to a network, or a name to a domain.
    fn has(&self, host: &Host<'_>) -> bool {
        match (self, host) {
            (Self::Network(network), Host::Address(address)) => network.contains(address),
            (Self::Host(own), Host::Name(name)) => own.eq_ignore_ascii_case(name),
            (Self::Domain(end), Host::Name(name)) => name.to_ascii_lowercase().ends_with(end),
            (Self::Network(_), Host::Name(_))
            | (Self::Host(_) | Self::Domain(_), Host::Address(_)) => false,
        }
    }
}

/// The host of an endpoint.
enum Host<'a> {
    Address(IpAddr),
    Name(&'a str),
}

impl<'a> Host<'a> {
    fn parse(host: &'a str) -> Self {
        let plain = host.trim_start_matches('[').trim_end_matches(']');
        plain
            .parse()
            .map_or(Self::Name(host), |address: IpAddr| Self::Address(address.to_canonical()))
    }

    /// Whether the host is this machine or on its local link. Names that resolvers read as addresses count, too.
    fn is_near(&self) -> bool {
        match self {
            Self::Address(IpAddr::V4(at)) => {
                at.is_loopback() || at.is_link_local() || at.is_unspecified()
            }
            Self::Address(IpAddr::V6(at)) => {
                at.is_loopback() || at.is_unicast_link_local() || at.is_unspecified()
            }
            Self::Name(name) => {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                // Resolvers read numbers as addresses, for example 127.1 and 0x7f000001.
                let last = name.rsplit('.').next().unwrap_or_default();
                let is_number = last.starts_with("0x")
                    || (!last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()));
                is_number
                    || name.contains('%')
                    || name == "localhost"
                    || name.ends_with(".localhost")
            }
        }
    }
}

/// An endpoint in a registration that the caller may not use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointRefused {
    field: &'static str,
    endpoint: String,
    why: &'static str,
}

impl fmt::Display for EndpointRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.field, self.endpoint, self.why)
    }
}

const BIND: &str = "only an admin identity may have the server listen on a socket; or configure the worker with --worker";
const NEAR: &str =
    "a loopback or link-local address needs an entry in the server's --endpoint-places";
const FAR: &str = "needs the role admin, unless it is the caller's own address or in the server's --endpoint-places";

impl EndpointRules {
    /// Checks the endpoints of a registration that `caller` sends.
    ///
    /// # Errors
    /// Returns the first endpoint that the caller may not use.
    pub fn check(
        &self,
        registration: &Registration,
        caller: Option<IpAddr>,
        is_admin: bool,
    ) -> Result<(), EndpointRefused> {
        for spec in &registration.endpoints {
            let refused =
                |field, why| EndpointRefused { field, endpoint: spec.endpoint.clone(), why };
            if spec.bind && !(is_admin && (self.has_identities || self.is_local)) {
                return Err(refused("endpoints.bind", BIND));
            }
            for (field, endpoint) in [
                ("endpoints.endpoint", Some(&spec.endpoint).filter(|_| !spec.bind)),
                ("endpoints.replay_endpoint", spec.replay.as_ref()),
            ] {
                // Registration itself refuses text that is not an endpoint.
                let Some(Ok(endpoint)) = endpoint.map(|text| text.parse::<Endpoint>()) else {
                    continue;
                };
                let allowed = self.check_host(endpoint.host(), caller, is_admin);
                allowed.map_err(|why| refused(field, why))?;
            }
        }
        // Gateways send prompts to the engine that the label names.
        for (field, url) in [
            ("local_indexer_endpoint", registration.local_indexer.as_ref()),
            ("profile.labels.http", registration.profile.labels.get(ADDRESS_LABEL)),
        ] {
            let Some(url) = url else { continue };
            let uri = url.parse::<Uri>().ok();
            let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
            let allowed = self.check_host(host, caller, is_admin);
            allowed.map_err(|why| EndpointRefused { field, endpoint: url.clone(), why })?;
        }
        Ok(())
    }

    /// Checks one host. Allowed are configured places, the caller's own address, and any host for an administrator.
    /// Loopback and link-local addresses are allowed only if this machine alone reaches the server.
    fn check_host(
        &self,
        host: &str,
        caller: Option<IpAddr>,
        is_admin: bool,
    ) -> Result<(), &'static str> {
        let host = Host::parse(host);
        if self.places.iter().any(|place| place.has(&host)) {
            return Ok(());
        }
        if host.is_near() {
            return if self.is_local { Ok(()) } else { Err(NEAR) };
        }
        let own = match (&host, caller) {
            (Host::Address(address), Some(caller)) => *address == caller.to_canonical(),
            (Host::Address(_), None) | (Host::Name(_), _) => false,
        };
        if is_admin || own { Ok(()) } else { Err(FAR) }
    }
}

#[cfg(test)]
#[path = "endpoints_test.rs"]
mod tests;
