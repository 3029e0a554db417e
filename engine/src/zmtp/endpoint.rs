use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use thiserror::Error;

const SCHEME: &str = "tcp://";
const ANY_HOST: &str = "*";

/// A parsed `tcp://host:port`.
///
/// The host is a name, an IPv4 address, an IPv6 address in brackets, or `*` (all interfaces, only for
/// listening).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Host without brackets.
    host: String,
    port: u16,
}

/// Which side opens the TCP connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attach {
    /// We connect to a listening publisher.
    Connect(Endpoint),
    /// We listen, and the publisher connects. One peer is served at a time. A second one waits in the accept
    /// queue until the first disconnects, so a stray connection cannot displace it.
    Bind(Endpoint),
}

/// Why a text is not an [`Endpoint`], and how to correct it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EndpointError {
    /// The transport is missing or is not TCP.
    #[error("{text:?} must start with tcp://, for example tcp://10.0.0.7:5557")]
    Scheme {
        /// The invalid text.
        text: String,
    },
    /// The port is missing or not between 0 and 65535.
    #[error("{text:?} needs a port from 0 to 65535, for example tcp://10.0.0.7:5557")]
    Port {
        /// The invalid text.
        text: String,
    },
    /// The host is missing, or is an IPv6 address without brackets.
    #[error("{text:?} needs a host name or address; write IPv6 as tcp://[::1]:5557")]
    Host {
        /// The invalid text.
        text: String,
    },
    /// `*` and port 0 cannot be connected to.
    #[error("cannot connect to {text}: name the publisher's host and port, or listen instead")]
    NotDialable {
        /// The invalid text.
        text: String,
    },
    /// The host is not an address of this machine. Names are not resolved.
    #[error("cannot listen on {text}: give an address of this machine or tcp://*:PORT")]
    NotBindable {
        /// The invalid text.
        text: String,
    },
}

// === impl Endpoint ===

impl Endpoint {
    /// Parses an address to connect to.
    ///
    /// # Errors
    /// If the text is not an endpoint, or has the host `*` or port 0.
    pub fn parse_dialable(text: &str) -> Result<Self, EndpointError> {
        let endpoint: Self = text.parse()?;
        endpoint.check_dialable()?;
        Ok(endpoint)
    }

    /// Host as written, without brackets; `*` for all interfaces.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port; 0 asks the system for one when listening.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address to listen on; [`EndpointError::NotBindable`] for a host name.
    pub(super) fn listen_address(&self) -> Result<SocketAddr, EndpointError> {
        let address = if self.host == ANY_HOST {
            Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
        } else {
            self.host.parse::<IpAddr>()
        };
        match address {
            Ok(address) => Ok(SocketAddr::new(address, self.port)),
            Err(_) => Err(EndpointError::NotBindable { text: self.to_string() }),
        }
    }

    /// Checks that one can connect to this endpoint.
    ///
    /// # Errors
    /// [`EndpointError::NotDialable`] for `*` and for port 0.
    pub fn check_dialable(&self) -> Result<(), EndpointError> {
        if self.host == ANY_HOST || self.port == 0 {
            return Err(EndpointError::NotDialable { text: self.to_string() });
        }
        Ok(())
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    /// Parses `tcp://host:port`. The port is digits only. The host is an IPv6 address in brackets, `*`, or a name or
    /// IPv4 address.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let owned = || text.to_owned();
        let rest =
            text.strip_prefix(SCHEME).ok_or_else(|| EndpointError::Scheme { text: owned() })?;
        let (host, port) =
            rest.rsplit_once(':').ok_or_else(|| EndpointError::Port { text: owned() })?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits);
        let port = port.ok_or_else(|| EndpointError::Port { text: owned() })?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let valid = match bracketed {
            Some(address) => matches!(address.parse(), Ok(IpAddr::V6(_))),
            None => !host.is_empty() && host.bytes().all(is_host_byte) && !misplaced_any(host),
        };
        if !valid {
            return Err(EndpointError::Host { text: owned() });
        }
        Ok(Self { host: bracketed.unwrap_or(host).to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "{SCHEME}[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{SCHEME}{}:{}", self.host, self.port)
        }
    }
}

