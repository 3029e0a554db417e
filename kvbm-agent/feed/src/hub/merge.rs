use kvasir_proto::limits::EVENT_BLOCKS_MAX;
use kvasir_proto::types::KvEvent;

/// Merges consecutive removals into events of up to [`EVENT_BLOCKS_MAX`] blocks, because engines send one per block.
pub(super) fn merge_removals(events: Vec<KvEvent>) -> Vec<KvEvent> {
    let mut merged: Vec<KvEvent> = Vec::with_capacity(events.len());
    for event in events {
        match (merged.last_mut(), event) {
            (
                Some(KvEvent::Removed { tier: before, names: all }),
                KvEvent::Removed { tier, mut names },
            ) if *before == tier && all.len() + names.len() <= EVENT_BLOCKS_MAX => {
                all.append(&mut names);
            }
            (_, event) => merged.push(event),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::types::{BlockName, LocalHash, StoredBlock, Tier};

    fn removed(tier: Tier, names: std::ops::Range<u64>) -> KvEvent {
        KvEvent::Removed { tier, names: names.map(BlockName).collect() }
    }

    #[test]
    fn removals_in_a_row_are_one_event() {
        let block = StoredBlock { name: BlockName(0), local: LocalHash(0) };
        let stored = KvEvent::Stored { parent: None, tier: Tier::Device, blocks: vec![block] };
        let events = vec![
            removed(Tier::Device, 0..1),
            removed(Tier::Device, 1..3),
            removed(Tier::Host, 3..4),
            stored.clone(),
            removed(Tier::Host, 4..5),
        ];
        let expected = vec![
            removed(Tier::Device, 0..3),
            removed(Tier::Host, 3..4),
            stored,
            removed(Tier::Host, 4..5),
        ];
        assert_eq!(merge_removals(events), expected);
        let full = || removed(Tier::Device, 0..EVENT_BLOCKS_MAX as u64);
        assert_eq!(merge_removals(vec![full(), full()]), [full(), full()]);
    }
}
