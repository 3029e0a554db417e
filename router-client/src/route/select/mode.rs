use crate::route::error::{ConfigError, check};
use std::{fmt, str::FromStr};

/// How a rank is chosen (`--router-mode` of document 004).
///
/// The document's default is round-robin, for a frontend that may know nothing of caches. A router is run for the sake
/// of `kv`, so that is its default (row 004-01 of the coverage table).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// The lowest cost by overlap and load.
    #[default]
    Kv,
    /// Each in turn.
    RoundRobin,
    /// Any.
    Random,
    /// The one that the request names; nothing is chosen or filtered.
    Direct,
    /// The less loaded of two that are drawn.
    PowerOfTwo,
    /// The least loaded.
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
