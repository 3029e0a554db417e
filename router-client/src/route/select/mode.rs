use crate::route::error::{ConfigError, check};
use std::fmt;
use std::str::FromStr;

/// Mode of choosing a rank (`--router-mode` of document 004).
///
/// The document's default is round-robin, for a frontend that may know nothing of caches. The purpose of a router is
/// `kv`, so this is the default here (row 004-01 of the coverage table).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Lowest cost by overlap and load.
    #[default]
    Kv,
    /// Round-robin.
    RoundRobin,
    /// Uniformly random.
    Random,
    /// The rank that the request names, without filters.
    Direct,
    /// The less loaded of two random ranks.
    PowerOfTwo,
    /// The least loaded rank.
    LeastLoaded,
}

const NAMES: [(Mode, &str); 6] = [
    (Mode::Kv, "kv"),
    (Mode::RoundRobin, "round-robin"),
    (Mode::Random, "random"),
    (Mode::Direct, "direct"),
    (Mode::PowerOfTwo, "power-of-two"),
    (Mode::LeastLoaded, "least-loaded"),
];

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.iter().find(|(mode, _)| mode == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for Mode {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let found = NAMES.iter().find(|(_, name)| *name == text).map(|(mode, _)| *mode);
        let all = "must be one of kv, round-robin, random, direct, power-of-two, least-loaded";
        check(found.is_some(), "mode", all)?;
        Ok(found.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_is_read_by_its_name() {
        for (mode, name) in NAMES {
            assert_eq!((name.parse(), mode.to_string().as_str()), (Ok(mode), name));
        }
        let error = "best".parse::<Mode>().expect_err("refused").to_string();
        assert!(NAMES.iter().all(|(_, name)| error.contains(name)), "{error}");
    }
}
