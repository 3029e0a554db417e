//! Tests each rule of replica sync separately.

use super::answers::{ANSWER_INTERVAL, ANSWERS_MAX};
use super::changes::CHANGES_MAX;
use super::fixtures_test::*;
use super::pack::FLUSH_BYTES_MAX;
use super::peers::{ASK_INTERVAL, LACKING_MAX};
use super::*;
use crate::route::active::{
    ActiveConfig, ActiveRequest, LoadDigest, REQUEST_BLOCKS_MAX, REQUEST_ID_BYTES_MAX, RouterId,
};
use kvasir_proto::types::SequenceHash;
use std::sync::Arc;
use std::time::Duration;

const PATH: [u64; 4] = [1, 0, 2, 1];
const INTERVAL: Duration = secs(5);

fn id(text: &str) -> Arc<str> {
    text.into()
}

fn message(from: &Router, items: Vec<SyncItem>) -> SyncMessage {
    SyncMessage { from: from.own, items }
}

fn digest(of: &Router) -> SyncItem {
    SyncItem::Digest(of.loads.digest_of_router(of.own))
}

/// Two routers that have exchanged first messages and have nothing to send at time 0.
fn two() -> (Router, Router) {
    let mut a = Router::new(1);
    let mut b = Router::new(2);
    for now in [secs(0), ANSWER_INTERVAL] {
        talk(&mut [&mut a, &mut b], now);
    }
    assert_eq!((a.sync.peers(secs(1)), b.sync.peers(secs(1))), (1, 1));
    (a, b)
}

#[test]
fn replicas_hear_of_each_event() {
    let (mut a, mut b) = two();
    a.add("x", 0, &PATH, secs(2));
    b.add("x", 1, &PATH[..2], secs(2));
    assert!(matches!(&a.items(secs(2))[..], [SyncItem::Added(request)]
        if request.key == a.key("x") && request.overlap_blocks == 2 && request.hashes.len() == 4));
    a.sync.local_added(&a.key("x"));
    talk(&mut [&mut a, &mut b], secs(2));
    a.assert_agrees(&b);
    assert_eq!((requests(&a, 1), requests(&b, 0)), (1, 1));
    assert_eq!(b.loads.request(&a.key("x")), a.loads.request(&a.key("x")));
    a.complete("x", secs(3));
    assert_eq!(a.items(secs(3)), [SyncItem::PrefillCompleted { id: id("x") }]);
    let completed = message(&a, vec![SyncItem::PrefillCompleted { id: id("x") }]);
    b.receive(&completed, secs(3));
    a.assert_agrees(&b);
    a.free("x");
    assert_eq!(a.items(secs(3)), [SyncItem::Freed { id: id("x") }]);
    b.receive(&message(&a, vec![SyncItem::Freed { id: id("x") }]), secs(3));
    a.assert_agrees(&b);
    assert_eq!(requests(&b, 0), 0);
    assert_eq!((a.sync.counts().digests_differing, a.sync.counts().healed()), (0, 0));
}

#[test]
fn only_what_is_left_of_changes_is_sent() {
    let (mut a, mut b) = two();
    // A request that begins and ends between two flushes is not sent.
    a.add("x", 0, &PATH, secs(2));
    a.complete("x", secs(2));
    a.free("x");
    assert_eq!(a.flush(secs(2)), []);
    // An addition is sent in its current state.
    a.add("x", 0, &PATH, secs(2));
    a.complete("x", secs(2));
    let items = a.items(secs(2));
    assert!(matches!(&items[..], [SyncItem::Added(request)] if request.is_prefill_completed));
    b.receive(&message(&a, items), secs(2));
    a.assert_agrees(&b);
    // Another request under the same id. Without the `Freed` item, replicas would take it for the one whose prefill
    // completed.
    a.free("x");
    a.add("x", 0, &PATH, secs(2));
    let items = a.items(secs(2));
    assert!(matches!(&items[..], [SyncItem::Freed { .. }, SyncItem::Added(_)]));
    b.receive(&message(&a, items), secs(2));
    a.assert_agrees(&b);
    // A request removed with its rank is not sent; its completed prefill may be.
    a.add("y", 1, &PATH, secs(2));
    a.forget(1);
    assert_eq!(a.flush(secs(2)), []);
    a.complete("x", secs(3));
    a.free("x");
    a.add("x", 0, &PATH, secs(3));
    a.free("x");
    assert_eq!(a.items(secs(3)), [SyncItem::Freed { id: id("x") }]);
}

