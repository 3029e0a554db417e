use super::*;
use kvasir_proto::hash::bucket;
use kvasir_proto::shard::{ShardCount, ShardMap};
use kvasir_proto::types::{Cursor, Incarnation, SourceState, WorkerId, WorkerKey};
use proptest::prelude::*;

fn overlap(worker: &str, rank: u32, blocks: u32, speculative_blocks: u32) -> Overlap {
    Overlap {
        worker: WorkerKey { worker: WorkerId::new(worker).expect("a name"), rank },
        blocks,
        reusable_tokens: 0,
        main_group_blocks: blocks,
        speculative_blocks,
        device_blocks: blocks,
        blocks_by_best_tier: [blocks, 0, 0],
        pool_blocks: 0,
        host_blocks: 0,
        disk_blocks: 0,
        state: SourceState::Exact,
        applied: None,
        lag_batches: 0,
        verified_age: None,
        shed_blocks: 0,
        connected: rank == 0,
        may_be_high: false,
    }
}

/// The answer of one index with all these ranks: the contract of `FindMatches`.
fn one_index(ranks: &[Overlap], least: u32, top_k: u32) -> Answer {
    let mut overlaps = ranks.to_vec();
    overlaps.retain(|at| at.blocks.max(at.speculative_blocks) >= least);
    overlaps.sort_by(|a, b| {
        let most = |at: &Overlap| at.blocks.max(at.speculative_blocks);
        most(b).cmp(&most(a)).then_with(|| {
            let name = |at: &Overlap| (at.worker.worker.as_str().to_owned(), at.worker.rank);
            name(a).cmp(&name(b))
        })
    });
    let listed = if top_k == 0 { overlaps.len() } else { top_k as usize };
    overlaps.truncate(listed);
    let best_overlap_blocks = ranks.iter().map(|at| at.blocks).max().unwrap_or(0);
    Answer {
        query_blocks: 9,
        best_overlap_blocks,
        overlaps,
        missing_shards: Vec::new(),
        restoring: Vec::new(),
        pools: Vec::new(),
    }
}

fn ranks() -> impl Strategy<Value = Vec<Overlap>> {
    let rank = (0..40_u32, 0..3_u32, 0..6_u32, 0..6_u32);
    let ranks = proptest::collection::btree_map((0..40_u32, 0..3_u32), rank, 0..60);
    ranks.prop_map(|ranks| {
        let rank = |((worker, rank), (_, _, blocks, speculative))| {
            overlap(&format!("worker-{worker}"), rank, blocks, speculative)
        };
        ranks.into_iter().map(rank).collect()
    })
}

/// An assignment of all buckets to shards.
fn map() -> impl Strategy<Value = ShardMap> {
    let moves = proptest::collection::vec((any::<u8>(), any::<u32>()), 0..400);
    (1..=9_u32, moves).prop_map(|(shards, moves)| {
        let even = ShardMap::even(ShardCount::new(shards).expect("a number"));
        moves
            .into_iter()
            .fold(even, |map, (bucket, to)| map.moved(bucket, to % shards).expect("a shard"))
    })
}

proptest! {
    #[test]
    fn all_shards_together_are_one_index(
        ranks in ranks(), map in map(), least in 0..4_u32, top_k in 0..5_u32,
    ) {
        let parts = (0..=map.shards().last()).map(|shard| {
            let own = |at: &&Overlap| map.owner(bucket(&at.worker.worker)) == shard;
            let own: Vec<_> = ranks.iter().filter(own).cloned().collect();
            one_index(&own, least, top_k)
        });
        let parts: Vec<_> = parts.collect();
        let whole = one_index(&ranks, least, top_k);
        prop_assert_eq!(&merge(parts.clone(), top_k), &whole);
        prop_assert_eq!(merge(parts.into_iter().rev().collect(), top_k), whole);
    }

    /// While workers are at two shards, the fresher answer counts, in any order.
    #[test]
    fn of_two_that_have_a_worker_the_fresher_one_counts(
        fresh in ranks(), stale in ranks(), left in 0..9_u8,
    ) {
        let lagging = stale.iter().map(|at| Overlap { state: SourceState::CatchingUp, ..at.clone() });
        let lagging: Vec<_> = lagging.collect();
        let parts = vec![one_index(&fresh, 0, 0), one_index(&lagging, 0, 0)];
        let merged = merge(parts.clone(), 0);
        prop_assert_eq!(&merge(parts.into_iter().rev().collect(), 0), &merged);
        let mut union = fresh.clone();
        union.extend(lagging.into_iter().filter(|at| fresh.iter().all(|it| it.worker != at.worker)));
        let expected = one_index(&union, 0, 0);
        prop_assert_eq!(merged.overlaps, expected.overlaps);
        // Three entries of one rank give the same result in any order.
        let overlap = |state, incarnation, sequence, age| Overlap {
            state,
            applied: Some(Cursor { incarnation: Incarnation(incarnation), sequence, fingerprint: None }),
            verified_age: Some(Duration::from_millis(age)),
            ..overlap("w", 0, 1, 0)
        };
        let mut three = vec![
            overlap(SourceState::Exact, 1, 10, 5),
            overlap(SourceState::Exact, 1, 8, 1),
            overlap(SourceState::Exact, 2, 3, 3),
        ];
        three.rotate_left(usize::from(left % 3));
        if left > 5 {
            three.swap(0, 1);
        }
        // The first incarnation was verified last; of its two entries, the one with more events counts.
        prop_assert_eq!(freshest(&three), Some(&overlap(SourceState::Exact, 1, 10, 5)));
    }
}

