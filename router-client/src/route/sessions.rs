//! Session affinity: which rank served a session last (`--router-session-affinity-ttl-secs` upstream; here only a
//! preference).

use super::error::{ConfigError, check};
use kvasir_proto::types::{WorkerId, WorkerKey};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Maximum sessions; beyond it, the sessions that expire first are removed.
pub const SESSIONS_MAX: usize = 65_536;
/// Maximum length of a session id, in bytes.
pub const SESSION_ID_BYTES_MAX: usize = 256;
/// Minimum lifetime of a session.
pub const SESSION_TTL_MIN: Duration = Duration::from_secs(1);
/// Maximum lifetime of a session: a year.
pub const SESSION_TTL_MAX: Duration = Duration::from_secs(31_536_000);

#[derive(Debug)]
struct Session {
    worker: WorkerKey,
    expires: Duration,
}

/// Sessions, and the rank that served each last.
#[derive(Debug)]
pub struct Sessions {
    ttl: Duration,
    sessions: HashMap<Arc<str>, Session>,
    /// Expiry times; one entry per session.
    ends: BTreeSet<(Duration, Arc<str>)>,
}

impl Sessions {
    /// An empty table. Each session lives for `ttl` after its last request.
    ///
    /// # Errors
    /// If `ttl` is not between [`SESSION_TTL_MIN`] and [`SESSION_TTL_MAX`].
    pub fn new(ttl: Duration) -> Result<Self, ConfigError> {
        Self::check_ttl(ttl)?;
        Ok(Self { ttl, sessions: HashMap::new(), ends: BTreeSet::new() })
    }

    /// Checks a session lifetime.
    ///
    /// # Errors
    /// If `ttl` is not between [`SESSION_TTL_MIN`] and [`SESSION_TTL_MAX`].
    pub fn check_ttl(ttl: Duration) -> Result<(), ConfigError> {
        let is_good = (SESSION_TTL_MIN..=SESSION_TTL_MAX).contains(&ttl);
        check(is_good, "session ttl", "must be between a second and a year")
    }

    /// Checks a session id.
    ///
    /// # Errors
    /// If the id is empty or longer than [`SESSION_ID_BYTES_MAX`].
    pub fn check_id(session: &str) -> Result<(), ConfigError> {
        let is_good = !session.is_empty() && session.len() <= SESSION_ID_BYTES_MAX;
        check(is_good, "session id", "must have 1 to 256 bytes")
    }

    /// The rank that served a session last.
    #[must_use]
    pub fn rank_of(&self, session: &str, now: Duration) -> Option<&WorkerKey> {
        let at = self.sessions.get(session).filter(|at| now < at.expires)?;
        Some(&at.worker)
    }

    /// Records that a request of a session goes to a rank.
    ///
    /// # Errors
    /// If the id is empty or longer than [`SESSION_ID_BYTES_MAX`].
    pub fn served(
        &mut self,
        session: &str,
        by: &WorkerKey,
        now: Duration,
    ) -> Result<(), ConfigError> {
        Self::check_id(session)?;
        self.remove(session);
        while self.sessions.len() >= SESSIONS_MAX
            && let Some((_, first)) = self.ends.first().cloned()
        {
            self.remove(&first);
        }
        let (id, expires): (Arc<str>, _) = (session.into(), now.saturating_add(self.ttl));
        self.ends.insert((expires, Arc::clone(&id)));
        self.sessions.insert(id, Session { worker: by.clone(), expires });
        debug_assert_eq!(self.ends.len(), self.sessions.len(), "one end for each");
        debug_assert!(self.sessions.len() <= SESSIONS_MAX, "{} sessions", self.sessions.len());
        Ok(())
    }

    /// Removes expired sessions.
    pub fn expire(&mut self, now: Duration) {
        while let Some((_, first)) = self.ends.first().filter(|(end, _)| *end <= now).cloned() {
            self.remove(&first);
        }
    }

    /// Removes the sessions of a worker that has left.
    pub fn forget(&mut self, worker: &WorkerId) {
        let is_there = |(_, id): &&(Duration, Arc<str>)| {
            self.sessions.get(id).is_some_and(|at| at.worker.worker == *worker)
        };
        let gone: Vec<_> = self.ends.iter().filter(is_there).cloned().collect();
        for (_, id) in gone {
            self.remove(&id);
        }
    }

    /// Number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there are no sessions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    fn remove(&mut self, session: &str) {
        let Some((id, at)) = self.sessions.remove_entry(session) else { return };
        let was_there = self.ends.remove(&(at.expires, id));
        debug_assert!(was_there, "one end for each");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn rank(name: &str, rank: u32) -> WorkerKey {
        WorkerKey { worker: WorkerId::new(name).expect("a name"), rank }
    }

    #[test]
    fn a_session_lives_from_its_last_request() {
        let mut sessions = Sessions::new(secs(60)).expect("a time");
        sessions.served("s", &rank("a", 0), secs(0)).expect("an id");
        sessions.served("s", &rank("a", 1), secs(30)).expect("an id");
        sessions.served("t", &rank("b", 0), secs(30)).expect("an id");
        assert_eq!(sessions.rank_of("s", secs(89)), Some(&rank("a", 1)));
        assert_eq!((sessions.rank_of("s", secs(90)), sessions.rank_of("x", secs(0))), (None, None));
        sessions.forget(&rank("a", 0).worker);
        assert_eq!(sessions.rank_of("s", secs(31)), None);
        assert_eq!(sessions.rank_of("t", secs(31)), Some(&rank("b", 0)));
        sessions.expire(secs(90));
        assert!(sessions.is_empty());
    }

    #[test]
    fn there_is_a_bound() {
        let mut sessions = Sessions::new(secs(60)).expect("a time");
        for id in 0..SESSIONS_MAX as u64 + 3 {
            sessions.served(&id.to_string(), &rank("a", 0), secs(id)).expect("an id");
        }
        assert_eq!(sessions.len(), SESSIONS_MAX);
        assert_eq!(sessions.rank_of("2", secs(0)), None, "it would have ended first");
        assert!(sessions.rank_of("3", secs(0)).is_some());
        assert!(sessions.served("", &rank("a", 0), secs(0)).is_err());
        assert!(sessions.served(&"x".repeat(257), &rank("a", 0), secs(0)).is_err());
        assert!(Sessions::new(secs(0)).is_err() && Sessions::new(secs(31_536_001)).is_err());
    }
}