// === impl Attach ===

impl Attach {
    /// Parses an address to connect to or, with `bind`, to listen on.
    ///
    /// # Errors
    /// If the text is not an endpoint, or is invalid for this direction.
    pub fn parse(endpoint: &str, bind: bool) -> Result<Self, EndpointError> {
        let endpoint = endpoint.parse()?;
        let attach = if bind { Self::Bind(endpoint) } else { Self::Connect(endpoint) };
        attach.check()?;
        Ok(attach)
    }

    /// Checks that the endpoint is valid for its direction, so that configuration fails early.
    ///
    /// # Errors
    /// [`EndpointError::NotDialable`] or [`EndpointError::NotBindable`].
    pub fn check(&self) -> Result<(), EndpointError> {
        match self {
            Self::Connect(endpoint) => endpoint.check_dialable(),
            Self::Bind(endpoint) => endpoint.listen_address().map(drop),
        }
    }
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'*')
}

fn misplaced_any(host: &str) -> bool {
    host.contains(ANY_HOST) && host != ANY_HOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_endpoints_print_as_written() {
        for text in [
            "tcp://127.0.0.1:5557",
            "tcp://vllm-0.vllm.default.svc:5557",
            "tcp://*:0",
            "tcp://0.0.0.0:65535",
            "tcp://[::1]:5557",
            "tcp://[fe80::1]:1",
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), text);
        }
    }

    #[test]
    fn bad_endpoints_name_the_fix() {
        let check = |text: &str, part: &str| {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        };
        for text in ["", "127.0.0.1:5557", "ipc:///tmp/x", "TCP://a:1", "udp://a:1"] {
            check(text, "must start with tcp://");
        }
        for text in ["tcp://", "tcp://a", "tcp://a:", "tcp://a:65536", "tcp://a:-1", "tcp://a:+1"] {
            check(text, "needs a port");
        }
        for text in ["tcp://:1", "tcp://::1:5557", "tcp://[::1:5", "tcp://[x]:5", "tcp://a b:1"] {
            check(text, "needs a host");
        }
        for text in ["tcp://**:1", "tcp://a*:1", "tcp://[127.0.0.1]:1", "tcp://u@h:1"] {
            check(text, "needs a host");
        }
    }

    #[test]
    fn an_attachment_is_checked_for_its_direction() {
        let endpoint = |text: &str| text.parse::<Endpoint>().unwrap();
        assert_eq!(Attach::Connect(endpoint("tcp://engine:5")).check(), Ok(()));
        assert_eq!(Attach::Bind(endpoint("tcp://*:0")).check(), Ok(()));
        assert!(Attach::Connect(endpoint("tcp://*:5")).check().is_err());
        assert!(Attach::Bind(endpoint("tcp://engine:5")).check().is_err());
    }

    #[test]
    fn listening_needs_an_address() {
        let listen = |text: &str| text.parse::<Endpoint>().unwrap().listen_address();
        assert_eq!(listen("tcp://*:5").unwrap().to_string(), "0.0.0.0:5");
        assert_eq!(listen("tcp://[::]:5").unwrap().to_string(), "[::]:5");
        assert!(listen("tcp://engine:5").unwrap_err().to_string().contains("tcp://*:PORT"));
    }

    #[test]
    fn dialling_needs_one_host_and_port() {
        let dial = |text: &str| text.parse::<Endpoint>().unwrap().check_dialable();
        assert_eq!(dial("tcp://engine:5"), Ok(()));
        assert!(dial("tcp://*:5").is_err());
        assert!(dial("tcp://engine:0").is_err());
    }
}
