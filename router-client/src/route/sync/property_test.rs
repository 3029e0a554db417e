//! Properties that hold for all sequences of events.

use super::fixtures_test::*;
use super::*;
use crate::route::active::{ActiveRequest, LoadDigest, RouterId};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const REQUESTS: u8 = 6;

#[derive(Debug, Clone)]
enum Step {
    Add(u8, u32, Vec<u64>),
    Complete(u8),
    Free(u8),
    Flush,
    Wait(u64),
}

fn path() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(0_u64..3, 0..6)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..REQUESTS, 0_u32..2, path()).prop_map(|(id, rank, path)| Step::Add(id, rank, path)),
        2 => (0..REQUESTS).prop_map(Step::Complete),
        3 => (0..REQUESTS).prop_map(Step::Free),
        3 => Just(Step::Flush),
        1 => (0_u64..8_000).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 0..60)
}

/// Requests of one router in any state: ranks, blocks, and whether their prefills completed.
fn state() -> impl Strategy<Value = Vec<(u8, u32, Vec<u64>, bool)>> {
    proptest::collection::vec((0..REQUESTS * 2, 0_u32..2, path(), any::<bool>()), 0..12)
}

/// Counts requests without sending them.
fn fill(router: &mut Router, state: &[(u8, u32, Vec<u64>, bool)]) {
    for (id, rank, path, is_completed) in state {
        let id = id.to_string();
        router.count(&id, *rank, path, Duration::ZERO);
        if *is_completed {
            router.loads.mark_prefill_completed(&router.key(&id), Duration::ZERO);
        }
    }
}

fn items() -> impl Strategy<Value = Vec<SyncItem>> {
    let id = || prop_oneof![9 => (0..REQUESTS).prop_map(|id| id.to_string()), 1 => ".{0,3}"];
    let shared = move || id().prop_map(|id| Arc::<str>::from(&*id));
    let router = || (0_u64..4).prop_map(RouterId);
    let added = (router(), (0..REQUESTS), 0_u32..3, path(), 0_u32..8, any::<bool>());
    let added = added.prop_map(|(router, id, number, path, blocks, is_prefill_completed)| {
        let of = Router::new(router.0);
        let hashes = chain(&path);
        SyncItem::Added(ActiveRequest {
            key: of.key(&id.to_string()),
            worker: rank(number),
            blocks: if blocks < 6 { u32::try_from(path.len()).expect("short") } else { blocks },
            hashes,
            input_tokens: u64::from(blocks) * 16,
            prefill_tokens: u64::from(blocks),
            is_prefill_completed,
            expected_output_tokens: (blocks > 3).then_some(u64::from(blocks)),
            overlap_blocks: blocks,
        })
    });
    let entries = proptest::collection::vec((shared(), 0_u64..3), 0..4);
    let ends = || proptest::option::of(shared());
    let item = prop_oneof![
        4 => added,
        2 => shared().prop_map(|id| SyncItem::PrefillCompleted { id }),
        2 => shared().prop_map(|id| SyncItem::Freed { id }),
        1 => (0_u64..3, any::<u64>()).prop_map(|(requests, sum)| SyncItem::Digest(LoadDigest { requests, sum })),
        1 => router().prop_map(|of| SyncItem::AskList { of }),
        2 => (ends(), ends(), entries)
            .prop_map(|(after, until, entries)| SyncItem::List(SyncList { after, until, entries })),
        1 => (router(), proptest::collection::vec(shared(), 0..4))
            .prop_map(|(of, ids)| SyncItem::AskRequests { of, ids }),
    ];
    proptest::collection::vec(item, 0..6)
}

proptest! {
    /// Without loss, replicas have the router's state after each flush, and never ask.
    #[test]
    fn flushes_tell_all_that_happened(steps in steps()) {
        let mut a = Router::new(1);
        let mut b = Router::new(2);
        let mut now = Duration::ZERO;
        for step in steps.iter().chain([&Step::Wait(8_000), &Step::Flush]) {
            match step {
                Step::Add(id, rank, path) => drop(a.add(&id.to_string(), *rank, path, now)),
                Step::Complete(id) => a.complete(&id.to_string(), now),
                Step::Free(id) => a.free(&id.to_string()),
                Step::Wait(millis) => now += Duration::from_millis(*millis),
                Step::Flush => {
                    a.expire(now);
                    let messages = a.flush(now);
                    b.receive_all(&messages, now);
                    a.assert_agrees(&b);
                }
            }
        }
        b.loads.validate();
        let counts = b.sync.counts();
        prop_assert!(counts.digests_equal > 0);
        prop_assert_eq!((counts.digests_differing, counts.healed()), (0, 0));
    }

    /// Whatever a replica's state, one digest is enough to correct it.
    #[test]
    fn one_digest_heals_everything(truth in state(), belief in state(), others in state()) {
        let mut a = Router::new(1);
        let mut b = Router::new(2);
        let now = Duration::ZERO;
        fill(&mut a, &truth);
        fill(&mut b, &others);
        // The replica's state, as if the router had sent it.
        let mut false_a = Router::new(1);
        fill(&mut false_a, &belief);
        for id in 0..REQUESTS * 2 {
            let told = false_a.loads.request(&false_a.key(&id.to_string()));
            let items: Vec<_> = told.map(SyncItem::Added).into_iter().collect();
            b.receive(&SyncMessage { from: a.own, items }, now);
        }
        prop_assert_eq!(b.loads.digest_of_router(a.own), false_a.loads.digest_of_router(a.own));
        talk(&mut [&mut a, &mut b], now);
        a.assert_agrees(&b);
        a.loads.validate();
        b.loads.validate();
        let differed = false_a.loads.digest_of_router(a.own) != a.loads.digest_of_router(a.own);
        prop_assert_eq!(b.sync.counts().lists_asked, u64::from(differed));
    }

    /// Messages with any content affect only what their sender may change.
    #[test]
    fn anything_may_come(
        own in state(),
        messages in proptest::collection::vec((0_u64..4, items()), 0..20),
    ) {
        let mut b = Router::new(2);
        let now = Duration::ZERO;
        fill(&mut b, &own);
        for (from, items) in messages {
            let from = RouterId(from);
            let others: Vec<_> =
                (0..4).map(RouterId).filter(|other| *other != from).collect();
            let digests = |of: &Router| -> Vec<_> {
                others.iter().map(|other| of.loads.digest_of_router(*other)).collect()
            };
            let before = digests(&b);
            b.receive(&SyncMessage { from, items }, now);
            prop_assert_eq!(digests(&b), before);
            b.loads.validate();
            b.flush(now);
        }
        b.expire(CONFIG.lease);
        prop_assert!(b.loads.is_empty());
    }
}
