/// Sync counters of one router since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SyncCounts {
    /// Messages received, including dropped ones.
    pub messages_received: u64,
    /// Messages handed out for sending.
    pub messages_sent: u64,
    /// Digests of other routers that matched the local state.
    pub digests_equal: u64,
    /// Digests of other routers that differed from the local state.
    pub digests_differing: u64,
    /// Lists requested from other routers.
    pub lists_asked: u64,
    /// Lists of this router's requests whose sending began.
    pub lists_told: u64,
    /// Requests of other routers that were requested because a list contained them.
    pub requests_asked: u64,
    /// Requests of this router sent again because a replica asked for the requests.
    pub requests_told_again: u64,
    /// Requests of other routers freed because a list lacked them or contained a different version.
    pub ghosts_freed: u64,
    /// Requests of other routers freed because these routers sent nothing for too long.
    pub abandoned_freed: u64,
    /// Requests of other routers whose completed prefill was not known locally.
    pub prefills_corrected: u64,
    /// Dropped messages and items.
    pub dropped: SyncDrops,
}

/// Dropped messages and items by reason. Drops that later digests repair come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SyncDrops {
    /// Requests at ranks that are unknown here.
    pub unknown_rank: u64,
    /// Requests that exceed a limit of [`ActiveLoads`](crate::route::ActiveLoads).
    pub full: u64,
    /// Messages from routers beyond [`SYNC_PEERS_MAX`](super::SYNC_PEERS_MAX).
    pub unknown_peer: u64,
    /// This router's events, answers and questions that exceeded the buffer until the next flush.
    pub unsent: u64,
    /// This router's own messages, returned to it.
    pub own_messages: u64,
    /// Requests that the sending router does not own.
    pub foreign: u64,
    /// Items that no router sends: with too many ids, or with hashes that do not match the blocks.
    pub invalid: u64,
}

// === impl SyncCounts ===

impl SyncCounts {
    /// Requests of other routers that were wrong or missing here and were corrected or requested.
    #[must_use]
    pub const fn healed(&self) -> u64 {
        self.ghosts_freed + self.prefills_corrected + self.requests_asked
    }
}
