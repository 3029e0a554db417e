//! Addresses of gRPC ports, as people write them.

use crate::limits::NAME_BYTES_MAX;
use std::net::Ipv6Addr;
#[cfg(feature = "grpc")]
use std::time::Duration;
#[cfg(feature = "grpc")]
use tonic::transport::Endpoint;

/// The scheme of all targets: no port of Kvasir uses TLS.
const SCHEME: &str = "http://";

/// Longest time to connect.
#[cfg(feature = "grpc")]
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of keep-alive pings.
#[cfg(feature = "grpc")]
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Longest wait for the answer to a keep-alive ping.
#[cfg(feature = "grpc")]
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a text is not a valid target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// It is too long.
    #[error("has {0} bytes, the limit is {NAME_BYTES_MAX}")]
    TooLong(usize),
    /// It is not a host and a port alone.
    #[error("{0:?} must be host:port or http://host:port, such as 10.0.0.2:50051")]
    Malformed(String),
}

/// Reads a target, `http://host:port` or `host:port`, and returns it as `http://host:port`. All servers, agents and
/// clients read targets here, so that they accept the same.
///
/// # Errors
/// If the text is not a valid target: no host, no port, another scheme, a user, a path or a query. An IPv6 address
/// needs brackets.
pub fn read_target(text: &str) -> Result<String, TargetError> {
    if text.len() > NAME_BYTES_MAX {
        return Err(TargetError::TooLong(text.len()));
    }
    let malformed = || TargetError::Malformed(text.to_owned());
    let address =
        text.strip_prefix(SCHEME).map_or(text, |rest| rest.strip_suffix('/').unwrap_or(rest));
    let (host, port) = address.rsplit_once(':').ok_or_else(malformed)?;
    let is_port = port.bytes().all(|at| at.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|port| port > 0);
    if is_host(host) && is_port { Ok(format!("{SCHEME}{address}")) } else { Err(malformed()) }
}

/// The endpoint of a gRPC port. All gRPC clients of the workspace connect by this, so that they accept the same targets
/// and notice a lost peer in the same time. The connect timeout is 5 s; change it by [`Endpoint::connect_timeout`].
///
/// # Errors
/// If the text is not a valid target.
#[cfg(feature = "grpc")]
pub fn endpoint(text: &str) -> Result<Endpoint, TargetError> {
    let malformed = |_error| TargetError::Malformed(text.to_owned());
    let endpoint = Endpoint::from_shared(read_target(text)?).map_err(malformed)?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true))
}

fn is_host(host: &str) -> bool {
    let in_brackets = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(address) = in_brackets {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let is_letter = |at: u8| at.is_ascii_alphanumeric() || b"-._".contains(&at);
    !host.is_empty() && host.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_with_and_without_their_scheme() {
        for (text, expected) in [
            ("10.0.0.2:50051", "http://10.0.0.2:50051"),
            ("http://10.0.0.2:50051", "http://10.0.0.2:50051"),
            ("http://index:1/", "http://index:1"),
            (
                "kv_index-0.kv.svc.cluster.local:65535",
                "http://kv_index-0.kv.svc.cluster.local:65535",
            ),
            ("[::1]:50051", "http://[::1]:50051"),
            ("http://[fd00::7]:50051", "http://[fd00::7]:50051"),
        ] {
            assert_eq!(read_target(text).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn invalid_targets_are_refused() {
        for text in [
            "",
            ":",
            "host",
            "host:",
            ":50051",
            "host:0",
            "host:65536",
            "host:+1",
            "host:grpc",
            "http://",
            "http://host",
            "https://host:1",
            "tcp://host:1",
            "ftp://host:1",
            "host:1/",
            "http://host:1/path",
            "http://host:1//",
            "http://host:1?x=y",
            "http://user@host:1",
            "::1:50051",
            "[::1]",
            "[host]:1",
            "[::1%eth0]:1",
            "a b:1",
            "a,b:1",
            "host:1 ",
            "hôst:1",
            "http://http://a:1",
        ] {
            let expected =
                format!("{text:?} must be host:port or http://host:port, such as 10.0.0.2:50051");
            assert_eq!(read_target(text).map_err(|error| error.to_string()), Err(expected));
        }
        let long = format!("{}:1", "h".repeat(NAME_BYTES_MAX));
        assert_eq!(read_target(&long), Err(TargetError::TooLong(NAME_BYTES_MAX + 2)));
    }
}
