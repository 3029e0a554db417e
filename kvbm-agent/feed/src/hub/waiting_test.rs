use super::hub_test::{hub_of, published, removed, stored};
use super::waiting::Waiting;
use super::*;
use kvasir_proto::types::{BlockName, CopyMode, DpRank, KvEvent, LocalHash, StoredBlock, Tier};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance};
use tokio_util::sync::CancellationToken;

const INTERVAL: Duration = Duration::from_millis(100);

const fn batching(blocks_max: usize) -> BatchingConfig {
    BatchingConfig { interval: INTERVAL, blocks_max }
}

fn batched(blocks_max: usize) -> Arc<Hub> {
    let config = HubConfig { batching: batching(blocks_max), ..HubConfig::DEFAULT };
    hub_of(config, CopyMode::Counted).expect("a hub")
}

/// Change of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Stored(Option<BlockName>, BlockName, Option<LocalHash>, Tier),
    Removed(BlockName, Tier),
    Gone(BlockName, Tier),
    Cleared,
}

/// Changes of each rank, block by block. They determine the held blocks, however copies count.
fn changes<'a>(
    batches: impl Iterator<Item = (DpRank, &'a [KvEvent])>,
) -> BTreeMap<DpRank, Vec<Change>> {
    let mut ranks: BTreeMap<DpRank, Vec<Change>> = BTreeMap::new();
    for (rank, events) in batches {
        let rank = ranks.entry(rank).or_default();
        for event in events {
            match event {
                KvEvent::Stored { parent, tier, blocks } => {
                    let mut parent = *parent;
                    for StoredBlock { name, local } in blocks {
                        rank.push(Change::Stored(parent, *name, Some(*local), *tier));
                        parent = Some(*name);
                    }
                }
                KvEvent::StoredNames { tier, names } => {
                    let stored = names.iter().map(|name| Change::Stored(None, *name, None, *tier));
                    rank.extend(stored);
                }
                KvEvent::Removed { tier, names } => {
                    rank.extend(names.iter().map(|name| Change::Removed(*name, *tier)));
                }
                KvEvent::Gone { tier, names } => {
                    rank.extend(names.iter().map(|name| Change::Gone(*name, *tier)));
                }
                KvEvent::Cleared => rank.push(Change::Cleared),
                KvEvent::ClearedTier(_) => panic!("not drawn"),
            }
        }
    }
    ranks
}

fn event() -> impl Strategy<Value = KvEvent> {
    let name = || (0_u64..8).prop_map(BlockName);
    let tier = || prop_oneof![3 => Just(Tier::Device), 1 => Just(Tier::Host)];
    let block =
        (name(), 0_u64..4).prop_map(|(name, local)| StoredBlock { name, local: LocalHash(local) });
    prop_oneof![
        8 => (proptest::option::of(name()), tier(), vec(block, 1..4))
            .prop_map(|(parent, tier, blocks)| KvEvent::Stored { parent, tier, blocks }),
        1 => (tier(), vec(name(), 1..3))
            .prop_map(|(tier, names)| KvEvent::StoredNames { tier, names }),
        8 => (tier(), vec(name(), 1..3))
            .prop_map(|(tier, names)| KvEvent::Removed { tier, names }),
        2 => (tier(), vec(name(), 1..3)).prop_map(|(tier, names)| KvEvent::Gone { tier, names }),
        1 => Just(KvEvent::Cleared),
    ]
}

proptest! {
    #[test]
    fn what_is_merged_is_what_was_published(
        blocks_max in 1_usize..40,
        batches in vec((0_u32..3, vec(event(), 0..5), 0_u64..60), 0..60),
    ) {
        let mut waiting = Waiting::new(batching(blocks_max));
        let begin = Instant::now();
        let mut at = Duration::ZERO;
        let mut merged: Vec<(DpRank, Vec<KvEvent>)> = Vec::new();
        let mut oldest = None;
        for (rank, events, pause) in &batches {
            at += Duration::from_millis(*pause);
            merged.extend(waiting.take_due(begin + at));
            if waiting.blocks() == 0 {
                oldest = None;
            }
            waiting.add(*rank, events.clone(), begin + at);
            merged.extend(waiting.take_due(begin + at));
            prop_assert!(waiting.blocks() < blocks_max);
            prop_assert_eq!(waiting.due_at().is_some(), waiting.blocks() > 0);
            if let Some(due) = waiting.due_at() {
                let oldest = *oldest.get_or_insert(at);
                prop_assert_eq!(due, begin + oldest + INTERVAL, "the first waits so long");
            }
            let cleared = |(at, events): &(DpRank, Vec<KvEvent>)| {
                at == rank && events.contains(&KvEvent::Cleared)
            };
            let clears = events.contains(&KvEvent::Cleared);
            prop_assert!(!clears || merged.iter().any(cleared), "a clear does not wait");
        }
        merged.extend(waiting.take_all());
        prop_assert_eq!((waiting.blocks(), waiting.due_at()), (0, None));
        let given = batches.iter().filter(|(_, events, _)| !events.is_empty());
        let given = changes(given.map(|(rank, events, _)| (*rank, &**events)));
        prop_assert_eq!(changes(merged.iter().map(|(rank, events)| (*rank, &**events))), given);
    }
}

