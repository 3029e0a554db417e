use super::*;
use kvasir_proto::types::{SequenceHash, WorkerId, WorkerKey};
use std::num::NonZeroU32;
use std::time::Duration;

const CONFIG: ActiveConfig = ActiveConfig::new(NonZeroU32::new(16).expect("not 0"));
const OURS: RouterId = RouterId(1);
const THEIRS: RouterId = RouterId(2);

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn worker(name: &str) -> WorkerKey {
    WorkerKey { worker: WorkerId::new(name).expect("a name"), rank: 0 }
}

fn key(router: RouterId, id: &str) -> RequestKey {
    RequestKey::new(router, id).expect("an id")
}

fn chain(blocks: impl IntoIterator<Item = u64>) -> Vec<SequenceHash> {
    blocks.into_iter().map(SequenceHash).collect()
}

fn request(rank: RankId, hashes: &[SequenceHash]) -> NewRequest<'_> {
    let tokens = hashes.len() as u64 * 16;
    NewRequest {
        rank,
        blocks: PromptBlocks::Chain(hashes),
        input_tokens: tokens,
        prefill_tokens: tokens,
        expected_output_tokens: None,
    }
}

/// Loads with two ranks.
fn two(config: ActiveConfig) -> (ActiveLoads, RankId, RankId) {
    let mut loads = ActiveLoads::new(config);
    let [a, b] = ["a", "b"].map(|name| loads.join(&worker(name)).expect("room"));
    (loads, a, b)
}

#[test]
fn a_request_counts_from_routing_to_its_end() {
    let (mut loads, a, b) = two(CONFIG);
    let first = chain(1..=10);
    let second = chain([1, 2, 3, 14]);
    loads.add(&key(OURS, "1"), request(a, &first), secs(0)).expect("added");
    let shared = loads.shared(&second);
    assert_eq!((shared.of(a), shared.of(b)), (3, 0));
    assert!((loads.load(a).potential_blocks(4, shared.of(a)) - 11.0).abs() < 1e-9);
    loads.add(&key(OURS, "2"), request(a, &second), secs(0)).expect("added");
    let both = loads.load(a);
    assert_eq!((both.requests, both.prefilling_requests), (2, 2));
    assert_eq!((both.prompt_blocks, both.prefill_tokens), (11, 224));
    assert!(loads.load(b).is_empty());
    assert_eq!(loads.mark_prefill_completed(&key(OURS, "1"), secs(1)), Update::Changed(a));
    assert_eq!(loads.mark_prefill_completed(&key(OURS, "1"), secs(1)), Update::Unchanged);
    assert_eq!(loads.load(a).prefill_tokens, 64);
    assert_eq!(loads.free(&key(OURS, "1")), Update::Changed(a));
    assert_eq!(loads.free(&key(OURS, "1")), Update::Unknown);
    assert_eq!(loads.load(a).prompt_blocks, 4);
    assert_eq!(loads.free(&key(OURS, "2")), Update::Changed(a));
    assert!(loads.load(a).is_empty() && loads.is_empty());
    loads.validate();
}

#[test]
fn without_reuse_each_block_counts() {
    let (mut loads, a, _) = two(ActiveConfig { reuse: KvReuse::Unique, ..CONFIG });
    let blocks = chain(1..=10);
    for id in ["1", "2"] {
        loads.add(&key(OURS, id), request(a, &blocks), secs(0)).expect("added");
    }
    assert_eq!((loads.load(a).prompt_blocks, loads.shared(&blocks).of(a)), (20, 0));
    loads.free(&key(OURS, "1"));
    assert_eq!(loads.load(a).prompt_blocks, 10);
}

#[test]
fn a_prefill_pool_tracks_no_blocks() {
    let (mut loads, a, _) = two(ActiveConfig::prefill_pool(CONFIG.block_size));
    loads.add(&key(OURS, "1"), request(a, &chain(1..=10)), secs(0)).expect("added");
    let load = loads.load(a);
    assert_eq!((load.prompt_blocks, load.prefill_tokens, load.requests), (0, 160, 1));
    assert_eq!(
        loads.report_output(&key(OURS, "1"), 50, secs(0)),
        Update::Changed(a),
        "the prefill"
    );
    assert_eq!(loads.report_output(&key(OURS, "1"), 90, secs(0)), Update::Unchanged);
    assert_eq!(loads.load(a), RankLoad { requests: 1, ..RankLoad::default() });
    for tracking in [BlockTracking::Off, BlockTracking::Prompt, BlockTracking::PromptAndOutput] {
        assert_eq!(tracking.to_string().parse(), Ok(tracking));
    }
    // Document 004 refuses output without prompts.
    let error = "output".parse::<BlockTracking>().expect_err("refused");
    assert_eq!(error.to_string(), "track blocks must be one of off, prompt, prompt-and-output");
}

