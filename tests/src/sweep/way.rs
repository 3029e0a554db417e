//! Ways of placing requests.

use crate::engine::timed::Nanos;
use router_client::route::Mode;
use std::fmt;

/// Nanoseconds of a millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// How late the index hears of the caches unless a way says otherwise.
pub const STALENESS: Nanos = 100 * MILLISECOND;

/// What decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// Overlap and load.
    Kv,
    /// The same, and engines fetch blocks from other engines where that is faster than computing them.
    KvFetch,
    /// Each engine in turn.
    RoundRobin,
    /// Any.
    Random,
    /// The least loaded, by what the router knows.
    LeastLoaded,
    /// The less loaded of two that are drawn.
    PowerOfTwo,
    /// The shortest time to the first token by the engines' true caches and queues.
    Oracle,
}

/// How a run places its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// What decides.
    pub policy: Policy,
    /// How late the index hears of the caches, in nanoseconds. Only policies that need it ask it.
    pub staleness: Nanos,
    /// Replicas of the router, at least 1. Requests go to them in turn.
    pub routers: usize,
    /// Whether the first replica is killed once half of the requests have arrived.
    pub has_kill: bool,
    /// Engines that only compute prompts; 0: each engine does both.
    pub prefill_engines: usize,
    /// Whether engines do not state to routers how many blocks they have.
    pub is_unstated: bool,
}

// === impl Policy ===

impl Policy {
    /// The mode of the router; none if it is not asked.
    #[must_use]
    pub fn mode(self) -> Option<Mode> {
        match self {
            Self::Kv | Self::KvFetch => Some(Mode::Kv),
            Self::RoundRobin => Some(Mode::RoundRobin),
            Self::Random => Some(Mode::Random),
            Self::LeastLoaded => Some(Mode::LeastLoaded),
            Self::PowerOfTwo => Some(Mode::PowerOfTwo),
            Self::Oracle => None,
        }
    }

    /// The policy of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.to_string() == name)
    }

    const ALL: [Self; 7] = [
        Self::Kv,
        Self::KvFetch,
        Self::RoundRobin,
        Self::Random,
        Self::LeastLoaded,
        Self::PowerOfTwo,
        Self::Oracle,
    ];

    /// Whether it asks the index.
    #[must_use]
    pub const fn needs_index(self) -> bool {
        matches!(self, Self::Kv | Self::KvFetch)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.mode()) {
            (Self::KvFetch, _) => f.write_str("kv-fetch"),
            (_, Some(mode)) => mode.fmt(f),
            (_, None) => f.write_str("oracle"),
        }
    }
}

// === impl Way ===

impl Way {
    /// One router over engines that do both.
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

    /// Whether it is the library's own way.
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