#[test]
fn bounds_are_checked() {
    let refused = |interval, blocks_max| {
        let config =
            HubConfig { batching: BatchingConfig { interval, blocks_max }, ..HubConfig::DEFAULT };
        hub_of(config, CopyMode::Counted).expect_err("refused").to_string()
    };
    let late = refused(Duration::from_secs(11), 1);
    assert_eq!(late, "the batch interval is 11s, must be at most 10s");
    for blocks_max in [0, BATCH_BLOCKS_MAX + 1] {
        let refused = refused(INTERVAL, blocks_max);
        assert_eq!(refused, format!("the batch limit is {blocks_max} blocks, must be 1 to 65536"));
    }
}

/// Waiting batches have no visible number.
#[tokio::test(start_paused = true)]
async fn batches_of_a_rank_are_published_as_one_when_the_first_has_waited() {
    let hub = batched(100);
    let inlet = hub.open("engine", CopyMode::Counted).expect("a source");
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let runner = Arc::clone(&hub);
    let stopped = stop.clone();
    tasks.spawn(async move { runner.run(stopped).await });
    let mut news = hub.feed().news();
    for (name, rank) in [(1, 0), (2, 1), (3, 0)] {
        let taken = inlet.take(rank, vec![stored(&[name], &[name])]).expect("taken");
        assert_eq!(taken.sequence, None);
        advance(INTERVAL / 4).await;
    }
    inlet.take(0, vec![removed(&[1]), removed(&[3])]).expect("taken");
    assert_eq!((hub.feed().status().head, hub.waiting_blocks()), (None, 5));
    news.changed().await.expect("the hub is there");
    news.wait_for(|news| news.head == Some(1)).await.expect("the hub is there");
    let first = vec![stored(&[1], &[1]), stored(&[3], &[3]), removed(&[1, 3])];
    assert_eq!(published(&hub), [(0, first), (1, vec![stored(&[2], &[2])])]);
    assert_eq!(hub.waiting_blocks(), 0);
    // The next batch waits as long.
    inlet.take(0, vec![stored(&[4], &[4])]).expect("taken");
    let asked = Instant::now();
    news.wait_for(|news| news.head == Some(2)).await.expect("the hub is there");
    assert!(asked.elapsed() >= INTERVAL, "{:?}", asked.elapsed());
    stop.cancel();
    tasks.join_next().await.expect("a task").expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn size_clears_and_the_end_do_not_wait() {
    let hub = batched(4);
    let inlet = hub.open("engine", CopyMode::Counted).expect("a source");
    inlet.take(0, vec![stored(&[1, 2], &[1, 2])]).expect("taken");
    let taken = inlet.take(0, vec![removed(&[2]), stored(&[3], &[3])]).expect("taken");
    assert_eq!(taken.sequence, Some(0), "that is all that may wait");
    inlet.take(0, vec![stored(&[4], &[4])]).expect("taken");
    inlet.clear();
    inlet.take(0, vec![stored(&[5], &[5])]).expect("taken");
    assert_eq!((published(&hub).len(), hub.waiting_blocks()), (2, 1));
    hub.flush();
    hub.flush();
    let expected = [
        (0, vec![stored(&[1, 2], &[1, 2]), removed(&[2]), stored(&[3], &[3])]),
        (0, vec![stored(&[4], &[4]), KvEvent::Cleared]),
        (0, vec![stored(&[5], &[5])]),
    ];
    assert_eq!(published(&hub), expected);
}
