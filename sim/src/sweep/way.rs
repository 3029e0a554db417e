//! Routing policies and their parameters.

use crate::engine::timed::Nanos;
use router_client::route::Mode;
use std::fmt;

/// Nanoseconds per millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// Default delay of the index behind the caches.
pub const STALENESS: Nanos = 100 * MILLISECOND;

/// Routing policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// By overlap and load.
    Kv,
    /// By overlap and load; engines also fetch blocks from other engines where that is faster than computing them.
    KvFetch,
    /// As `Kv`, but the index counts full attention alone. For models with state layers.
    KvMainGroup,
    /// Round-robin.
    RoundRobin,
    /// Random.
    Random,
    /// The engine with the least load, from the router's point of view.
    LeastLoaded,
    /// The less loaded of two random engines.
    PowerOfTwo,
    /// The shortest time to the first token, by the engines' true caches and queues.
    Oracle,
}

/// Routing of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// Routing policy.
    pub policy: Policy,
    /// Delay of the index behind the caches, in nanoseconds. Only some policies query the index.
    pub staleness: Nanos,
    /// Number of router replicas, at least 1. Requests reach them in turn.
    pub routers: usize,
    /// Whether the first replica is killed after half of the requests have arrived.
    pub has_kill: bool,
    /// Number of engines that only compute prompts; 0 if each engine does both.
    pub prefill_engines: usize,
    /// Whether engines hide their number of blocks from routers.
    pub is_unstated: bool,
}

// === impl Policy ===

impl Policy {
    /// The router's mode; none if the policy does not use the router.
    #[must_use]
    pub fn mode(self) -> Option<Mode> {
        match self {
            Self::Kv | Self::KvFetch | Self::KvMainGroup => Some(Mode::Kv),
            Self::RoundRobin => Some(Mode::RoundRobin),
            Self::Random => Some(Mode::Random),
            Self::LeastLoaded => Some(Mode::LeastLoaded),
            Self::PowerOfTwo => Some(Mode::PowerOfTwo),
            Self::Oracle => None,
        }
    }

    /// The policy with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.to_string() == name)
    }

    const ALL: [Self; 8] = [
        Self::Kv,
        Self::KvFetch,
        Self::KvMainGroup,
        Self::RoundRobin,
        Self::Random,
        Self::LeastLoaded,
        Self::PowerOfTwo,
        Self::Oracle,
    ];

    /// Whether the policy queries the index.
    #[must_use]
    pub const fn needs_index(self) -> bool {
        matches!(self, Self::Kv | Self::KvFetch | Self::KvMainGroup)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.mode()) {
            (Self::KvFetch, _) => f.write_str("kv-fetch"),
            (Self::KvMainGroup, _) => f.write_str("kv-main-group"),
            (_, Some(mode)) => mode.fmt(f),
            (_, None) => f.write_str("oracle"),
        }
    }
}

// === impl Way ===

impl Way {
    /// One router over engines that prefill and decode.
    #[must_use]
    pub fn of(policy: Policy) -> Self {
        Self {
            policy,
            staleness: STALENESS,
            routers: 1,
            has_kill: false,
            prefill_engines: 0,
            is_unstated: false,
        }
    }

    /// Whether the way is the library's default.
    #[must_use]
    pub fn is_kv(self) -> bool {
        self.policy == Policy::Kv
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.policy.fmt(f)?;
        if self.policy.needs_index() && self.staleness != STALENESS {
            write!(f, ", {} ms late", self.staleness / MILLISECOND)?;
        }
        if self.routers > 1 {
            write!(f, ", {} routers", self.routers)?;
        }
        if self.has_kill {
            f.write_str(", one killed")?;
        }
        if self.is_unstated {
            f.write_str(", capacity unstated")?;
        }
        if self.prefill_engines > 0 {
            write!(f, ", {} for prefill", self.prefill_engines)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_differs() {
        let kv = Way::of(Policy::Kv);
        assert_eq!(kv.to_string(), "kv");
        assert_eq!(Way { staleness: 0, ..kv }.to_string(), "kv, 0 ms late");
        let unstated = Way { is_unstated: true, ..kv };
        assert_eq!(unstated.to_string(), "kv, capacity unstated");
        let killed = Way { routers: 3, has_kill: true, ..kv };
        assert_eq!(killed.to_string(), "kv, 3 routers, one killed");
        let in_turn = Way { prefill_engines: 5, ..Way::of(Policy::RoundRobin) };
        assert_eq!(in_turn.to_string(), "round-robin, 5 for prefill");
        assert_eq!(Policy::named("power-of-two"), Some(Policy::PowerOfTwo));
        assert_eq!(Policy::named("kv-fetch"), Some(Policy::KvFetch));
        assert_eq!((Policy::named("oracle"), Policy::named("x")), (Some(Policy::Oracle), None));
    }
}
