//! Ways to be wrong, which the test must notice.

use kvasir_engine::decode::{Batch, ExtraKey, PerBlock, RawEvent, RawTokens};

/// What is done wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Keys that a connector leaves out are read as no keys.
    AbsentIsEmpty,
    /// A store that contradicts the meaning of a held name replaces the block.
    ContradictionReplaces,
    /// Clears of one tier are passed over.
    TierClearIgnored,
    /// Moves between tiers are passed over.
    MoveIgnored,
    /// The token after each block is passed over.
    LookAheadIgnored,
    /// Images that begin right after a block count as the block's.
    NextImageCounts,
    /// The number of a named adapter is passed over.
    AdapterNumberIgnored,
    /// Blocks of all groups count.
    GroupsIgnored,
    /// Events of kinds that are not known count as harmless.
    UnknownIsHarmless,
    /// A restart loses what names mean, and nothing shows it.
    RestartForgets,
    /// A second copy of a block does not count.
    CopiesAreOne,
}

impl Fault {
    pub const ALL: [Self; 11] = [
        Self::AbsentIsEmpty,
        Self::ContradictionReplaces,
        Self::TierClearIgnored,
        Self::MoveIgnored,
        Self::LookAheadIgnored,
        Self::NextImageCounts,
        Self::AdapterNumberIgnored,
        Self::GroupsIgnored,
        Self::UnknownIsHarmless,
        Self::RestartForgets,
        Self::CopiesAreOne,
    ];

    /// Falsifies a batch before it is normalised.
    pub fn falsify(self, batch: &mut Batch<'_>) {
        let goes = |event: &RawEvent<'_>| match self {
            Self::TierClearIgnored => {
                matches!(event, RawEvent::Cleared(place) if place.medium.is_some())
            }
            Self::MoveIgnored => matches!(event, RawEvent::Moved(_)),
            Self::UnknownIsHarmless => matches!(event, RawEvent::Unknown(_)),
            _ => false,
        };
        batch.events.retain(|event| !goes(event));
        for event in &mut batch.events {
            match event {
                RawEvent::Stored(stored) => match self {
                    Self::AbsentIsEmpty => {
                        let has_tokens =
                            matches!(&stored.tokens, RawTokens::Ids(ids) if !ids.is_empty());
                        if has_tokens && stored.extra_keys.is_none() {
                            let blocks = stored.names.len();
                            let keys = Vec::new();
                            stored.extra_keys = Some(PerBlock { blocks, keys });
                        }
                    }
                    Self::LookAheadIgnored => stored.look_ahead = None,
                    Self::NextImageCounts => {
                        let keys = stored.extra_keys.iter_mut().flat_map(|list| &mut list.keys);
                        let offsets = keys.filter_map(|(_, key)| match key {
                            ExtraKey::Item(_, offset) => Some(offset),
                            _ => None,
                        });
                        offsets.for_each(|offset| *offset = 0);
                    }
                    Self::AdapterNumberIgnored if stored.lora_name.is_some() => {
                        stored.lora_id = None;
                    }
                    Self::GroupsIgnored => {
                        (stored.place.group, stored.place.kind) = (None, None);
                    }
                    _ => {}
                },
                RawEvent::Removed(removed) if self == Self::GroupsIgnored => {
                    removed.place.group = None;
                }
                _ => {}
            }
        }
    }
}
