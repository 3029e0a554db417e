//! Presence of the engine at a link's socket: decides whether another worker may take over the socket.

use crossbeam_utils::atomic::AtomicCell;
use kvasir_proto::types::{Cursor, Incarnation, SourceStatus};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// Presence of the engine at a socket, as its link has observed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Presence {
    /// The first connection attempt is running.
    #[default]
    Pending,
    /// The engine is connected.
    There,
    /// A process is connected after an interruption. It is not yet proven to be the same engine.
    Unproven,
    /// The engine is not connected.
    Away,
    /// The engine has begun a new incarnation since the worker was registered.
    Renewed,
}

impl Presence {
    /// Whether another worker may take over the socket.
    pub(super) const fn yields(self) -> bool {
        match self {
            Self::Pending | Self::There => false,
            Self::Unproven | Self::Away | Self::Renewed => true,
        }
    }
}

/// Tracks the presence of an engine by the commands of its link.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts of a link, each by itself")]
pub(super) struct PresenceTracker {
    shared: Arc<AtomicCell<Presence>>,
    incarnation: Option<Incarnation>,
    /// Whether the link has dropped its blocks and incarnation because the engine was disconnected for long.
    is_expired: bool,
    was_connected: bool,
    is_connected: bool,
    verified_at: Option<Duration>,
}

impl PresenceTracker {
    /// Creates the tracker of a link that starts, or resumes from a cursor.
    pub(super) fn new(shared: Arc<AtomicCell<Presence>>, resumed: Option<&SourceStatus>) -> Self {
        let applied = resumed.and_then(|status| status.applied);
        Self {
            shared,
            incarnation: applied.map(|cursor| cursor.incarnation),
            is_expired: false,
            was_connected: applied.is_some(),
            is_connected: false,
            verified_at: None,
        }
    }

    fn set(&self, presence: Presence) {
        if self.shared.load() != Presence::Renewed {
            self.shared.store(presence);
        }
    }

    /// Records that a batch was applied. A new incarnation makes the engine `Renewed`; a batch over a connected link
    /// makes it `There`.
    pub(super) fn note_applied(&mut self, cursor: &Cursor) {
        let known = self.incarnation.replace(cursor.incarnation);
        if known.is_some_and(|known| known != cursor.incarnation) {
            self.set(Presence::Renewed);
        } else if self.is_connected {
            self.set(Presence::There);
        }
        self.is_expired = false;
    }

    /// Records that the link has dropped all blocks. The engine was disconnected for long (`is_expired`), or began a
    /// new incarnation.
    pub(super) fn note_cleared(&mut self, is_expired: bool) {
        if self.incarnation.is_some() && !is_expired && !self.is_expired {
            self.set(Presence::Renewed);
        }
        self.is_expired |= is_expired;
    }

    /// Records that the first connection attempt has failed.
    pub(super) fn note_unreachable(&self) {
        self.set(Presence::Away);
    }

    /// Records the link's status: the engine is `There` after a first connection or a verification, `Unproven` after a
    /// reconnection, and `Away` after a disconnection.
    pub(super) fn note_status(&mut self, status: &SourceStatus) {
        let was_connected = mem::replace(&mut self.is_connected, status.connected);
        match (was_connected, status.connected) {
            (false, true) => {
                let is_first = !mem::replace(&mut self.was_connected, true);
                self.set(if is_first { Presence::There } else { Presence::Unproven });
            }
            (true, false) => self.set(Presence::Away),
            (true, true) if self.verified_at != status.verified_at => self.set(Presence::There),
            (true, true) | (false, false) => {}
        }
        self.verified_at = status.verified_at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::types::SourceState;

    fn cursor(incarnation: u128) -> Cursor {
        Cursor { incarnation: Incarnation(incarnation), sequence: 1, fingerprint: None }
    }

    fn status(connected: bool, verified_ms: Option<u64>) -> SourceStatus {
        let verified_at = verified_ms.map(Duration::from_millis);
        SourceStatus {
            state: SourceState::Exact,
            connected,
            verified_at,
            ..SourceStatus::default()
        }
    }

    #[test]
    fn a_presence_follows_the_commands_of_a_link() {
        let tracker = |resumed: Option<&SourceStatus>| {
            let shared = Arc::new(AtomicCell::default());
            (PresenceTracker::new(Arc::clone(&shared), resumed), shared)
        };
        let (mut link, shared) = tracker(None);
        link.note_status(&status(false, None));
        assert_eq!(shared.load(), Presence::Pending);
        link.note_unreachable();
        assert_eq!(shared.load(), Presence::Away);
        link.note_status(&status(true, None));
        link.note_cleared(false);
        link.note_applied(&cursor(1));
        assert_eq!(shared.load(), Presence::There, "its first incarnation");
        for proof in [true, false] {
            link.note_status(&status(false, None));
            assert_eq!(shared.load(), Presence::Away);
            link.note_status(&status(true, None));
            assert_eq!(shared.load(), Presence::Unproven);
            if proof {
                link.note_applied(&cursor(1));
            } else {
                link.note_status(&status(true, Some(7)));
            }
            assert_eq!(shared.load(), Presence::There);
        }
        // Disconnected for long: the blocks are dropped, and the same process comes back.
        link.note_cleared(true);
        link.note_cleared(false);
        link.note_applied(&cursor(1));
        assert_eq!(shared.load(), Presence::There);
        link.note_cleared(false);
        assert_eq!(shared.load(), Presence::Renewed);
        link.note_status(&status(false, None));
        assert_eq!(shared.load(), Presence::Renewed, "it stays so");

        let before = SourceStatus { applied: Some(cursor(1)), ..SourceStatus::default() };
        let (mut link, shared) = tracker(Some(&before));
        link.note_status(&status(true, None));
        assert_eq!(
            shared.load(),
            Presence::Unproven,
            "another process of this server saw the engine"
        );
        link.note_applied(&cursor(2));
        assert_eq!(shared.load(), Presence::Renewed);
    }
}
