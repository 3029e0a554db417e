use super::*;
use kvasir_blocks::events::RegistrationHandle;
use kvasir_blocks::{BlockTier, EventManager};
use kvasir_proto::types::LocalHash;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Few, so that the queue overflows now and then.
const QUEUED_EVENTS_MAX: usize = 24;

fn chain(blocks: u64) -> Vec<BlockIdentity> {
    let locals: Vec<_> = (0..blocks).map(LocalHash).collect();
    BlockIdentity::chain(&locals).collect()
}

fn event(change: Change, tier: BlockTier, identity: BlockIdentity) -> BlockEvent {
    BlockEvent { number: 1, change, registration: Registration { tier, identity } }
}

#[test]
fn blocks_that_follow_one_another_are_one_event() {
    let chain = chain(3);
    let stored = |tier| chain.iter().map(move |at| event(Change::Register, tier, *at));
    let mut events: Vec<_> = stored(BlockTier::Host).chain(stored(BlockTier::Disk)).collect();
    events.extend(chain.iter().rev().map(|at| event(Change::Remove, BlockTier::Host, *at)));
    let names: Vec<_> = chain.iter().map(|at| BlockName(at.sequence.0)).collect();
    let blocks: Vec<_> = chain
        .iter()
        .map(|at| StoredBlock { name: BlockName(at.sequence.0), local: at.local })
        .collect();
    let removed = names.iter().rev().copied().collect();
    assert_eq!(
        changes(&events),
        [
            KvEvent::Stored { parent: None, tier: Tier::Host, blocks: blocks.clone() },
            KvEvent::Stored { parent: None, tier: Tier::Disk, blocks },
            KvEvent::Removed { tier: Tier::Host, names: removed },
        ]
    );
    let last = &events[2..3];
    let [KvEvent::Stored { parent, blocks, .. }] = &changes(last)[..] else { panic!("one event") };
    assert_eq!((*parent, blocks.len()), (Some(names[1]), 1));
}

#[test]
fn the_index_is_not_told_of_volumes() {
    let block = chain(1)[0];
    assert_eq!(changes(&[event(Change::Register, BlockTier::Volume, block)]), []);
    let registrations = vec![Registration { tier: BlockTier::Volume, identity: block }];
    assert_eq!(everything(&Image { watermark: 1, registrations }), [KvEvent::Cleared]);
}

/// What an index makes of events: names by tier.
#[derive(Debug, Default, PartialEq, Eq)]
struct Index(BTreeSet<(Tier, u64)>);

impl Index {
    fn apply(&mut self, events: Vec<KvEvent>) {
        for event in events {
            match event {
                KvEvent::Stored { tier, blocks, .. } => {
                    self.0.extend(blocks.iter().map(|block| (tier, block.name.0)));
                }
                KvEvent::Removed { tier, names } => {
                    for name in names {
                        assert!(self.0.remove(&(tier, name.0)), "it was held");
                    }
                }
                KvEvent::Cleared => self.0.clear(),
                KvEvent::StoredNames { .. } | KvEvent::Gone { .. } => panic!("never published"),
            }
        }
    }
}

proptest! {
    /// Whatever happens, and however late it is read, the index ends with what is registered.
    #[test]
    fn the_index_ends_with_what_is_registered(
        steps in prop::collection::vec((0..8_usize, 0..4_usize, any::<bool>()), 0..200),
    ) {
        let chain = chain(8);
        let manager = EventManager::new(QUEUED_EVENTS_MAX);
        let mut held: BTreeMap<(usize, usize), RegistrationHandle> = BTreeMap::new();
        let mut index = Index::default();
        let read = |index: &mut Index| {
            let mut events = Vec::new();
            match manager.read(usize::MAX, &mut events) {
                Ok(()) => index.apply(changes(&events)),
                Err(_overflowed) => index.apply(everything(&manager.image())),
            }
        };
        for (block, tier, is_read) in steps {
            let identity = chain[block];
            if held.remove(&(block, tier)).is_none() {
                let registration = Registration { tier: BlockTier::ALL[tier], identity };
                let handle = manager.prepare(registration).publish().expect("it is new");
                held.insert((block, tier), handle);
            }
            if is_read {
                read(&mut index);
            }
        }
        read(&mut index);
        let mut expected = Index::default();
        expected.apply(everything(&manager.image()));
        prop_assert_eq!(index, expected);
    }
}
