//! Determines which dropped operations make a source worse than exact, and why.

use super::{DropReason, Drops, StatedBlockSize};
use kvasir_proto::types::Reason;

/// Reasons for the dropped operations, with their numbers and an example.
pub(super) fn of_drops(drops: &Drops) -> Vec<(Reason, u64, String)> {
    let mut reasons: Vec<(Reason, u64, String)> = Vec::new();
    for (dropped, operations) in drops.iter() {
        let Some((reason, operations, example)) = of_drop(dropped, operations, drops) else {
            continue;
        };
        match reasons.iter_mut().find(|(known, ..)| *known == reason) {
            Some((_, count, _)) => *count = count.saturating_add(operations),
            None => reasons.push((reason, operations, example)),
        }
    }
    reasons
}

/// The reason that a dropped operation adds to the source's state, with a count and an example. `None` if the drop
/// does not change the state.
fn of_drop(dropped: DropReason, operations: u64, drops: &Drops) -> Option<(Reason, u64, String)> {
    let plain = |reason| Some((reason, operations, dropped.as_str().to_owned()));
    match dropped {
        DropReason::EaglePairs => plain(Reason::EaglePairs),
        DropReason::GroupKind => plain(Reason::GroupKind),
        DropReason::PresumedGroup => plain(Reason::PresumedGroup),
        DropReason::UnknownGroup => plain(Reason::UnannouncedGroups),
        DropReason::UnnamedObject => plain(Reason::UnnamedObject),
        DropReason::UnchainedNames => plain(Reason::UnchainedNames),
        DropReason::UnknownParent | DropReason::KeysAbsent => plain(Reason::UnknownContent),
        DropReason::UnknownLocality => plain(Reason::UnknownMedium),
        DropReason::UnknownMedium => {
            let medium = drops.unknown_media().next().map_or("", |(medium, _)| medium);
            Some((Reason::UnknownMedium, operations, format!("medium={medium}")))
        }
        DropReason::UnknownEvent => {
            // Excludes kinds that are known to have no effect.
            let events = Some(drops.unknown_event_count()).filter(|events| *events > 0)?;
            let first = drops.unknown_events().next().map_or("(too long)", |(kind, _)| kind);
            Some((Reason::UnknownEvent, events, format!("type={first}")))
        }
        DropReason::BlockSize | DropReason::NumBlockTokens | DropReason::TokenCount => {
            let stated = drops.stated_block_size();
            let example = stated.map(|StatedBlockSize { tokens, medium }| {
                format!("block_size={tokens} medium={medium}")
            });
            let example = example.unwrap_or_else(|| dropped.as_str().to_owned());
            Some((Reason::BlockSize, operations, example))
        }
        // The batch counts unreadable events itself.
        DropReason::Unreadable => None,
        DropReason::Remote
        | DropReason::OtherGroup
        | DropReason::OtherMainGroup
        | DropReason::PartialBlock
        | DropReason::CopiesRemain => None,
    }
}
