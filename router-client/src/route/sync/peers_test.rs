//! Tests routers that join, leave and become silent.

use super::answers::ANSWER_INTERVAL;
use super::fixtures_test::*;
use super::peers::SILENCE_MAX;
use super::*;
use crate::route::active::{LoadDigest, RouterId};

const PATH: [u64; 4] = [1, 0, 2, 1];

#[test]
fn as_many_routers_are_remembered_as_may_be() {
    let mut a = Router::new(0);
    let sign = |number: u64| SyncMessage {
        from: RouterId(number),
        items: vec![SyncItem::Digest(LoadDigest::default())],
    };
    let all = SYNC_PEERS_MAX as u64;
    for number in 1..=all + 3 {
        a.receive(&sign(number), secs(0));
    }
    assert_eq!((a.sync.peers(secs(0)), a.sync.counts().dropped.unknown_peer), (SYNC_PEERS_MAX, 3));
    a.receive(&sign(1), SILENCE_MAX - millis(1));
    assert_eq!(
        (a.sync.peers(SILENCE_MAX - millis(1)), a.sync.peers(SILENCE_MAX)),
        (SYNC_PEERS_MAX, 1)
    );
    a.receive(&sign(all + 3), SILENCE_MAX);
    assert_eq!((a.sync.peers(SILENCE_MAX), a.sync.counts().dropped.unknown_peer), (2, 3));
    // However many routers join and leave, the number of pending questions is bounded.
    let other = LoadDigest { requests: 1, sum: 1 };
    for number in 0..all * 3 {
        let from = RouterId(number + all * 2);
        let message = SyncMessage { from, items: vec![SyncItem::Digest(other)] };
        a.receive(&message, SILENCE_MAX * 2 + SILENCE_MAX * u32::try_from(number).expect("few"));
    }
    assert_eq!(a.sync.counts().lists_asked, all);
}

/// A crashed router leaves load for six intervals, not for the leases of its requests. A router that was only
/// disconnected gets its requests back with the list that follows its next digest.
#[test]
fn the_requests_of_a_silent_router_are_freed() {
    let config = SyncConfig { digest_interval: secs(1) };
    let [mut a, mut b] = [1, 2].map(|number| Router::with(number, CONFIG, config));
    for router in [&mut a, &mut b] {
        router.join(0);
        router.join(1);
    }
    for now in [secs(0), ANSWER_INTERVAL] {
        talk(&mut [&mut a, &mut b], now);
    }
    a.add("x", 0, &PATH, secs(2));
    a.add("y", 1, &PATH, secs(2));
    b.add("own", 1, &PATH[..2], secs(2));
    talk(&mut [&mut a, &mut b], secs(2));
    b.expire(secs(8) - millis(1));
    assert_eq!((requests(&b, 0), requests(&b, 1)), (1, 2));
    b.expire(secs(8));
    assert_eq!((requests(&b, 0), requests(&b, 1)), (0, 1));
    assert_eq!(b.sync.counts().abandoned_freed, 2);
    for now in [secs(9), secs(9) + ANSWER_INTERVAL, secs(9) + ANSWER_INTERVAL * 2] {
        talk(&mut [&mut a, &mut b], now);
        b.expire(now);
    }
    a.assert_agrees(&b);
    assert_eq!((requests(&b, 0), requests(&b, 1)), (1, 2));
    assert_eq!(b.sync.counts().abandoned_freed, 2, "it is heard of again");
}