#[test]
fn what_is_fresher_is_decided_by_state_then_incarnation_then_events() {
    let base = overlap("w", 0, 3, 0);
    let cursor = |incarnation, sequence| {
        Some(Cursor { incarnation: Incarnation(incarnation), sequence, fingerprint: None })
    };
    let age = |millis| Some(Duration::from_millis(millis));
    let check = |winner: Overlap, loser: Overlap| {
        for pair in [[winner.clone(), loser.clone()], [loser, winner.clone()]] {
            assert_eq!(freshest(&pair), Some(&winner));
        }
    };
    let with = |state, applied, lag_batches, verified_age| Overlap {
        state,
        applied,
        lag_batches,
        verified_age,
        ..base.clone()
    };
    let exact = SourceState::Exact;
    let gap = SourceState::Gap;
    check(with(exact, cursor(1, 1), 9, None), with(gap, cursor(1, 9), 0, age(0)));
    check(with(exact, cursor(1, 9), 0, age(50)), with(exact, cursor(1, 8), 0, age(1)));
    check(with(exact, cursor(2, 1), 0, age(1)), with(exact, cursor(1, 9), 0, age(50)));
    check(with(exact, cursor(1, 9), 0, age(1)), with(exact, cursor(1, 9), 0, age(50)));
    check(with(gap, cursor(1, 9), 0, age(1)), with(gap, cursor(1, 9), 2, age(1)));
    check(with(exact, cursor(1, 0), 0, age(1)), with(exact, None, 0, age(1)));
    // A placement known to one of two replicas counts once, and no other rank is credited for it.
    check(base.clone(), Overlap { speculative_blocks: 8, ..base });
}

#[test]
fn what_is_not_there_yet_is_kept() {
    let worker = |name: &str| WorkerId::new(name).expect("a name");
    let part = |missing_shards, restoring: &[&str]| Answer {
        query_blocks: 4,
        best_overlap_blocks: 0,
        overlaps: Vec::new(),
        missing_shards,
        restoring: restoring.iter().map(|name| worker(name)).collect(),
        pools: Vec::new(),
    };
    let parts = vec![part(vec![], &["b"]), part(vec![1], &["a", "b"]), part(vec![5], &[])];
    let whole = merge(parts, 0);
    assert_eq!((whole.query_blocks, whole.missing_shards), (4, vec![1, 5]));
    assert_eq!(whole.restoring, ["a", "b"].map(worker));
}

/// Every shard lists each pool; the least fresh entry counts.
#[test]
fn a_pool_is_listed_once() {
    let pool = |name: &str, state, held_blocks| PoolState {
        pool: WorkerId::new(name).expect("a name"),
        held_blocks,
        state,
        connected: true,
        lag_batches: 0,
        verified_age: None,
    };
    let part = |pools| Answer { pools, ..Answer::default() };
    let exact = SourceState::Exact;
    let gap = SourceState::Gap;
    let behind = pool("a", gap, 4);
    let less = pool("b", exact, 2);
    let first = vec![pool("a", exact, 3), less.clone()];
    let second = vec![behind.clone(), pool("b", exact, 5)];
    for parts in [[first.clone(), second.clone()], [second, first]] {
        let whole = merge(parts.map(part).to_vec(), 0);
        assert_eq!(whole.pools, [behind.clone(), less.clone()]);
    }
}
