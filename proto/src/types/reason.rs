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

            /// Name, as in metrics and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)*
                }
            }

            /// In which way answers may be wrong.
            #[must_use]
            pub const fn direction(self) -> Direction {
                match self {
                    $(Self::$reason => Direction::$direction,)*
                }
            }
        }
    };
}

/// In which way answers may be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// The worker may hold more than answers show.
    MayBeLow,
    /// The worker may hold less than answers show.
    MayBeHigh,
}

reasons! {
    /// The index refused blocks: a limit is reached.
    RefusedBlocks = 1 "refused_blocks", MayBeLow;
    /// Blocks were evicted from the index to stay within its byte budget.
    ShedBlocks = 2 "shed_blocks", MayBeLow;
    /// Blocks are of another size than registered, or their tokens do not fill them.
    BlockSize = 3 "block_size", MayBeLow;
    /// Tokens are sent as pairs (SGLang with EAGLE).
    EaglePairs = 4 "eagle_pairs", MayBeLow;
    /// An adapter without a name, or content that is not understood.
    Unmatchable = 5 "unmatchable", MayBeLow;
    /// A medium or locality that is not known.
    UnknownMedium = 6 "unknown_medium", MayBeLow;
    /// A group of blocks states another kind than before.
    GroupKind = 7 "group_kind", MayBeLow;
    /// Objects of a store whose keys contain no block hash.
    UnnamedObject = 8 "unnamed_object", MayBeLow;
    /// Blocks of which the content or the position in a prompt is not known.
    UnknownContent = 9 "unknown_content", MayBeLow;
    /// A named adapter got another number: what the old number held was dropped.
    RenumberedAdapter = 10 "renumbered_adapter", MayBeLow;
    /// The engine's hashes do not cover the prefix.
    UnchainedNames = 11 "unchained_names", MayBeLow;
    /// An event cannot be read: it may be a removal.
    UnreadableEvent = 12 "unreadable_event", MayBeHigh;
    /// An event of a kind that is not known: it may be a removal.
    UnknownEvent = 13 "unknown_event", MayBeHigh;
    /// A store contradicts what a held name means.
    Contradiction = 14 "contradiction", MayBeHigh;
    /// Blocks of another group were taken for the main group's.
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
    /// More names have a salt, an adapter or keys of their own than are known at a time, so blocks that follow some of them
    /// match nothing until they are stored again.
    ForgottenNames = 21 "forgotten_names", MayBeLow;
}

impl Reason {
    /// Whether it stands for blocks that contradict the registration, or that cannot be read.
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

/// A reason with what was seen of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StateReason {
    /// The reason.
    pub reason: Reason,
    /// Block operations, events or blocks that show it; at least 1.
    pub count: u64,
    /// The first of them, as `field=value`; no tokens. "" for none.
    pub example: Arc<str>,
    /// When it was first seen, by the clock of the process that reports it.
    pub since: Duration,
}

impl StateReason {
    /// Adds what was seen again to a list with one entry a reason. Returns whether the reason is new.
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