#[test]
fn prefill_is_tracked_only_if_asked_for() {
    let (mut loads, a, _) = two(ActiveConfig { track_prefill_tokens: false, ..CONFIG });
    loads.add(&key(OURS, "1"), request(a, &chain(1..=10)), secs(0)).expect("added");
    assert_eq!((loads.load(a).prompt_blocks, loads.load(a).prefill_tokens), (10, 0));
}

/// Document 004: each output block weighs 1 at first, and less as the output nears its expected end.
#[test]
fn output_decays_by_its_expected_length() {
    let (mut loads, a, b) = two(ActiveConfig { blocks: BlockTracking::PromptAndOutput, ..CONFIG });
    let blocks = chain(1..=2);
    let expecting = NewRequest { expected_output_tokens: Some(320), ..request(a, &blocks) };
    loads.add(&key(OURS, "1"), expecting, secs(0)).expect("added");
    loads.add(&key(OURS, "2"), request(b, &blocks), secs(0)).expect("added");
    let weights = [1, 16, 17, 160, 100, 319, 320, 5_000].map(|tokens| {
        for id in ["1", "2"] {
            loads.report_output(&key(OURS, id), tokens, secs(0));
        }
        (loads.load(a).output_milliblocks, loads.load(b).output_milliblocks)
    });
    let expected = [
        (996, 1_000),
        (950, 1_000),
        (1_893, 2_000),
        (5_000, 10_000),
        (5_000, 10_000), // told late
        (62, 20_000),
        (0, 20_000),
        (0, 313_000),
    ];
    assert_eq!(weights, expected);
    assert_eq!(loads.load(a).prefilling_requests, 0, "output is the sign of a completed prefill");
    loads.free(&key(OURS, "2"));
    assert!(loads.load(b).is_empty());
}

/// Output first fills the prompt's last, incomplete block.
#[test]
fn output_begins_its_first_block_beyond_the_prompts_last() {
    let (mut loads, a, _) = two(ActiveConfig { blocks: BlockTracking::PromptAndOutput, ..CONFIG });
    let blocks = chain(1..=2);
    let new = NewRequest { input_tokens: 40, ..request(a, &blocks) };
    loads.add(&key(OURS, "1"), new, secs(0)).expect("added");
    let counts = [8, 9, 24, 25].map(|tokens| {
        loads.report_output(&key(OURS, "1"), tokens, secs(0));
        loads.load(a).output_milliblocks
    });
    assert_eq!(counts, [0, 1_000, 1_000, 2_000]);
}

#[test]
fn a_lease_ends_unless_the_request_is_heard_of() {
    let (mut loads, a, b) = two(CONFIG);
    for (id, rank) in [("1", a), ("2", b), ("3", b)] {
        loads.add(&key(OURS, id), request(rank, &chain([7])), secs(0)).expect("added");
    }
    assert_eq!(loads.next_expiry(), Some(secs(300)));
    assert_eq!(loads.expire(secs(299)), []);
    loads.mark_prefill_completed(&key(OURS, "2"), secs(200));
    assert_eq!(loads.renew(&key(OURS, "3"), secs(100)), Update::Unchanged);
    assert_eq!(loads.expire(secs(300)), [Expired { key: key(OURS, "1"), rank: a }]);
    loads.validate();
    assert_eq!(loads.next_expiry(), Some(secs(400)));
    // Time never goes back, and late reports do not shorten a lease.
    loads.renew(&key(OURS, "2"), secs(10));
    assert_eq!(loads.expire(secs(499)).len(), 1);
    assert_eq!(loads.expire(secs(500)), [Expired { key: key(OURS, "2"), rank: b }]);
    assert!(loads.load(a).is_empty() && loads.load(b).is_empty());
    assert_eq!((loads.next_expiry(), loads.len()), (None, 0));
}

