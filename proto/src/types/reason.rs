use std::fmt;
use std::sync::Arc;
use std::time::Duration;

macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $number:literal $name:literal, $direction:ident;)*) => {
        /// Why the state of a source is worse than exact.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$doc])* $reason = $number,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$reason,)*];

            /// Name of the reason in metrics and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)*
                }
            }

            /// Direction in which answers may be wrong.
            #[must_use]
            pub const fn direction(self) -> Direction {
                match self {
                    $(Self::$reason => Direction::$direction,)*
                }
            }
        }
    };
}

/// Direction in which answers may be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// The worker may have more blocks than answers show.
    MayBeLow,
    /// The worker may have fewer blocks than answers show.
    MayBeHigh,
}

reasons! {
    /// The index rejected blocks: a limit is reached.
    RefusedBlocks = 1 "refused_blocks", MayBeLow;
    /// Blocks were evicted from the index to stay within its byte budget.
    ShedBlocks = 2 "shed_blocks", MayBeLow;
    /// Blocks are of another size than registered, or their tokens do not fill them.
    BlockSize = 3 "block_size", MayBeLow;
    /// Tokens are sent as pairs (SGLang with EAGLE).
    EaglePairs = 4 "eagle_pairs", MayBeLow;
    /// An adapter without a name, or content that Kvasir does not understand.
    Unmatchable = 5 "unmatchable", MayBeLow;
    /// An unknown medium or locality.
    UnknownMedium = 6 "unknown_medium", MayBeLow;
    /// A group of blocks states another kind than before.
    GroupKind = 7 "group_kind", MayBeLow;
    /// Objects of a store whose keys contain no block hash.
    UnnamedObject = 8 "unnamed_object", MayBeLow;
    /// Blocks whose content or position in a prompt is unknown.
    UnknownContent = 9 "unknown_content", MayBeLow;
    /// A named adapter got another number: the blocks under the old number were dropped.
    RenumberedAdapter = 10 "renumbered_adapter", MayBeLow;
    /// The engine's hashes do not cover the prefix.
    UnchainedNames = 11 "unchained_names", MayBeLow;
    /// An event cannot be decoded: it may be a removal.
    UnreadableEvent = 12 "unreadable_event", MayBeHigh;
    /// An event of an unknown kind: it may be a removal.
    UnknownEvent = 13 "unknown_event", MayBeHigh;
    /// A store contradicts the meaning of a held name.
    Contradiction = 14 "contradiction", MayBeHigh;
    /// Blocks of another group were counted as the main group's.
    PresumedGroup = 15 "presumed_group", MayBeHigh;
    /// Events were lost for good.
    LostEvents = 16 "lost_events", MayBeHigh;
    /// Events are missing and are being fetched.
    MissingEvents = 17 "missing_events", MayBeHigh;
    /// A replay, a full copy or a restore is running.
    CatchingUp = 18 "catching_up", MayBeHigh;
    /// The engine or agent is not connected.
    Disconnected = 19 "disconnected", MayBeHigh;
    /// No event has been received yet.
    NothingReceived = 20 "nothing_received", MayBeLow;
    /// Names with a salt, an adapter or keys of their own exceed the memory for their meanings. Blocks that follow a
    /// forgotten name match only after they are stored again.
    ForgottenNames = 21 "forgotten_names", MayBeLow;
    /// The engine has KV-cache groups that it does not announce, or whose kind is unknown here.
    UnannouncedGroups = 22 "unannounced_groups", MayBeHigh;
    /// The engine reported fewer cached tokens than the index had said, for many of the last requests.
    ContradictedByEngine = 23 "contradicted_by_engine", MayBeHigh;
    /// The engine reported more cached tokens than the index had said, for many of the last requests.
    EngineReusesMore = 24 "engine_reuses_more", MayBeLow;
}

impl Reason {
    /// Whether the reason concerns blocks that contradict the registration or cannot be read.
    #[must_use]
    pub const fn is_of_refused_blocks(self) -> bool {
        matches!(
            self,
            Self::BlockSize
                | Self::GroupKind
                | Self::UnnamedObject
                | Self::UnchainedNames
                | Self::UnreadableEvent
                | Self::PresumedGroup
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A reason with its count and an example.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StateReason {
    /// The reason.
    pub reason: Reason,
    /// Number of block operations, events or blocks with this reason; at least 1.
    pub count: u64,
    /// The first such operation, event or block, as `field=value`, without tokens. "" without an example.
    pub example: Arc<str>,
    /// Time when the reason was first seen, on the clock of the reporting process.
    pub since: Duration,
}

impl StateReason {
    /// Adds an observation to a list with one entry per reason. Returns whether the reason is new.
    pub fn note(list: &mut Vec<Self>, seen: Self) -> bool {
        if let Some(known) = list.iter_mut().find(|known| known.reason == seen.reason) {
            known.count = known.count.saturating_add(seen.count);
            return false;
        }
        list.push(seen);
        list.sort_unstable_by_key(|at| at.reason);
        true
    }
}