#[test]
fn a_router_tells_of_its_own_requests_only() {
    let (mut a, mut b) = two();
    a.add("x", 0, &PATH, secs(2));
    talk(&mut [&mut a, &mut b], secs(2));
    // Whatever the caller reports.
    b.sync.local_added(&a.key("x"));
    b.sync.local_prefill_completed(&a.key("x"));
    b.sync.local_freed(&a.key("x"));
    assert_eq!(b.flush(secs(2)), []);
    // Other routers cannot change it.
    let told = a.loads.request(&a.key("x")).expect("under way");
    let mut c = Router::new(3);
    c.receive(&message(&b, vec![SyncItem::Added(told)]), secs(2));
    assert_eq!((c.loads.len(), c.sync.counts().dropped.foreign), (0, 1));
    let freed = vec![SyncItem::Freed { id: id("x") }, SyncItem::PrefillCompleted { id: id("x") }];
    let empty = SyncItem::List(SyncList { after: None, until: None, entries: vec![] });
    b.receive(&message(&c, freed), secs(2));
    b.receive(&message(&c, vec![empty]), secs(2));
    a.assert_agrees(&b);
}

#[test]
fn own_messages_come_back_and_do_nothing() {
    let (mut a, _) = two();
    a.add("x", 0, &PATH, secs(2));
    a.add("y", 0, &PATH, secs(2));
    let added = a.flush(secs(2));
    a.free("x");
    let empty = SyncItem::List(SyncList { after: None, until: None, entries: vec![] });
    let questions = vec![
        SyncItem::AskList { of: a.own },
        SyncItem::AskRequests { of: a.own, ids: vec![id("y")] },
        SyncItem::Freed { id: id("y") },
        SyncItem::Digest(LoadDigest::default()),
        empty,
    ];
    let received = a.sync.counts().messages_received;
    a.receive_all(&added, secs(2));
    let questions = message(&a, questions);
    a.receive(&questions, secs(2));
    assert_eq!(a.loads.len(), 1);
    assert_eq!(a.items(secs(2)), [SyncItem::Freed { id: id("x") }]);
    let counts = a.sync.counts();
    assert_eq!(counts.messages_received - received, 2);
    assert_eq!((counts.lists_asked, counts.lists_told, counts.digests_differing), (0, 0, 0));
    assert!(counts.dropped.own_messages >= 2 && a.sync.peers(secs(2)) == 1);
}

#[test]
fn questions_to_others_are_not_answered() {
    let (mut a, b) = two();
    a.add("x", 0, &PATH, secs(2));
    a.flush(secs(2));
    let other = RouterId(9);
    let items = vec![
        SyncItem::AskList { of: other },
        SyncItem::AskRequests { of: other, ids: vec![id("x")] },
        SyncItem::AskRequests { of: a.own, ids: vec![id("gone")] },
    ];
    a.receive(&message(&b, items), secs(2));
    assert_eq!(a.flush(secs(2)), []);
}

#[test]
fn digests_come_even_if_nothing_changes() {
    let mut a = Router::new(1);
    let sent: Vec<_> = (0..20).filter(|at| !a.flush(secs(*at)).is_empty()).collect();
    assert_eq!(sent, [0, 5, 10, 15]);
    let (mut a, mut b) = two();
    a.add("x", 0, &PATH, secs(2));
    talk(&mut [&mut a, &mut b], secs(2));
    let before = b.sync.counts();
    for at in (10..100).step_by(5) {
        a.loads.renew(&a.key("x"), secs(at));
        let items = a.items(secs(at));
        assert_eq!(items, [digest(&a)]);
        b.receive(&message(&a, items), secs(at));
        b.expire(secs(at));
        assert_eq!(b.loads.len(), 1, "a long request of a router that lives");
    }
    assert_eq!(b.sync.counts().digests_equal, before.digests_equal + 18);
    assert_eq!(b.items(secs(95)).len(), 1, "its own digest, and no question");
    // The router is gone: its requests expire a lease after its last digest.
    b.expire(secs(95) + CONFIG.lease - millis(1));
    assert_eq!(b.loads.len(), 1);
    b.expire(secs(95) + CONFIG.lease);
    assert!(b.loads.is_empty());
    assert_eq!(b.flush(secs(95) + millis(1)), [], "others' requests that expire are not told of");
}

