use super::*;
use kvasir_blocks::events::RegistrationHandle;
use kvasir_blocks::{BlockTier, EventManager};
use kvasir_proto::types::LocalHash;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Small, so that the queue overflows now and then.
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
        changes(&events, Stream::Worker),
        [
            KvEvent::Stored { parent: None, tier: Tier::Host, blocks: blocks.clone() },
            KvEvent::Stored { parent: None, tier: Tier::Disk, blocks },
            KvEvent::Removed { tier: Tier::Host, names: removed },
        ]
    );
    let last = &events[2..3];
    let [KvEvent::Stored { parent, blocks, .. }] = &changes(last, Stream::Worker)[..] else {
        panic!("one event")
    };
    assert_eq!((*parent, blocks.len()), (Some(names[1]), 1));
}

#[test]
fn what_a_volume_has_is_the_pools_and_not_the_workers() {
    let block = chain(1)[0];
    let worker = Stream::Worker;
    let pool = Stream::Pool;
    let name = BlockName(block.sequence.0);
    let local = block.local;
    let blocks = vec![StoredBlock { name, local }];
    let stored = |tier| KvEvent::Stored { parent: None, tier, blocks: blocks.clone() };
    let removed = KvEvent::Removed { tier: Tier::Disk, names: vec![name] };
    let events = [
        event(Change::Register, BlockTier::Volume, block),
        event(Change::Register, BlockTier::Host, block),
        event(Change::Remove, BlockTier::Volume, block),
    ];
    assert_eq!(changes(&events, worker), [stored(Tier::Host)]);
    assert_eq!(changes(&events, pool), [stored(Tier::Disk), removed]);
    let registered = [BlockTier::Host, BlockTier::Volume];
    let registrations = registered.map(|tier| Registration { tier, identity: block }).to_vec();
    let image = Image { watermark: 1, registrations };
    assert_eq!(everything(&image, worker), [KvEvent::Cleared, stored(Tier::Host)]);
    assert_eq!(everything(&image, pool), [KvEvent::Cleared, stored(Tier::Disk)]);
}

/// An index that reads events: names by tier.
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
                KvEvent::StoredNames { .. } | KvEvent::Gone { .. } | KvEvent::ClearedTier(_) => {
                    panic!("never published")
                }
            }
        }
    }
}

proptest! {
    /// After any changes, and however late events are read, the index equals the registrations.
    #[test]
    fn the_index_ends_with_what_is_registered(
        steps in prop::collection::vec((0..8_usize, 0..4_usize, any::<bool>()), 0..200),
    ) {
        let chain = chain(8);
        let manager = EventManager::new(QUEUED_EVENTS_MAX);
        let mut held: BTreeMap<(usize, usize), RegistrationHandle> = BTreeMap::new();
        // For the worker and for the pool.
        let streams = [Stream::Worker, Stream::Pool];
        let mut indexes = [Index::default(), Index::default()];
        let read = |indexes: &mut [Index; 2]| {
            let mut events = Vec::new();
            let step = match manager.read(usize::MAX, &mut events) {
                Ok(()) => FeedStep::Events(events),
                Err(_overflowed) => FeedStep::Image(manager.image()),
            };
            for (index, stream) in indexes.iter_mut().zip(streams) {
                index.apply(published(&step, stream));
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
                read(&mut indexes);
            }
        }
        read(&mut indexes);
        for (index, stream) in indexes.into_iter().zip(streams) {
            let mut expected = Index::default();
            expected.apply(everything(&manager.image(), stream));
            prop_assert_eq!(index, expected);
        }
    }
}
