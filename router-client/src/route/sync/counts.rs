/// What one router sent and received, since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SyncCounts {
    /// Messages received, those dropped included.
    pub messages_received: u64,
    /// Messages handed out to be sent.
    pub messages_sent: u64,
    /// Digests of other routers that agreed with what is known here.
    pub digests_equal: u64,
    /// Those that did not.
    pub digests_differing: u64,
    /// Lists asked for.
    pub lists_asked: u64,
    /// Lists of this router's requests begun to be sent.
    pub lists_told: u64,
    /// Requests of other routers asked for, because lists had them.
    pub requests_asked: u64,
    /// Requests of this router sent again, because a replica asked for them.
    pub requests_told_again: u64,
    /// Requests of other routers freed, because lists did not have them, or had them otherwise.
    pub ghosts_freed: u64,
    /// Requests of other routers freed, because nothing was heard of these routers any more.
    pub abandoned_freed: u64,
    /// Requests of other routers whose prefill had completed without that being known here.
    pub prefills_corrected: u64,
    /// What was dropped.
    pub dropped: SyncDrops,
}

/// What was dropped, by reason. What is healed by later digests stands first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SyncDrops {
    /// Requests at ranks that are not known here.
    pub unknown_rank: u64,
    /// Requests beyond a limit of [`ActiveLoads`](crate::route::ActiveLoads).
    pub full: u64,
    /// Messages of routers beyond [`SYNC_PEERS_MAX`](super::SYNC_PEERS_MAX).
    pub unknown_peer: u64,
    /// Events of this router, and answers and questions to others, beyond what is kept until the next flush.
    pub unsent: u64,
    /// This router's own messages, which come back to it.
    pub own_messages: u64,
    /// Requests that a router told of which are not its own.
    pub foreign: u64,
    /// Items that no router sends: with more ids than may be, or hashes that are not those of the blocks.
    pub invalid: u64,
}

// === impl SyncCounts ===

impl SyncCounts {
    /// Requests of other routers that were wrong or absent here and were put right, or asked for.
    #[must_use]
    pub const fn healed(&self) -> u64 {
        self.ghosts_freed + self.prefills_corrected + self.requests_asked
    }
}