/// Runs `lose` while no message arrives; then one digest repairs the loss.
#[track_caller]
fn check_healed(lose: impl FnOnce(&mut Router)) -> (Router, Router) {
    let (mut a, mut b) = two();
    for (request, number) in [("x", 0), ("y", 1), ("z", 1)] {
        a.add(request, number, &PATH, secs(2));
    }
    b.add("own", 0, &PATH, secs(2));
    talk(&mut [&mut a, &mut b], secs(2));
    lose(&mut a);
    a.flush(secs(3));
    talk(&mut [&mut a, &mut b], secs(2) + INTERVAL);
    a.assert_agrees(&b);
    assert_eq!(b.loads.len(), a.loads.len());
    assert_eq!(b.sync.counts().lists_asked, 1);
    (a, b)
}

#[test]
fn a_digest_heals_what_was_lost() {
    let (_, b) = check_healed(|a| assert!(a.add("w", 1, &PATH, secs(3))));
    assert_eq!(b.sync.counts().requests_asked, 1);
    let (_, b) = check_healed(|a| a.free("y"));
    assert_eq!((b.sync.counts().ghosts_freed, b.sync.counts().healed()), (1, 1));
    let (_, b) = check_healed(|a| ["x", "y", "z"].iter().for_each(|request| a.free(request)));
    assert_eq!(b.sync.counts().ghosts_freed, 3);
    // This repair does not resend the request's blocks.
    let (a, b) = check_healed(|a| a.complete("z", secs(3)));
    assert_eq!((b.sync.counts().prefills_corrected, b.sync.counts().healed()), (1, 1));
    assert_eq!(a.sync.counts().requests_told_again, 0);
    // Both completed and moved: a change of state that fits another request does not hide it.
    let (_, b) = check_healed(|a| {
        a.free("z");
        a.add("z", 0, &PATH, secs(3));
        a.complete("z", secs(3));
    });
    assert_eq!((b.sync.counts().ghosts_freed, b.sync.counts().requests_asked), (1, 1));
}

#[test]
fn a_request_that_moved_is_noticed() {
    let (_, b) = check_healed(|a| {
        a.free("z");
        a.add("z", 0, &PATH, secs(3));
    });
    assert_eq!((requests(&b, 0), requests(&b, 1)), (3, 1));
    // Two requests that changed places have the same sum except for their ranks.
    let (_, b) = check_healed(|a| {
        a.free("x");
        a.free("y");
        a.add("x", 1, &PATH, secs(3));
        a.add("y", 0, &PATH, secs(3));
    });
    assert_eq!((b.sync.counts().ghosts_freed, b.sync.counts().requests_asked), (2, 2));
}

#[test]
fn an_end_before_its_beginning_is_healed() {
    let (mut a, mut b) = two();
    a.add("x", 0, &PATH, secs(2));
    let added = a.flush(secs(2));
    a.free("x");
    let freed = a.flush(secs(2));
    b.receive_all(&freed, secs(2));
    b.receive_all(&added, secs(2));
    assert_eq!(requests(&b, 0), 1, "a ghost");
    talk(&mut [&mut a, &mut b], secs(2) + INTERVAL);
    a.assert_agrees(&b);
    assert_eq!((requests(&b, 0), b.sync.counts().ghosts_freed), (0, 1));
}

#[test]
fn what_is_told_again_or_late_changes_nothing_that_is_known() {
    let (mut a, mut b) = two();
    a.add("x", 0, &PATH, secs(2));
    let added = a.flush(secs(2));
    a.complete("x", secs(2));
    let completed = a.flush(secs(2));
    for messages in [&added, &completed, &added, &completed] {
        b.receive_all(messages, secs(2));
        assert_eq!(requests(&b, 0), 1);
    }
    b.receive_all(&added, secs(4));
    a.assert_agrees(&b);
    assert_eq!(b.loads.next_expiry(), Some(secs(2) + CONFIG.lease));
    b.expire(secs(3) + CONFIG.lease);
    assert_eq!(b.loads.len(), 1, "it was heard of");
    // Another request under the same id replaces it, even if its `Freed` item was lost.
    a.free("x");
    a.add("x", 1, &PATH[..1], secs(4));
    let items = a.items(secs(4));
    b.receive(&message(&a, items[1..].to_vec()), secs(4));
    a.assert_agrees(&b);
}

