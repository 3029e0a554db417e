//! Addresses of gRPC ports, as people write them.

use crate::limits::NAME_BYTES_MAX;
use std::net::Ipv6Addr;
#[cfg(feature = "grpc")]
use std::time::Duration;
#[cfg(feature = "grpc")]
use tonic::transport::Endpoint;

/// The scheme of all targets: no port of Kvasir speaks TLS.
const SCHEME: &str = "http://";

/// Longest time until a connection is there.
#[cfg(feature = "grpc")]
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The other side is asked for a sign of life this often,
#[cfg(feature = "grpc")]
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// and has this long to answer.
#[cfg(feature = "grpc")]
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a text can be no target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// It is too long.
    #[error("has {0} bytes, the limit is {NAME_BYTES_MAX}")]
    TooLong(usize),
    /// It names no host and port, or more than these.
    #[error("{0:?} must be host:port or http://host:port, such as 10.0.0.2:50051")]
    Malformed(String),
}

/// A target as `http://host:port`, from that or from `host:port`. The one place that reads targets, so that
/// servers, agents and clients accept the same.
///
/// # Errors
/// If it can be no target: no host, no port, another scheme, a user, a path or a query. An IPv6 address needs
/// brackets.
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

/// Where a gRPC port is dialled. All who dial one do it by this, so that they accept the same and find out alike that
/// the other side is gone. It takes 5 s at most to connect, unless [`Endpoint::connect_timeout`] says otherwise.
///
/// # Errors
/// If the text can be no target.
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
    fn what_can_be_no_target_is_named() {
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
