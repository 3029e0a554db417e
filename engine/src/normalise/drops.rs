use std::fmt;
use std::iter::zip;

/// Maximum number of distinct unknown media, and of unknown event kinds, that are counted by value. Further
/// values count only in the total.
pub const UNKNOWN_VALUES_MAX: usize = 16;
/// Maximum length of an unknown medium or event kind that is counted by value.
pub const UNKNOWN_VALUE_BYTES_MAX: usize = 64;

/// Whether a dropped operation was irrelevant or wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropKind {
    /// Valid, but the index does not store it.
    Ignored,
    /// Contradicts the registration. Check the engine or the registration.
    Rejected,
}

impl DropKind {
    /// Name, as in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ignored => "ignored",
            Self::Rejected => "rejected",
        }
    }
}

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $reason:ident = $kind:ident $name:literal,)*) => {
        /// Why a block operation never reached the index.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum DropReason {
            $($(#[$doc])* $reason,)*
        }

        impl DropReason {
            /// All reasons, in the order of their counts.
            pub const ALL: &[Self] = &[$(Self::$reason,)*];

            /// Name, as in metrics.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)*
                }
            }

            /// Whether the operation was irrelevant or wrong.
            #[must_use]
            pub const fn kind(self) -> DropKind {
                match self {
                    $(Self::$reason => DropKind::$kind,)*
                }
            }
        }
    };
}

drop_reasons! {
    /// The block is in a store that workers share, and no pool is registered for it.
    Remote = Ignored "remote_ignored",
    /// The medium is unknown.
    UnknownMedium = Ignored "unknown_medium",
    /// The locality is neither local nor remote.
    UnknownLocality = Ignored "unknown_locality",
    /// A further group in a shared store, or one that no store has announced.
    OtherGroup = Ignored "other_group",
    /// A second group with full attention, in a shared store. The first one is the main group.
    OtherMainGroup = Ignored "other_main_group",
    /// The event states a group of an unknown kind, or a further group with invalid fields.
    UnknownGroup = Ignored "unknown_group",
    /// The event states another kind than its group showed before. Blocks of the main group may be missing.
    GroupKind = Rejected "group_kind",
    /// The event shows that another group's blocks were counted as the main group's, before any event had
    /// stated the kind. The source's blocks are no longer reliable.
    PresumedGroup = Rejected "presumed_group",
    /// A single block shorter than the block size.
    PartialBlock = Ignored "partial_block",
    /// The tokens are pairs (SGLang with EAGLE).
    EaglePairs = Ignored "eagle_pairs",
    /// One copy of a block is removed, and the engine states that others remain.
    CopiesRemain = Ignored "copies_remain",
    /// The event's kind is unknown.
    UnknownEvent = Ignored "unknown_event",
    /// The key of a store's object contains no block hash.
    UnnamedObject = Rejected "unnamed_object",
    /// A connector's chunk states an unknown parent, so its position in a prompt is unknown.
    UnknownParent = Ignored "unknown_parent",
    /// A connector's chunk states no keys, but the source has salted prompts.
    KeysAbsent = Ignored "keys_absent",
    /// The event's block size differs from the source's.
    BlockSize = Rejected "block_size",
    /// The event states a number of tokens for a block that differs from its block size.
    NumBlockTokens = Rejected "num_block_tokens",
    /// The number of hashes differs from the number of blocks in the tokens, or of local hashes.
    TokenCount = Rejected "token_count",
    /// SGLang before 0.5.6: its hashes do not cover the prefix. Upgrade SGLang.
    UnchainedNames = Rejected "unchained_names",
    /// The event is unreadable.
    Unreadable = Rejected "unreadable",
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

const REASONS: usize = DropReason::ALL.len();

/// Block operations that did not reach the index, by reason. Together with the operations of the normalised
/// events, they are all operations received. A stored or removed event counts as one operation per name. A
/// clear, an event of unknown kind, and an event without a countable list of names count as one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Drops {
    counts: [u64; REASONS],
    unknown_media: Values,
    unknown_events: Values,
    /// Events of unknown kinds, except kinds that are known to have no effect.
    unknown_event_count: u64,
    stated_block_size: Option<StatedBlockSize>,
}