#[test]
fn a_rank_may_be_known_later() {
    let (mut a, mut b) = two();
    a.join(2);
    a.add("x", 2, &PATH, secs(2));
    talk(&mut [&mut a, &mut b], secs(2));
    talk(&mut [&mut a, &mut b], secs(10));
    assert_eq!((b.loads.len(), b.sync.counts().dropped.unknown_rank), (0, 2));
    b.join(2);
    talk(&mut [&mut a, &mut b], secs(20));
    a.assert_agrees(&b);
    assert_eq!(requests(&b, 2), 1);
    // The rank is removed there first, and here later.
    a.forget(2);
    talk(&mut [&mut a, &mut b], secs(30));
    assert_eq!(requests(&b, 2), 0, "no load is left of a rank that its router no longer knows");
    b.forget(2);
    a.assert_agrees(&b);
}

#[test]
fn who_comes_late_learns_everything_at_once() {
    let (mut a, mut b) = two();
    for number in 0..30 {
        a.add(&format!("a{number}"), number % 2, &PATH[..number as usize % 4], secs(2));
        b.add(&format!("b{number}"), 1, &PATH, secs(2));
    }
    a.complete("a3", secs(2));
    talk(&mut [&mut a, &mut b], secs(2));
    let mut late = Router::new(3);
    let now = secs(2) + ANSWER_INTERVAL;
    late.add("c", 0, &PATH, now);
    talk(&mut [&mut a, &mut b, &mut late], now);
    assert_eq!(late.loads.len(), 61);
    late.assert_agrees(&a);
    late.assert_agrees(&b);
    // A restarted router is a new one; its earlier requests end with their leases.
    let mut again = Router::new(4);
    talk(&mut [&mut a, &mut b, &mut again], now + secs(2));
    assert_eq!(again.loads.len(), 60);
    for at in (6..60).step_by(2) {
        for router in [&mut a, &mut b, &mut again] {
            let keys: Vec<_> =
                (0..30).flat_map(|at| [format!("a{at}"), format!("b{at}")]).collect();
            for id in keys {
                router.loads.renew(&router.key(&id), secs(at));
            }
            router.expire(secs(at));
        }
        talk(&mut [&mut a, &mut b, &mut again], secs(at));
    }
    again.assert_agrees(&a);
    again.assert_agrees(&b);
    assert_eq!(a.loads.len(), 60);
}

#[test]
fn questions_and_answers_have_a_pace() {
    let (mut a, mut b) = two();
    a.add("x", 0, &PATH, secs(2));
    a.flush(secs(2));
    let base = secs(10);
    // One question per digest, but at most one per interval.
    let asked = (0..30).filter(|tenth| {
        let now = base + millis(100 * tenth);
        b.receive(&message(&a, vec![digest(&a)]), now);
        b.items(now).contains(&SyncItem::AskList { of: a.own })
    });
    assert_eq!(asked.collect::<Vec<_>>(), [0, 10, 20]);
    assert_eq!((b.sync.counts().lists_asked, ASK_INTERVAL), (3, secs(1)));
    // All routers receive the answer.
    let ask = vec![
        SyncItem::AskList { of: a.own },
        SyncItem::AskRequests { of: a.own, ids: vec![id("x"), id("x")] },
    ];
    let ask = message(&b, ask);
    let mut lists = vec![];
    let mut told = vec![];
    for tenth in 0..30 {
        let now = base + millis(100 * tenth);
        a.receive(&ask, now);
        let items = a.items(now);
        let count =
            |is_one: fn(&SyncItem) -> bool| items.iter().filter(|item| is_one(item)).count();
        lists.extend(vec![tenth; count(|item| matches!(item, SyncItem::List(_)))]);
        told.extend(vec![tenth; count(|item| matches!(item, SyncItem::Added(_)))]);
    }
    assert_eq!((lists, told), (vec![0, 10, 20], vec![0, 10, 20]));
    assert_eq!((a.sync.counts().lists_told, a.sync.counts().requests_told_again), (3, 3));
}

