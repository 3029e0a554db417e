//! Names in a certificate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// The names in a verified certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CertificateNames {
    /// Common name of the subject, if it has one.
    pub common_name: Option<String>,
    /// Alternative names that are DNS names.
    pub dns: Vec<String>,
    /// Alternative names that are URIs, such as `spiffe://…`.
    pub uris: Vec<String>,
    /// Alternative names that are IP addresses.
    pub addresses: Vec<IpAddr>,
}

impl CertificateNames {
    /// The names by which identities are found: the common name, DNS names, URIs.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        let others = self.dns.iter().chain(&self.uris);
        self.common_name.iter().chain(others).map(String::as_str)
    }

    /// Reads the names in a certificate. Returns no names if the certificate cannot be parsed.
    #[must_use]
    pub fn of(der: &[u8]) -> Self {
        let Ok((_rest, certificate)) = X509Certificate::from_der(der) else {
            return Self::default();
        };
        let common_name = certificate.subject().iter_common_name().next();
        let common_name = common_name.and_then(|name| name.as_str().ok()).map(str::to_owned);
        let mut names = Self { common_name, ..Self::default() };
        let alternative = certificate.subject_alternative_name().ok().flatten();
        for name in alternative.iter().flat_map(|extension| &extension.value.general_names) {
            if let GeneralName::DNSName(name) = name {
                names.dns.push((*name).to_owned());
            } else if let GeneralName::URI(uri) = name {
                names.uris.push((*uri).to_owned());
            } else if let GeneralName::IPAddress(bytes) = name {
                names.addresses.extend(address(bytes));
            }
        }
        names
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(Ipv4Addr::from).map(IpAddr::V4);
    let v6 = <[u8; 16]>::try_from(bytes).map(Ipv6Addr::from).map(IpAddr::V6);
    v4.or(v6).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    #[test]
    fn names_are_read() {
        let mut params = CertificateParams::new(["index.kv".to_owned()]).expect("names");
        params.distinguished_name.push(DnType::CommonName, "agent-7");
        let uri = "spiffe://kv/agent".try_into().expect("ASCII");
        params.subject_alt_names.push(SanType::URI(uri));
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::from([10, 0, 0, 7])));
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let names = CertificateNames::of(certificate.der());
        assert_eq!(names.common_name.as_deref(), Some("agent-7"));
        assert_eq!(names.dns, ["index.kv"]);
        assert_eq!(names.uris, ["spiffe://kv/agent"]);
        assert_eq!(names.addresses, [IpAddr::from([10, 0, 0, 7])]);
        assert_eq!(CertificateNames::of(b"none"), CertificateNames::default());
    }
}
