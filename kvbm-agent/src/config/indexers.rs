//! Checks the options for indexes.

use kvasir_process::config::ConfigError;
use kvasir_process::options::dialled;
use kvasir_proto::convert::Registration;
use kvasir_tls::Dialer;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// Checks the URLs of an option that names indexes: at most `max`, each only once.
pub(super) fn checked(
    field: &'static str,
    given: &[String],
    max: usize,
    dialer: &Dialer,
) -> Result<Vec<String>, ConfigError> {
    if given.len() > max {
        let why = format!("{} are too many, the limit is {max}", given.len());
        return Err(ConfigError::invalid(field, why));
    }
    let indexers =
        given.iter().map(|text| dialled(field, text, dialer)).collect::<Result<Vec<_>, _>>()?;
    let mut seen = BTreeSet::new();
    if let Some(twice) = indexers.iter().find(|url| !seen.insert(*url)) {
        let why = format!("{twice:?} is given twice: remove one");
        return Err(ConfigError::invalid(field, why));
    }
    Ok(indexers)
}

/// Checks that no URL of `pool-indexers` is also in `indexers`. Also fails if URLs are given and no pool is configured.
pub(super) fn check_pool_indexers(
    registration: &Registration,
    indexers: &[String],
    pool_indexers: &[String],
) -> Result<(), ConfigError> {
    const FIELD: &str = "pool-indexers";
    if let Some(both) = pool_indexers.iter().find(|url| indexers.contains(url)) {
        let why = format!(
            "{both:?} is also in indexers, which receive the contents of pools already: remove it from pool-indexers"
        );
        return Err(ConfigError::invalid(FIELD, why));
    }
    if !pool_indexers.is_empty() && registration.pools.is_empty() {
        let why =
            "is set without blocks-volume or engine-pool: set one of them, or remove pool-indexers";
        return Err(ConfigError::invalid(FIELD, why));
    }
    Ok(())
}

/// Warning that no index receives the contents of the pools, if so.
pub(super) fn unpublished(registration: &Registration, indexers: &[String]) -> Option<String> {
    (indexers.is_empty() && !registration.pools.is_empty()).then(|| {
        "indexers: none is given, and what is in blocks-volume and engine-pool is published to these only: no index will \
         know of it"
            .to_owned()
    })
}

/// Returns a warning if an index on another machine cannot request missed batches, because the agent's port is
/// reachable only on its own machine.
pub(super) fn out_of_reach(
    listen: SocketAddr,
    registration: &Registration,
    indexers: &[String],
) -> Option<String> {
    let advertised = &registration.local_indexer;
    let is_here = match advertised {
        Some(url) => is_loopback(url),
        None => listen.ip().is_loopback(),
    };
    let index = indexers.iter().find(|url| is_here && !is_loopback(url))?;
    let (field, at) = match advertised {
        Some(url) => ("advertise", url.clone()),
        None => ("listen", listen.to_string()),
    };
    Some(format!(
        "{field}: {at} is reached from this machine only, and {index} asks there for what it missed: listen on an \
         address that it reaches, and name that with advertise where it differs"
    ))
}

/// Whether a target is on this machine.
fn is_loopback(url: &str) -> bool {
    let address = url.split_once("://").and_then(|(_scheme, address)| address.rsplit_once(':'));
    let host = address.map_or("", |(host, _port)| host);
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}
