//! Addresses of gRPC ports in text form.

use crate::limits::NAME_BYTES_MAX;
use std::net::Ipv6Addr;

/// Scheme of targets without TLS.
const PLAIN: &str = "http://";
/// Scheme of targets with TLS.
const TLS: &str = "https://";

/// Why a text is not a valid target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The text is too long.
    #[error("has {0} bytes, the limit is {NAME_BYTES_MAX}")]
    TooLong(usize),
    /// The text is not exactly a host and a port.
    #[error(
        "{0:?} must be host:port, http://host:port or https://host:port, such as 10.0.0.2:50051"
    )]
    Malformed(String),
}

/// Reads a target `http://host:port`, `https://host:port` (TLS) or `host:port`. Returns it with its scheme; the default
/// scheme is `http://`. All servers, agents and clients use this function, so that they accept the same targets.
///
/// # Errors
/// If the host or the port is missing, or the text has another scheme, a user, a path or a query. An IPv6 address needs
/// brackets.
pub fn read_target(text: &str) -> Result<String, TargetError> {
    if text.len() > NAME_BYTES_MAX {
        return Err(TargetError::TooLong(text.len()));
    }
    let malformed = || TargetError::Malformed(text.to_owned());
    let schemes = [PLAIN, TLS].into_iter();
    let (scheme, address) = schemes
        .filter_map(|scheme| Some((scheme, text.strip_prefix(scheme)?)))
        .map(|(scheme, rest)| (scheme, rest.strip_suffix('/').unwrap_or(rest)))
        .next()
        .unwrap_or((PLAIN, text));
    let (host, port) = address.rsplit_once(':').ok_or_else(malformed)?;
    let is_port = port.bytes().all(|at| at.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|port| port > 0);
    if is_host(host) && is_port { Ok(format!("{scheme}{address}")) } else { Err(malformed()) }
}

/// Whether a target that [`read_target`] returned uses TLS.
#[must_use]
pub fn is_tls(target: &str) -> bool {
    target.starts_with(TLS)
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
            ("https://index:1", "https://index:1"),
            ("https://[fd00::7]:50051/", "https://[fd00::7]:50051"),
        ] {
            assert_eq!(read_target(text).as_deref(), Ok(expected));
            assert_eq!(is_tls(expected), text.starts_with("https"));
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
            "https://",
            "https://http://host:1",
            "HTTPS://host:1",
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
            let expected = format!(
                "{text:?} must be host:port, http://host:port or https://host:port, such as 10.0.0.2:50051"
            );
            assert_eq!(read_target(text).map_err(|error| error.to_string()), Err(expected));
        }
        let long = format!("{}:1", "h".repeat(NAME_BYTES_MAX));
        assert_eq!(read_target(&long), Err(TargetError::TooLong(NAME_BYTES_MAX + 2)));
    }
}
