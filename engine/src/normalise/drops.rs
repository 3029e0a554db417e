use std::{fmt, iter::zip};

/// Most distinct unknown media, and kinds of events, that are counted by value; further ones are in the total only.
pub const UNKNOWN_VALUES_MAX: usize = 16;
/// Longest unknown medium, or kind of event, that is counted by value.
pub const UNKNOWN_VALUE_BYTES_MAX: usize = 64;

/// Whether a dropped operation was irrelevant or wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropKind {
    /// Correct, but nothing that the index stores.
    Ignored,
    /// Contradicts the registration: check the engine or the registration.
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
            /// All reasons.
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
    /// The block lies in a store that workers share, and there is no pool for it.
    Remote = Ignored "remote_ignored",
    /// The medium is not known.
    UnknownMedium = Ignored "unknown_medium",
    /// The locality is neither local nor remote.
    UnknownLocality = Ignored "unknown_locality",
    /// The group caches something other than full attention.
    OtherGroup = Ignored "other_group",
    /// A second group with full attention: the first one is the main group.
    OtherMainGroup = Ignored "other_main_group",
    /// The event states another kind than its group has shown before, so blocks of the main group may be missing.
    GroupKind = Rejected "group_kind",
    /// The event shows that blocks of a group were taken for the main group's before any event had stated
    /// its kind, wrongly: what the source holds can no longer be relied on.
    PresumedGroup = Rejected "presumed_group",
    /// A single block shorter than the block size.
    PartialBlock = Ignored "partial_block",
    /// Tokens are sent as pairs (SGLang with EAGLE).
    EaglePairs = Ignored "eagle_pairs",
    /// The removal of one copy of a block of which others remain, as the engine states.
    CopiesRemain = Ignored "copies_remain",
    /// The event is of a kind that is not known.
    UnknownEvent = Ignored "unknown_event",
    /// The object is a part of a block; the block is counted with its other part.
    Component = Ignored "component",
    /// The key of a store's object contains no block hash.
    UnnamedObject = Rejected "unnamed_object",
    /// A connector's chunk states a parent that is not known, so its position in a prompt is not known.
    UnknownParent = Ignored "unknown_parent",
    /// A connector's chunk states no keys, at a source of which some prompts are salted.
    KeysAbsent = Ignored "keys_absent",
    /// The event's block size is not the source's.
    BlockSize = Rejected "block_size",
    /// The event states another number of tokens for a block than its size.
    NumBlockTokens = Rejected "num_block_tokens",
    /// The hashes are not as many as the tokens fill blocks, or as the local hashes.
    TokenCount = Rejected "token_count",
    /// SGLang before 0.5.6: its hashes do not cover the prefix. Upgrade it.
    UnchainedNames = Rejected "unchained_names",
    /// The event cannot be read.
    Unreadable = Rejected "unreadable",
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

const REASONS: usize = DropReason::ALL.len();

/// Block operations that never reached the index, by reason. Their sum and the operations of the
/// normalised events are the operations received: a stored or removed event has as many as it has
/// names; a clear, an event of unknown kind and an event whose names cannot be counted have one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Drops {
    counts: [u64; REASONS],
    unknown_media: Values,
    unknown_events: Values,
    /// Events of unknown kinds, but for those that are known to change nothing.
    unknown_event_count: u64,
    stated_block_size: Option<StatedBlockSize>,
}

/// Tokens per block that an event states and that are not the source's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatedBlockSize {
    /// The tokens.
    pub tokens: u64,
    /// The event's medium, as sent; "" for none.
    pub medium: Box<str>,
}

/// Operations by a value that is not known: the first [`UNKNOWN_VALUES_MAX`] values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Values(Vec<(Box<str>, u64)>);

impl Values {
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
    /// Counts operations.
    pub(super) fn add(&mut self, reason: DropReason, operations: u64) {
        // The enumeration is as long as the array.
        if let Some(count) = self.counts.get_mut(reason as usize) {
            *count = count.saturating_add(operations);
        }
    }

    /// Counts operations on a medium that is not known.
    pub(super) fn add_unknown_medium(&mut self, medium: &str, operations: u64) {
        self.add(DropReason::UnknownMedium, operations);
        self.unknown_media.add(medium, operations);
    }

    /// Counts an event of a kind that is not known.
    pub(super) fn add_unknown_event(&mut self, kind: &str) {
        self.add(DropReason::UnknownEvent, 1);
        self.unknown_events.add(kind, 1);
        self.unknown_event_count = self.unknown_event_count.saturating_add(1);
    }

    /// Notes tokens per block that are not the source's.
    pub(super) fn note_block_size(&mut self, stated: StatedBlockSize) {
        self.stated_block_size = Some(stated);
    }

    /// Operations dropped for one reason.
    #[must_use]
    pub fn count(&self, reason: DropReason) -> u64 {
        self.counts.get(reason as usize).copied().unwrap_or(0)
    }

    /// Reasons that occurred, with their operations.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        let counts = zip(DropReason::ALL, self.counts).map(|(&reason, count)| (reason, count));
        counts.filter(|&(_, count)| count > 0)
    }

    /// All operations dropped.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// Media that are not known, with their operations: the first [`UNKNOWN_VALUES_MAX`], each of
    /// at most [`UNKNOWN_VALUE_BYTES_MAX`].
    pub fn unknown_media(&self) -> impl Iterator<Item = (&str, u64)> + '_ {
        self.unknown_media.iter()
    }

    /// Kinds of events that are not known, but for those that are known to change nothing, with the events: the first
    /// [`UNKNOWN_VALUES_MAX`], each of at most [`UNKNOWN_VALUE_BYTES_MAX`].
    pub fn unknown_events(&self) -> impl Iterator<Item = (&str, u64)> + Clone + '_ {
        self.unknown_events.iter()
    }

    /// Events of kinds that are not known, but for those that are known to change nothing.
    #[must_use]
    pub const fn unknown_event_count(&self) -> u64 {
        self.unknown_event_count
    }

    /// Tokens per block that the engine stated last where they were not the source's: what was dropped as
    /// [`DropReason::BlockSize`] or [`DropReason::NumBlockTokens`].
    #[must_use]
    pub const fn stated_block_size(&self) -> Option<&StatedBlockSize> {
        self.stated_block_size.as_ref()
    }

    /// Adds other, later counts to these.
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