#[test]
fn long_lists_come_in_parts() {
    let (mut a, mut b) = two();
    let count = SYNC_IDS_MAX * 2 + 5;
    for number in 0..count {
        a.count(&format!("{number:05}"), 0, &PATH[..1], secs(2));
    }
    // Some requests are known already, which other parts of the list lack.
    for known in ["00001", "03000", "04099"] {
        a.sync.local_added(&a.key(known));
    }
    // Ghosts before, between and after the listed ids, and at the borders of the parts.
    let ghosts = ["!", "02000x", "02047x", "04095x", "04100x", "~"];
    for ghost in ghosts {
        a.add(ghost, 1, &PATH, secs(2));
    }
    let items = a.items(secs(2));
    b.receive(&message(&a, items), secs(2));
    assert_eq!(b.loads.len(), ghosts.len() + 3);
    ghosts.iter().for_each(|ghost| a.free(ghost));
    a.flush(secs(3));
    b.receive(&message(&a, vec![digest(&a)]), secs(4));
    let ask = b.items(secs(4));
    assert_eq!(ask[0], SyncItem::AskList { of: a.own });
    a.receive(&message(&b, ask), secs(4));
    let lists = a.items(secs(4));
    let parts = lists.iter().map(|item| {
        let SyncItem::List(list) = item else { panic!("{item:?}") };
        (list.after.as_deref(), list.until.as_deref(), list.entries.len())
    });
    let ends = [None, Some("02047"), Some("04095"), None];
    let expected = [(ends[0], ends[1], 2_048), (ends[1], ends[2], 2_048), (ends[2], ends[3], 5)];
    assert_eq!(parts.collect::<Vec<_>>(), expected);
    // In any order, and one of them twice.
    for part in [2, 0, 2, 1] {
        b.receive(&message(&a, vec![lists[part].clone()]), secs(4));
    }
    assert_eq!((b.loads.len(), b.sync.counts().ghosts_freed), (3, 6));
    talk(&mut [&mut a, &mut b], secs(4));
    a.assert_agrees(&b);
    assert_eq!(b.loads.len(), count);
    assert_eq!(b.sync.counts().requests_asked, count as u64 - 3 + 4, "those listed twice");
}

#[test]
fn messages_are_cut_before_they_are_too_large() {
    let (mut a, mut b) = two();
    let whole: Vec<_> = (0..REQUEST_BLOCKS_MAX as u64).map(|block| block % 3).collect();
    let long = "x".repeat(REQUEST_ID_BYTES_MAX);
    let ids: Vec<_> =
        (100..120).map(|number| format!("{number}{}", "x".repeat(long.len() - 3))).collect();
    for id in &ids {
        assert!(a.add(id, 0, &whole, secs(2)));
    }
    // The size of a flush is bounded too: the rest waits.
    let mut flushes = vec![];
    loop {
        let messages = a.flush(secs(2));
        if messages.is_empty() {
            break;
        }
        assert!(
            messages
                .iter()
                .all(|message| message.items.len() == 1 && message.bytes_max() > 589_824)
        );
        let bytes: usize = messages.iter().map(SyncMessage::bytes_max).sum();
        assert!(bytes < FLUSH_BYTES_MAX + SYNC_MESSAGE_BYTES_MAX, "{bytes}");
        b.receive_all(&messages, secs(2));
        flushes.push(messages.len());
    }
    assert_eq!(flushes, [14, 6]);
    a.assert_agrees(&b);
    // Small items share a message, up to a limit.
    for number in 0..SYNC_ITEMS_MAX * 2 + 1 {
        a.add(&number.to_string(), 0, &[], secs(2));
    }
    let messages = a.flush(secs(2));
    let items: Vec<_> = messages.iter().map(|message| message.items.len()).collect();
    assert_eq!(items, [SYNC_ITEMS_MAX, SYNC_ITEMS_MAX, 1]);
    // A list with the longest ids fits into one message.
    let entries = (0..SYNC_IDS_MAX).map(|_| (id(&long), 0)).collect();
    let list = SyncList { after: Some(id(&long)), until: Some(id(&long)), entries };
    let message = message(&a, vec![SyncItem::List(list)]);
    assert!(message.bytes_max() <= SYNC_MESSAGE_BYTES_MAX && message.bytes_max() > 557_000);
}