/// Tokens per block that an event states, if they differ from the source's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatedBlockSize {
    /// Tokens per block.
    pub tokens: u64,
    /// The event's medium, as sent; "" if it states none.
    pub medium: Box<str>,
}

/// Operations by unknown value: the first [`UNKNOWN_VALUES_MAX`] values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Values(Vec<(Box<str>, u64)>);

impl Values {
    /// Counts operations for a value. Beyond the limits on values and their length, new values are ignored.
    fn add(&mut self, value: &str, operations: u64) {
        let known = self.0.iter_mut().find(|(known, _)| **known == *value);
        if let Some((_, count)) = known {
            *count = count.saturating_add(operations);
        } else if self.0.len() < UNKNOWN_VALUES_MAX && value.len() <= UNKNOWN_VALUE_BYTES_MAX {
            self.0.push((value.into(), operations));
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&str, u64)> + Clone + '_ {
        self.0.iter().map(|(value, count)| (&**value, *count))
    }

    fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(value, count)| self.add(value, count));
    }
}

impl Drops {
    /// Counts dropped operations.
    pub(super) fn add(&mut self, reason: DropReason, operations: u64) {
        // `counts` has one element per reason.
        if let Some(count) = self.counts.get_mut(reason as usize) {
            *count = count.saturating_add(operations);
        }
    }

    /// Counts operations on an unknown medium.
    pub(super) fn add_unknown_medium(&mut self, medium: &str, operations: u64) {
        self.add(DropReason::UnknownMedium, operations);
        self.unknown_media.add(medium, operations);
    }

    /// Counts an event of unknown kind.
    pub(super) fn add_unknown_event(&mut self, kind: &str) {
        self.add(DropReason::UnknownEvent, 1);
        self.unknown_events.add(kind, 1);
        self.unknown_event_count = self.unknown_event_count.saturating_add(1);
    }

    /// Records a block size that differs from the source's.
    pub(super) fn note_block_size(&mut self, stated: StatedBlockSize) {
        self.stated_block_size = Some(stated);
    }

    /// Number of operations dropped for `reason`.
    #[must_use]
    pub fn count(&self, reason: DropReason) -> u64 {
        self.counts.get(reason as usize).copied().unwrap_or(0)
    }

    /// All reasons with at least one operation, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        let counts = zip(DropReason::ALL, self.counts).map(|(&reason, count)| (reason, count));
        counts.filter(|&(_, count)| count > 0)
    }

    /// Number of operations dropped, for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// Unknown media with their operations: the first [`UNKNOWN_VALUES_MAX`], each at most
    /// [`UNKNOWN_VALUE_BYTES_MAX`] long.
    pub fn unknown_media(&self) -> impl Iterator<Item = (&str, u64)> + '_ {
        self.unknown_media.iter()
    }

    /// Unknown event kinds with their number of events, except kinds that are known to have no effect. The
    /// first [`UNKNOWN_VALUES_MAX`], each at most [`UNKNOWN_VALUE_BYTES_MAX`] long.
    pub fn unknown_events(&self) -> impl Iterator<Item = (&str, u64)> + Clone + '_ {
        self.unknown_events.iter()
    }

    /// Number of events of unknown kinds, except kinds that are known to have no effect.
    #[must_use]
    pub const fn unknown_event_count(&self) -> u64 {
        self.unknown_event_count
    }

    /// The engine's latest block size that differs from the source's: the cause of [`DropReason::BlockSize`]
    /// or [`DropReason::NumBlockTokens`].
    #[must_use]
    pub const fn stated_block_size(&self) -> Option<&StatedBlockSize> {
        self.stated_block_size.as_ref()
    }

    /// Adds the later counts in `other`.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in zip(&mut self.counts, other.counts) {
            *count = count.saturating_add(more);
        }
        self.unknown_media.merge(&other.unknown_media);
        self.unknown_events.merge(&other.unknown_events);
        self.unknown_event_count =
            self.unknown_event_count.saturating_add(other.unknown_event_count);
        if other.stated_block_size.is_some() {
            self.stated_block_size.clone_from(&other.stated_block_size);
        }
    }
}