#[test]
fn a_rank_that_went_takes_its_requests_along() {
    let (mut loads, a, b) = two(CONFIG);
    for (id, rank) in [("1", a), ("2", b)] {
        loads.add(&key(OURS, id), request(rank, &chain([7])), secs(0)).expect("added");
    }
    assert_eq!((loads.forget(a), loads.forget(a)), (1, 0));
    assert_eq!(loads.mark_prefill_completed(&key(OURS, "1"), secs(1)), Update::Unknown);
    let again = loads.join(&worker("a")).expect("room");
    assert_ne!(again, a, "a number is never given twice");
    let late = loads.add(&key(OURS, "1"), request(a, &chain([7])), secs(1));
    assert_eq!(late, Err(AddError::UnknownRank));
    assert!(loads.load(again).is_empty());
    assert_eq!(loads.ranks().map(|(rank, ..)| rank).collect::<Vec<_>>(), [again, b]);
    assert_eq!(loads.join(&worker("b")), Some(b));
    loads.validate();
}

#[test]
fn what_is_beyond_a_limit_is_refused_and_leaves_nothing() {
    let (mut loads, a, _) = two(ActiveConfig { requests_max: 2, blocks_max: 20, ..CONFIG });
    let blocks = chain(0..REQUEST_BLOCKS_MAX as u64 + 1);
    let refused = |loads: &mut ActiveLoads, new| {
        loads.add(&key(OURS, "x"), new, secs(0)).expect_err("refused")
    };
    assert_eq!(refused(&mut loads, request(a, &blocks)), AddError::TooManyBlocks);
    assert_eq!(refused(&mut loads, request(a, &blocks[..21])), AddError::Full);
    let endless = NewRequest { input_tokens: REQUEST_TOKENS_MAX + 1, ..request(a, &[]) };
    assert_eq!(refused(&mut loads, endless), AddError::TooManyTokens);
    loads.add(&key(OURS, "1"), request(a, &blocks[..20]), secs(0)).expect("as much as may be");
    assert_eq!(loads.add(&key(OURS, "1"), request(a, &[]), secs(0)), Err(AddError::Duplicate));
    assert_eq!(refused(&mut loads, request(a, &blocks[..1])), AddError::Full);
    loads.add(&key(THEIRS, "1"), request(a, &[]), secs(0)).expect("another router's");
    assert_eq!(refused(&mut loads, request(a, &[])), AddError::Full);
    assert_eq!((loads.load(a).requests, loads.load(a).prompt_blocks), (2, 20));
    loads.validate();
    assert!(RequestKey::new(OURS, "").is_err());
    assert!(RequestKey::new(OURS, &"x".repeat(REQUEST_ID_BYTES_MAX + 1)).is_err());
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    assert_eq!(CONFIG.check(), Ok(()));
    for bad in [
        ActiveConfig { lease: Duration::ZERO, ..CONFIG },
        ActiveConfig { lease: REQUEST_LEASE_MAX + secs(1), ..CONFIG },
        ActiveConfig { requests_max: 0, ..CONFIG },
        ActiveConfig { blocks_max: 0, ..CONFIG },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
}

#[test]
fn digests_tell_what_differs() {
    let (mut ours, a, b) = two(CONFIG);
    let (mut theirs, ..) = two(CONFIG);
    let blocks = chain(1..=10);
    let add = |loads: &mut ActiveLoads, router, id, rank| {
        loads.add(&key(router, id), request(rank, &blocks), secs(0)).expect("added");
    };
    for (router, id) in [(OURS, "1"), (OURS, "2"), (THEIRS, "1")] {
        add(&mut ours, router, id, a);
    }
    for (router, id) in [(THEIRS, "1"), (OURS, "2"), (OURS, "1")] {
        add(&mut theirs, router, id, a);
    }
    assert_eq!(ours.digest(a), theirs.digest(a), "whatever the order");
    assert_eq!((ours.digest(a).requests, ours.digest(b)), (3, LoadDigest::default()));
    // Output and leases are local to each replica.
    ours.renew(&key(OURS, "1"), secs(9));
    ours.mark_prefill_completed(&key(OURS, "1"), secs(9));
    assert_ne!(ours.digest_of(a, OURS), theirs.digest_of(a, OURS));
    assert_eq!(ours.digest_of(a, THEIRS), theirs.digest_of(a, THEIRS));
    theirs.report_output(&key(OURS, "1"), 3, secs(9));
    assert_eq!(ours.digest(a), theirs.digest(a));
    ours.free(&key(OURS, "2"));
    assert_ne!(ours.digest(a), theirs.digest(a));
    theirs.free(&key(OURS, "2"));
    assert_eq!(ours.digest(a), theirs.digest(a));
}

/// A replica's report of its requests contains all that another replica needs.
#[test]
fn a_replica_can_be_told_everything() {
    let (mut ours, a, _) = two(CONFIG);
    let (mut theirs, ..) = two(CONFIG);
    for (id, blocks) in [("1", 1..=10), ("2", 1..=4), ("3", 20..=30)] {
        let blocks = chain(blocks);
        let expected_output_tokens = Some(9);
        let new = NewRequest { expected_output_tokens, prefill_tokens: 17, ..request(a, &blocks) };
        ours.add(&key(OURS, id), new, secs(0)).expect("added");
    }
    ours.mark_prefill_completed(&key(OURS, "2"), secs(0));
    for told in ours.requests_of(a, OURS) {
        let rank = theirs.join(&told.worker).expect("room");
        let new = NewRequest {
            rank,
            blocks: PromptBlocks::Chain(&told.hashes),
            input_tokens: told.input_tokens,
            prefill_tokens: told.prefill_tokens,
            expected_output_tokens: told.expected_output_tokens,
        };
        theirs.add(&told.key, new, secs(0)).expect("added");
        if told.is_prefill_completed {
            theirs.mark_prefill_completed(&told.key, secs(0));
        }
        assert_eq!(theirs.request(&told.key).as_ref(), Some(&told));
    }
    assert_eq!((ours.digest(a), ours.load(a)), (theirs.digest(a), theirs.load(a)));
    assert_eq!(ours.requests_of(a, THEIRS).count(), 0);
}

#[test]
fn a_routers_requests_are_known_together() {
    let (mut loads, a, b) = two(CONFIG);
    let blocks = chain(1..=4);
    for (router, id, rank) in [(OURS, "1", a), (OURS, "2", b), (OURS, "3", a), (THEIRS, "2", a)] {
        loads.add(&key(router, id), request(rank, &blocks), secs(0)).expect("added");
    }
    let both = loads.digest_of(a, OURS).with(loads.digest_of(b, OURS));
    assert_eq!((loads.digest_of_router(OURS), both.requests), (both, 3));
    assert_eq!(loads.digest_of_router(RouterId(3)), LoadDigest::default());
    let ids = |after| -> Vec<_> {
        let requests = loads.digests_after(OURS, after);
        requests.map(|(key, digest)| (key.id().to_owned(), digest)).collect()
    };
    let digest_of =
        |loads: &ActiveLoads, id| loads.digest_of_request(&key(OURS, id)).expect("under way");
    let digest = |id| digest_of(&loads, id);
    let all = ["1", "2", "3"].map(|id| (id.to_owned(), digest(id)));
    assert_eq!(
        (ids(""), ids("1"), ids("1x")),
        (all.to_vec(), all[1..].to_vec(), all[1..].to_vec())
    );
    let sum = all.iter().fold(0_u64, |sum, (_, digest)| sum.wrapping_add(*digest));
    assert_eq!((ids("3"), sum), (vec![], both.sum));
    // A moved request has another digest, and so has one with another expected length or size.
    let before = (loads.digest_of_router(OURS), digest_of(&loads, "1"));
    loads.free(&key(OURS, "1"));
    loads.add(&key(OURS, "1"), request(b, &blocks), secs(0)).expect("added");
    assert_ne!(loads.digest_of_router(OURS), before.0);
    assert_ne!(digest_of(&loads, "1"), before.1);
    loads.free(&key(OURS, "1"));
    let expecting = NewRequest { expected_output_tokens: Some(0), ..request(a, &blocks) };
    loads.add(&key(OURS, "1"), expecting, secs(0)).expect("added");
    assert_ne!(loads.digest_of_router(OURS), before.0);
    loads.free(&key(OURS, "1"));
    let longer = NewRequest { input_tokens: 65, ..request(a, &blocks) };
    loads.add(&key(OURS, "1"), longer, secs(0)).expect("added");
    assert_ne!(loads.digest_of_router(OURS), before.0);
    // Fields that affect no load do not change the digest.
    let digest = loads.digest_of_router(OURS);
    loads.free(&key(OURS, "1"));
    let notes = RequestNotes { overlap_blocks: 3, is_paired: true, ..RequestNotes::default() };
    loads.add_noted(&key(OURS, "1"), longer, notes, secs(0)).expect("added");
    assert!(loads.placed(&key(OURS, "1")).expect("under way").is_paired);
    assert_eq!(loads.digest_of_router(OURS), digest);
    assert_eq!(loads.request(&key(OURS, "1")).expect("under way").overlap_blocks, 3);
    assert_eq!((loads.renew_all(OURS, secs(9)), loads.renew_all(OURS, secs(5))), (3, 3));
    assert_eq!(loads.expire(secs(308)), [Expired { key: key(THEIRS, "2"), rank: a }]);
    assert_eq!(loads.expire(secs(309)).len(), 3);
    assert_eq!((loads.rank_of(&worker("a")), loads.rank_of(&worker("c"))), (Some(a), None));
}

/// Assigned work outlives its requests, and fades with each further request at any rank.
#[test]
fn what_was_given_lately_fades_with_each_request() {
    let (mut loads, a, b) = two(CONFIG);
    let given = |loads: &ActiveLoads| [a, b].map(|rank| loads.load_at(rank, secs(0)).given_tokens);
    let add = |loads: &mut ActiveLoads, rank, name: &str, blocks: &[SequenceHash]| {
        let id = key(OURS, name);
        loads.add(&id, request(rank, blocks), secs(0)).expect("added");
        loads.free(&id);
    };
    add(&mut loads, a, "first", &chain(1..=9));
    assert_eq!(given(&loads), [80, 0], "beyond the mean: the prompt, and a block for the request");
    assert!(loads.load_at(a, secs(0)).is_empty() && loads.load(a).given_tokens == 0);
    for number in 0..256 {
        add(&mut loads, if number % 2 == 0 { b } else { a }, &number.to_string(), &chain([]));
    }
    let [old, new] = given(&loads);
    assert!((25..40).contains(&old) && new == 0, "a third is left: {old}, {new}");
    for number in 0..20_000 {
        add(&mut loads, b, &number.to_string(), &chain([]));
        let [old, new] = given(&loads);
        assert!(old <= 40 && new <= 16 * 128, "{old}, {new}");
    }
    let [old, new] = given(&loads);
    assert!(old == 0 && new > 2_000, "{old}, {new}");
}

/// Nothing was given to a rank that joins, and the others do not look worse by all that they were given.
#[test]
fn what_was_given_counts_beyond_the_mean_of_the_ranks_that_are_there() {
    let (mut loads, a, b) = two(CONFIG);
    for (number, rank) in [a, b].iter().cycle().take(1_000).enumerate() {
        let id = key(OURS, &number.to_string());
        loads.add(&id, request(*rank, &chain(1..=9)), secs(0)).expect("added");
        loads.free(&id);
    }
    let given = |loads: &ActiveLoads, rank| loads.load_at(rank, secs(0)).given_tokens;
    assert!(given(&loads, a) <= 160 && given(&loads, b) <= 160);
    let c = loads.join(&worker("c")).expect("room");
    let total = 160 * 256;
    assert_eq!(given(&loads, c), 0);
    assert!(given(&loads, a) < total / 2 / 3 + 160, "{}", given(&loads, a));
    loads.forget(c);
    assert!(given(&loads, a) <= 160 && given(&loads, b) <= 160);
}

#[test]
fn blocks_that_no_known_request_uses_are_foreign() {
    let (mut loads, a, _) = two(CONFIG);
    let blocks = chain(1..=9);
    loads.add(&key(OURS, "1"), request(a, &blocks), secs(0)).expect("added");
    let mut after = |reported| {
        loads.report_blocks(a, reported);
        (loads.load(a).foreign_blocks, loads.load_at(a, secs(0)).active_blocks())
    };
    assert_eq!(after(Some(30)), (21, 30.0));
    assert_eq!(after(Some(5)), (0, 9.0), "a report from before the request");
    assert_eq!(after(None), (0, 9.0));
    loads.report_blocks(a, Some(30));
    loads.free(&key(OURS, "1"));
    assert!(loads.load(a).is_empty(), "they are of no known request");
    let (mut untracked, a, _) = two(ActiveConfig { blocks: BlockTracking::Off, ..CONFIG });
    untracked.report_blocks(a, Some(30));
    assert_eq!(untracked.load(a).foreign_blocks, 0, "nobody knows whose they are");
}