#[test]
fn what_is_beyond_a_limit_is_dropped_and_healed() {
    let config = ActiveConfig { requests_max: 400_000, ..CONFIG };
    let [mut a, mut b] = [1, 2].map(|number| Router::with(number, config, SyncConfig::default()));
    for router in [&mut a, &mut b] {
        router.join(0);
    }
    for number in 0..CHANGES_MAX + 7 {
        a.add(&number.to_string(), 0, &[], secs(0));
    }
    assert_eq!(a.sync.counts().dropped.unsent, 7);
    a.complete("0", secs(0));
    a.free("1");
    assert_eq!(a.sync.counts().dropped.unsent, 7, "what is noted already takes no room");
    talk(&mut [&mut a, &mut b], secs(0));
    assert_eq!(b.loads.len(), CHANGES_MAX + 6);
    a.assert_agrees(&b);
    // The same number again, without events: the first digest makes room for as many as can be asked for.
    for number in 0..LACKING_MAX + 9 {
        a.count(&format!("more {number}"), 0, &[], secs(1));
    }
    talk(&mut [&mut a, &mut b], INTERVAL);
    let dropped = b.sync.counts().dropped.unsent + a.sync.counts().dropped.unsent - 7;
    assert!(dropped >= 9 && b.loads.len() < a.loads.len(), "{dropped}");
    assert_eq!(LACKING_MAX, ANSWERS_MAX);
    talk(&mut [&mut a, &mut b], INTERVAL * 2);
    a.assert_agrees(&b);
}

#[test]
fn bad_messages_are_counted() {
    let (mut a, mut b) = two();
    a.add("x", 0, &PATH, secs(2));
    let good = a.loads.request(&a.key("x")).expect("under way");
    let bad = |change: &dyn Fn(&mut ActiveRequest)| {
        let mut request = good.clone();
        change(&mut request);
        SyncItem::Added(request)
    };
    let long = id(&"x".repeat(REQUEST_ID_BYTES_MAX + 1));
    let many: Vec<_> = (0..SYNC_IDS_MAX + 1).map(|number| id(&number.to_string())).collect();
    let entries: Vec<_> = many.iter().map(|id| (Arc::clone(id), 0)).collect();
    let items = vec![
        bad(&|request| request.blocks += 1),
        bad(&|request| request.hashes.truncate(3)),
        bad(&|request| request.input_tokens = u64::MAX),
        bad(&|request| {
            request.hashes.clear();
            request.blocks = u32::MAX;
        }),
        bad(&|request| {
            request.hashes = vec![SequenceHash(1); REQUEST_BLOCKS_MAX + 1];
            request.blocks = u32::try_from(request.hashes.len()).expect("few");
        }),
        SyncItem::Freed { id: id("") },
        SyncItem::PrefillCompleted { id: Arc::clone(&long) },
        SyncItem::AskRequests { of: b.own, ids: vec![long, id("")] },
        SyncItem::AskRequests { of: b.own, ids: many },
        SyncItem::List(SyncList { after: None, until: None, entries }),
    ];
    let expected = items.len() as u64 + 1;
    b.receive(&message(&a, items), secs(2));
    assert_eq!((b.sync.counts().dropped.invalid, b.loads.len()), (expected, 0));
    let many = vec![SyncItem::Freed { id: id("x") }; SYNC_ITEMS_MAX + 3];
    b.receive(&message(&a, many), secs(2));
    assert_eq!(b.sync.counts().dropped.invalid, expected + 3);
    assert_eq!(b.flush(secs(2)), []);
    // The good item again.
    b.receive(&message(&a, vec![SyncItem::Added(good)]), secs(2));
    assert_eq!(b.loads.len(), 1);
    b.loads.validate();
}

#[test]
fn a_full_replica_takes_what_it_has_room_for() {
    let mut a = Router::new(1);
    let config = ActiveConfig { requests_max: 2, ..CONFIG };
    let mut b = Router::with(2, config, SyncConfig::default());
    b.join(0);
    for request in ["x", "y", "z"] {
        a.add(request, 0, &PATH, secs(0));
    }
    talk(&mut [&mut a, &mut b], secs(0));
    assert!(b.loads.len() == 2 && b.sync.counts().dropped.full >= 1);
    a.free("x");
    talk(&mut [&mut a, &mut b], INTERVAL);
    a.loads.forget(a.loads.rank_of(&rank(1)).expect("known"));
    a.assert_agrees(&b);
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    let check = |millis, lease| {
        let config = SyncConfig { digest_interval: Duration::from_millis(millis) };
        config.check(lease).is_ok()
    };
    assert_eq!(SyncConfig::default().check(ActiveConfig::new(CONFIG.block_size).lease), Ok(()));
    assert_eq!(
        [99, 100, 10_000, 10_001].map(|millis| check(millis, secs(30))),
        [false, true, true, false]
    );
    assert_eq!([60_000, 60_001].map(|millis| check(millis, secs(300))), [true, false]);
}
