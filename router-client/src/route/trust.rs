//! How far a rank's overlap from the index can be trusted.
//!
//! Not in the documents, which always trust the index. An index that is behind may report blocks that the engine has
//! evicted. A router that trusts it sends the prompt to a worker that has to compute all of it.

use super::cost::TierBlocks;
use super::error::{ConfigError, check};
use kvasir_proto::types::SourceState;
use std::fmt;
use std::time::Duration;

/// Credit of overlap that cannot be fully trusted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrustConfig {
    /// Overlap whose verification is older than this counts as [`Trust::Stale`]. `None`: no limit.
    pub max_staleness: Option<Duration>,
    /// Fraction of blocks credited if [`Trust`] is neither full nor unknown: 0 to 1.
    pub uncertain_credit: f64,
}

/// The index's report of how current its data about one rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts that an index states, each by itself")]
pub struct Freshness {
    /// Worst state of the rank's sources.
    pub state: SourceState,
    /// Whether all sources are connected to the index.
    pub is_connected: bool,
    /// Whether the index is restoring the worker after a restart.
    pub is_restoring: bool,
    /// Time since the index last verified that there are no newer events; `None` if it never did.
    pub verified_age: Option<Duration>,
    /// Whether the rank may have fewer blocks than the index shows.
    pub may_be_high: bool,
}

/// How far a rank's overlap can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Trust {
    /// Full trust: the rank may have more blocks than reported, never fewer.
    #[default]
    Full,
    /// The last verification is too old.
    Stale,
    /// Events are missing or not applied yet, or the index is restoring the worker. Blocks may have been evicted since.
    Behind,
    /// The index has no connection to the engine or no data about it: no blocks are credited.
    Unknown,
}

// === impl TrustConfig ===

impl Default for TrustConfig {
    fn default() -> Self {
        Self { max_staleness: None, uncertain_credit: 0.5 }
    }
}

impl TrustConfig {
    /// Checks all settings.
    ///
    /// # Errors
    /// If the credit is not between 0 and 1, or the staleness is 0.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is_good = (0.0..=1.0).contains(&self.uncertain_credit);
        check(is_good, "uncertain credit", "must be between 0 and 1")?;
        check(self.max_staleness != Some(Duration::ZERO), "max staleness", "must be longer than 0")
    }

    /// Returns how far a rank's overlap can be trusted.
    #[must_use]
    pub fn judge(&self, freshness: &Freshness) -> Trust {
        let Freshness { state, is_connected, is_restoring, verified_age, may_be_high } = *freshness;
        match state {
            SourceState::Cold => Trust::Unknown,
            _ if is_restoring => Trust::Behind,
            SourceState::CatchingUp if !is_connected => Trust::Unknown,
            _ if may_be_high => Trust::Behind,
            SourceState::CatchingUp | SourceState::Gap | SourceState::Degraded => Trust::Behind,
            SourceState::Exact | SourceState::Partial => {
                let is_stale = |most: Duration| verified_age.is_none_or(|age| age > most);
                if self.max_staleness.is_some_and(is_stale) { Trust::Stale } else { Trust::Full }
            }
        }
    }

    /// Returns the credited part of the reported blocks: all with full trust, none if the state is unknown, else the
    /// configured fraction.
    #[must_use]
    pub fn credited(&self, reported: TierBlocks, trust: Trust) -> TierBlocks {
        let share = match trust {
            Trust::Full => return reported,
            Trust::Stale | Trust::Behind => self.uncertain_credit,
            Trust::Unknown => 0.0,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share")]
        let part = |blocks: u32| (f64::from(blocks) * share) as u32;
        let TierBlocks { device, host, disk, pool } = reported;
        let device = part(device);
        let host = part(host);
        let disk = part(disk);
        let pool = part(pool);
        let credited = TierBlocks { device, host, disk, pool };
        debug_assert!(credited.total() <= reported.total(), "{credited:?} of {reported:?}");
        credited
    }
}

// === impl Trust ===

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::Stale => "stale",
            Self::Behind => "behind",
            Self::Unknown => "unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Freshness = Freshness {
        state: SourceState::Exact,
        is_connected: true,
        is_restoring: false,
        verified_age: Some(Duration::from_secs(1)),
        may_be_high: false,
    };

    #[test]
    fn states_decide_what_is_credited() {
        let config = TrustConfig::default();
        let of = |state, is_connected| config.judge(&Freshness { state, is_connected, ..FRESH });
        assert_eq!(of(SourceState::Exact, true), Trust::Full);
        assert_eq!(of(SourceState::Partial, true), Trust::Full);
        for state in [SourceState::CatchingUp, SourceState::Gap, SourceState::Degraded] {
            assert_eq!(of(state, true), Trust::Behind);
        }
        assert_eq!(of(SourceState::CatchingUp, false), Trust::Unknown);
        assert_eq!(of(SourceState::Cold, true), Trust::Unknown);
        let doubted = Freshness { state: SourceState::Partial, may_be_high: true, ..FRESH };
        assert_eq!(config.judge(&doubted), Trust::Behind);
        let restoring = Freshness { is_restoring: true, ..FRESH };
        assert_eq!(config.judge(&restoring), Trust::Behind);
        let blocks = TierBlocks { device: 8, host: 5, disk: 1, pool: 3 };
        let credited = |trust| config.credited(blocks, trust);
        assert_eq!(credited(Trust::Full), blocks);
        assert_eq!(credited(Trust::Behind), TierBlocks { device: 4, host: 2, disk: 0, pool: 1 });
        assert_eq!(credited(Trust::Unknown), TierBlocks::default());
    }

    #[test]
    fn overlap_that_was_verified_too_long_ago_is_stale() {
        let most = Duration::from_secs(5);
        let config = TrustConfig { max_staleness: Some(most), ..TrustConfig::default() };
        let of = |verified_age| config.judge(&Freshness { verified_age, ..FRESH });
        assert_eq!(of(Some(most)), Trust::Full);
        assert_eq!(of(Some(most + Duration::from_millis(1))), Trust::Stale);
        assert_eq!(of(None), Trust::Stale);
        let never = TrustConfig::default().judge(&Freshness { verified_age: None, ..FRESH });
        assert_eq!(never, Trust::Full);
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        let good = TrustConfig::default();
        assert_eq!(good.check(), Ok(()));
        for uncertain_credit in [-0.1, 1.1, f64::NAN] {
            assert!(TrustConfig { uncertain_credit, ..good }.check().is_err());
        }
        assert!(TrustConfig { max_staleness: Some(Duration::ZERO), ..good }.check().is_err());
    }
}
