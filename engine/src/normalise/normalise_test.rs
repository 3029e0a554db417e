use super::*;
use crate::decode::{ExtraKey, Fault, PerBlock};
use crate::decode::{RawRemoved, RawStored, RawTokens};
use kvasir_proto::hash::{Namespace, local_hashes};
use kvasir_proto::types::{LocalHash, StoredBlock};

pub(super) const BLOCK_SIZE: u32 = 2;

pub(super) fn config(engine: EngineKind) -> NormaliserConfig {
    let lora_names = Arc::new(HashMap::from([(7, "seven".to_owned())]));
    NormaliserConfig { lora_names, ..NormaliserConfig::new(engine, BLOCK_SIZE) }
}

pub(super) fn vllm() -> Normaliser {
    Normaliser::new(config(EngineKind::Vllm))
}

pub(super) fn ids_le(ids: impl IntoIterator<Item = u32>) -> Vec<u8> {
    ids.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Two tokens per block, each equal to the block's name.
pub(super) fn tokens_of(names: &[u64]) -> Vec<u8> {
    ids_le(names.iter().flat_map(|name| [u32::try_from(*name).expect("small"); 2]))
}

/// Blocks with these names.
pub(super) fn stored<'a>(parent: Option<u64>, names: &[u64]) -> RawStored<'a> {
    RawStored {
        names: names.iter().copied().map(BlockName).collect(),
        parent: parent.map(BlockName),
        tokens: RawTokens::Ids(tokens_of(names)),
        local_hashes: None,
        block_size: BLOCK_SIZE.into(),
        num_block_tokens: None,
        place: Place::default(),
        lora_id: None,
        lora_name: None,
        cache_salt: None,
        extra_keys: None,
        multimodal: None,
        look_ahead: None,
        window: None,
        slots: None,
    }
}

/// Blocks with these names and empty key lists, as from engines that state keys.
pub(super) fn plain<'a>(parent: Option<u64>, names: &[u64]) -> RawStored<'a> {
    let extra_keys = Some(PerBlock { blocks: names.len(), keys: Vec::new() });
    RawStored { extra_keys, ..stored(parent, names) }
}

pub(super) fn removed(names: &[u64]) -> RawRemoved<'static> {
    let names = names.iter().copied().map(BlockName).collect();
    RawRemoved { names, ..RawRemoved::default() }
}

/// One list of keys per block.
#[expect(clippy::unnecessary_wraps, reason = "as the field it is for")]
pub(super) fn per_block<'a>(blocks: &[&[ExtraKey<'a>]]) -> Option<PerBlock<'a>> {
    let keys =
        blocks.iter().zip(0..).flat_map(|(keys, block)| keys.iter().map(move |k| (block, *k)));
    Some(PerBlock { blocks: blocks.len(), keys: keys.collect() })
}

pub(super) fn normalise_of_rank(
    normaliser: &mut Normaliser,
    rank: Option<u32>,
    event: RawEvent<'_>,
) -> Normalised {
    normaliser.normalise(Batch { ts_bits: 0, rank, events: vec![event] })
}

pub(super) fn store(normaliser: &mut Normaliser, event: RawStored<'_>) -> Normalised {
    normalise_of_rank(normaliser, None, RawEvent::Stored(Box::new(event)))
}

pub(super) fn remove(normaliser: &mut Normaliser, event: RawRemoved<'_>) -> Normalised {
    normalise_of_rank(normaliser, None, RawEvent::Removed(event))
}

pub(super) fn locals(out: &Normalised) -> Vec<LocalHash> {
    match out.events.as_slice() {
        [KvEvent::Stored { blocks, .. }] => blocks.iter().map(|block| block.local).collect(),
        other => panic!("{other:?} is not one stored event"),
    }
}

/// Local hashes in a query of this namespace, for the blocks of [`stored`].
pub(super) fn queried(names: &[u64], lora_name: &str, cache_salt: &str) -> Vec<LocalHash> {
    let seed = Namespace { lora_name, cache_salt }.seed();
    let mut out = Vec::new();
    local_hashes(&tokens_of(names), 2, seed, &[], &mut out);
    out
}

pub(super) fn reasons(out: &Normalised) -> Vec<(DropReason, u64)> {
    out.drops.iter().collect()
}
/// A normaliser that has seen blocks 1, 2, 3 with salt "s", stated on block 1.
pub(super) fn salted() -> Normaliser {
    let mut normaliser = vllm();
    let extra_keys = per_block(&[&[ExtraKey::Text("s")], &[], &[]]);
    let out = store(&mut normaliser, RawStored { extra_keys, ..stored(None, &[1, 2, 3]) });
    assert_eq!(locals(&out), queried(&[1, 2, 3], "", "s"));
    normaliser
}

#[test]
fn media_are_tiers() {
    let check = |media: &[&str], expected: Result<Tier, DropReason>| {
        for medium in media {
            for medium in [(*medium).to_owned(), medium.to_lowercase()] {
                let place = Place { medium: Some(&medium), ..Place::default() };
                let extra_keys = per_block(&[&[]]);
                let event = RawStored { place, extra_keys, ..stored(None, &[1]) };
                let out = store(&mut vllm(), event);
                let tier = match out.events.as_slice() {
                    [KvEvent::Stored { tier, .. }] => Ok(*tier),
                    _ => Err(reasons(&out)[0].0),
                };
                assert_eq!(tier, expected, "{medium}");
            }
        }
    };
    check(&["", "GPU", "DEVICE"], Ok(Tier::Device));
    check(&["CPU", "CPU_PINNED", "CPU_TIER1"], Ok(Tier::Host));
    check(&["CPU_TIER2", "DISK", "NVME", "STORAGE", "FS"], Ok(Tier::Disk));
    check(&["EXTERNAL", "OBJ"], Err(DropReason::Remote));
    check(&["TAPE", " GPU", "CPU_TIER3"], Err(DropReason::UnknownMedium));
}

#[test]
fn only_local_blocks_count() {
    let check = |locality: Option<&'static str>, expected: Option<DropReason>| {
        let place = Place { locality, ..Place::default() };
        let mut normaliser = vllm();
        let out = store(&mut normaliser, RawStored { place, ..stored(None, &[1]) });
        assert_eq!(reasons(&out).first().map(|drop| drop.0), expected, "{locality:?}");
        let out = remove(&mut normaliser, RawRemoved { place, ..removed(&[1]) });
        assert_eq!(reasons(&out).first().map(|drop| drop.0), expected, "{locality:?}");
    };
    check(None, None);
    check(Some(""), None);
    check(Some("LOCAL"), None);
    check(Some("local"), None);
    check(Some("REMOTE"), Some(DropReason::Remote));
    check(Some("Remote"), Some(DropReason::Remote));
    check(Some("MOON"), Some(DropReason::UnknownLocality));
}

/// With a pool, blocks in a shared store belong to the pool and not to the worker.
#[test]
fn blocks_of_a_shared_store_are_for_the_pool() {
    let ttl = Duration::from_secs(9);
    let with_pool = || {
        let medium_ttls = vec![("external".to_owned(), ttl)];
        Normaliser::new(NormaliserConfig {
            has_pool: true,
            medium_ttls,
            ..config(EngineKind::Vllm)
        })
    };
    let remote = |medium| Place { medium, locality: Some("REMOTE"), ..Place::default() };
    let on = |medium| Place { medium: Some(medium), ..Place::default() };
    for place in [on("EXTERNAL"), on("obj"), remote(None), remote(Some("CPU")), remote(Some("?"))] {
        let mut normaliser = with_pool();
        let extra_keys = per_block(&[&[], &[]]);
        let event = RawStored { place, extra_keys, ..stored(Some(4), &[1, 2]) };
        let out = store(&mut normaliser, event);
        let [KvEvent::Stored { parent, tier, blocks }] = &out.pool_events[..] else {
            panic!("{place:?}: {out:?}")
        };
        assert_eq!((*parent, *tier, blocks.len()), (Some(BlockName(4)), Tier::OF_POOL, 2));
        assert_eq!((&out.events[..], out.drops.total()), (&[][..], 0), "{place:?}");
        assert_eq!(out.pool_expiring, [(0, ttl)], "whatever the medium is called");
        let out = remove(&mut normaliser, RawRemoved { place, ..removed(&[1]) });
        let names = vec![BlockName(1)];
        assert_eq!(out.pool_events, [KvEvent::Gone { tier: Tier::OF_POOL, names }]);
        assert_eq!((&out.events[..], out.drops.total()), (&[][..], 0), "{place:?}");
    }
    // A clear concerns the worker's own blocks.
    let out = normalise_of_rank(&mut with_pool(), None, RawEvent::Cleared(Place::default()));
    assert_eq!((&out.events[..], &out.pool_events[..]), (&[KvEvent::Cleared][..], &[][..]));
    let out = store(&mut with_pool(), RawStored { place: on("TAPE"), ..stored(None, &[1]) });
    assert_eq!(reasons(&out), [(DropReason::UnknownMedium, 1)]);
}

/// A block in a shared store has the salt of the same block in the engine's memory, and of that block's
/// parent.
#[test]
fn a_salted_block_is_salted_in_the_pool_as_well() {
    let external = Place { medium: Some("EXTERNAL"), ..Place::default() };
    let mut normaliser = salted();
    normaliser.config.has_pool = true;
    let in_pool = |names: &[u64], parent| RawStored {
        place: external,
        extra_keys: per_block(&[&[], &[]]),
        ..stored(parent, names)
    };
    let out = store(&mut normaliser, in_pool(&[2, 3], Some(1)));
    let [KvEvent::Stored { blocks, .. }] = &out.pool_events[..] else { panic!("{out:?}") };
    let locals: Vec<_> = blocks.iter().map(|block| block.local).collect();
    assert_eq!(locals, queried(&[1, 2, 3], "", "s")[1..]);
    // Stores rarely announce evictions: names are forgotten with the engine's own removal.
    remove(&mut normaliser, removed(&[1, 2, 3]));
    assert!(normaliser.known.holds_nothing());
}

#[test]
fn unknown_media_are_counted_by_value_up_to_a_limit() {
    let mut sum = Drops::default();
    let mut normaliser = vllm();
    let long = "x".repeat(UNKNOWN_VALUE_BYTES_MAX + 1);
    let media = (0..UNKNOWN_VALUES_MAX + 5).map(|medium| format!("TAPE{medium}"));
    for medium in [long].into_iter().chain(media).chain(["TAPE0".to_owned()]) {
        let place = Place { medium: Some(&medium), ..Place::default() };
        sum.merge(&remove(&mut normaliser, RawRemoved { place, ..removed(&[1, 2]) }).drops);
    }
    let operations = 2 * u64::try_from(UNKNOWN_VALUES_MAX + 7).expect("small");
    assert_eq!(sum.count(DropReason::UnknownMedium), operations);
    assert_eq!(sum.total(), operations);
    assert_eq!(sum.unknown_media().count(), UNKNOWN_VALUES_MAX);
    assert_eq!(sum.unknown_media().next(), Some(("TAPE0", 4)));
}

#[test]
fn blocks_are_whole_and_of_the_agreed_size() {
    let check = |event: RawStored<'_>, expected: DropReason| {
        let operations = u64::try_from(event.names.len()).expect("small");
        let out = store(&mut vllm(), event);
        assert_eq!(out.events, []);
        assert_eq!(reasons(&out), [(expected, operations)]);
    };
    let tokens = |count| RawTokens::Ids(ids_le(0..count));
    check(
        RawStored { block_size: 1, tokens: tokens(1), ..stored(None, &[1]) },
        DropReason::PartialBlock,
    );
    check(
        RawStored { block_size: 1, tokens: tokens(2), ..stored(None, &[1, 2]) },
        DropReason::BlockSize,
    );
    check(
        RawStored { block_size: 4, tokens: tokens(4), ..stored(None, &[1]) },
        DropReason::BlockSize,
    );
    check(RawStored { block_size: u64::MAX, ..stored(None, &[1]) }, DropReason::BlockSize);
    for count in [1, 3, 5, 6] {
        check(RawStored { tokens: tokens(count), ..stored(None, &[1, 2]) }, DropReason::TokenCount);
    }
    check(RawStored { tokens: RawTokens::Pairs, ..stored(None, &[1, 2]) }, DropReason::EaglePairs);
}

#[test]
fn numbers_of_tokens_equal_the_block_size() {
    for range in [(1, 2), (2, 3), (3, 3)] {
        let num_block_tokens = Some(range);
        let out = store(&mut vllm(), RawStored { num_block_tokens, ..stored(None, &[1, 2]) });
        assert_eq!(reasons(&out), [(DropReason::NumBlockTokens, 2)], "{range:?}");
    }
    let num_block_tokens = Some((2, 2));
    let out = store(&mut vllm(), RawStored { num_block_tokens, ..stored(None, &[1, 2]) });
    assert_eq!(locals(&out), queried(&[1, 2], "", ""));
}

#[test]
fn unreadable_and_unknown_events_are_counted() {
    let unreadable = Unreadable { field: "block_hashes", fault: Fault::Type, operations: 3 };
    let events = vec![
        RawEvent::Unknown("BlockMoved"),
        RawEvent::Unreadable(unreadable),
        RawEvent::Cleared(Place::default()),
    ];
    let out = vllm().normalise(Batch { ts_bits: 0, rank: Some(5), events });
    assert_eq!((out.rank, out.events.as_slice()), (5, [KvEvent::Cleared].as_slice()));
    assert_eq!(reasons(&out), [(DropReason::UnknownEvent, 1), (DropReason::Unreadable, 3)]);
    assert_eq!((out.unreadable_events, out.first_unreadable), (1, Some(unreadable)));
}

#[test]
fn events_without_names_leave_nothing() {
    let mut normaliser = vllm();
    assert_eq!(remove(&mut normaliser, removed(&[])).events, []);
    let out = store(&mut normaliser, stored(None, &[]));
    assert_eq!((out.events.len(), out.drops.total()), (0, 0));
}

/// A block's parent may have been evicted before. Its meaning stays known for a while.
#[test]
fn names_last_in_every_tier_and_after() {
    let host = Place { medium: Some("CPU"), ..Place::default() };
    let mut normaliser = salted();
    let RawStored { names, .. } = stored(None, &[3]);
    let tokens = RawTokens::Ids(vec![]);
    let placeholder = RawStored { names, tokens, place: host, block_size: 0, ..stored(None, &[]) };
    store(&mut normaliser, placeholder);
    remove(&mut normaliser, removed(&[2, 3]));
    assert_eq!(locals(&store(&mut normaliser, stored(Some(3), &[4]))), queried(&[4], "", "s"));
    assert_eq!(locals(&store(&mut normaliser, plain(Some(2), &[5]))), queried(&[5], "", "s"));
    remove(&mut normaliser, RawRemoved { place: host, ..removed(&[3]) });
    assert_eq!(locals(&store(&mut normaliser, plain(Some(3), &[6]))), queried(&[6], "", "s"));
    remove(&mut normaliser, removed(&[1, 4, 5, 6]));
    assert!(normaliser.known.holds_nothing());
}

/// Blocks for which an agent has the local hashes, but no longer the tokens.
#[test]
fn local_hashes_stand_for_tokens() {
    let hashed = |names: &[u64], locals: &[u64]| RawStored {
        tokens: RawTokens::Ids(vec![]),
        local_hashes: Some(locals.iter().copied().map(LocalHash).collect()),
        ..stored(Some(9), names)
    };
    let agent = || Normaliser::new(config(EngineKind::Custom));
    let out = store(&mut agent(), hashed(&[1, 2], &[11, 12]));
    let block = |name, local| StoredBlock { name: BlockName(name), local: LocalHash(local) };
    let blocks = vec![block(1, 11), block(2, 12)];
    let parent = Some(BlockName(9));
    assert_eq!(out.events, [KvEvent::Stored { parent, tier: Tier::Device, blocks }]);
    assert_eq!(out.drops.total(), 0);
    let dropped = |event: RawStored<'_>| {
        let out = store(&mut agent(), event);
        assert!(out.events.is_empty(), "{out:?}");
        reasons(&out)
    };
    assert_eq!(dropped(hashed(&[1, 2], &[11])), [(DropReason::TokenCount, 2)]);
    let larger = RawStored { block_size: 4, ..hashed(&[1, 2], &[11, 12]) };
    assert_eq!(dropped(larger), [(DropReason::BlockSize, 2)]);
    // Tokens take precedence over stated hashes.
    let both = RawStored { tokens: RawTokens::Ids(tokens_of(&[1])), ..hashed(&[1], &[11]) };
    assert_eq!(locals(&store(&mut agent(), both)), queried(&[1], "", ""));
}

#[test]
fn clears_and_new_incarnations_forget() {
    let child = || RawEvent::Stored(Box::new(plain(Some(3), &[4])));
    let mut normaliser = salted();
    normalise_of_rank(&mut normaliser, Some(1), RawEvent::Cleared(Place::default()));
    let out = normalise_of_rank(&mut normaliser, Some(0), child());
    assert_eq!(locals(&out), queried(&[4], "", "s"), "another rank was cleared");
    // Names have a meaning only within their rank.
    let out = normalise_of_rank(&mut normaliser, Some(1), child());
    assert_eq!(locals(&out), queried(&[4], "", ""));
    normalise_of_rank(&mut normaliser, Some(0), RawEvent::Cleared(Place::default()));
    assert!(normaliser.known.holds_nothing());

    let mut normaliser = salted();
    let place = Place { group: Some(1), kind: Some("full_attention"), ..Place::default() };
    store(&mut normaliser, RawStored { place, ..stored(None, &[9]) });
    normaliser.reset();
    let place = Place { group: Some(0), ..Place::default() };
    let out = store(&mut normaliser, RawStored { place, ..stored(Some(3), &[4]) });
    assert_eq!(locals(&out), queried(&[4], "", ""));
}

#[test]
fn beyond_the_limit_unknown_parents_match_nothing() {
    let mut normaliser = Normaliser::with_known_names(config(EngineKind::Vllm), 2);
    let out =
        store(&mut normaliser, RawStored { cache_salt: Some("s"), ..stored(None, &[1, 2, 3]) });
    assert_eq!(locals(&out), queried(&[1, 2, 3], "", "s"), "what is stated still counts");
    let child = |parent, name| RawEvent::Stored(Box::new(stored(Some(parent), &[name])));
    let out = normalise_of_rank(&mut normaliser, None, child(3, 4));
    assert_eq!(out.unmatchable_blocks, 1);
    assert_ne!(locals(&out), queried(&[4], "", ""));
    let out = normalise_of_rank(&mut normaliser, None, child(2, 4));
    assert_eq!(locals(&out), queried(&[4], "", "s"));
    assert_eq!(locals(&store(&mut normaliser, stored(None, &[8]))), queried(&[8], "", ""));
    let out = normalise_of_rank(&mut normaliser, Some(1), child(3, 4));
    assert_eq!(locals(&out), queried(&[4], "", ""), "another rank forgot nothing");
    normalise_of_rank(&mut normaliser, None, RawEvent::Cleared(Place::default()));
    let out = normalise_of_rank(&mut normaliser, None, child(3, 4));
    assert_eq!(locals(&out), queried(&[4], "", ""), "after a clear");
}

/// Each rank that forgot names forgets no more after a clear of all its blocks. A restart does not change it.
#[test]
fn a_clear_of_a_rank_ends_what_it_forgot() {
    let salted = |of: u64| RawStored { cache_salt: Some("s"), ..stored(None, &[of, of + 1]) };
    let child = |of: u64| RawEvent::Stored(Box::new(plain(Some(of + 1), &[9])));
    let clear = || RawEvent::Cleared(Place::default());
    for restarts in [false, true] {
        let mut normaliser = Normaliser::with_known_names(config(EngineKind::Vllm), 1);
        for rank in [0, 1, 2] {
            let event = RawEvent::Stored(Box::new(salted(10 * u64::from(rank))));
            normalise_of_rank(&mut normaliser, Some(rank), event);
        }
        if restarts {
            let learned = (**normaliser.learned()).clone();
            normaliser = vllm();
            normaliser.resume(learned, [], &[0, 1, 2]);
        }
        let mut unmatchable = |rank: u32, event| {
            let out = normalise_of_rank(&mut normaliser, Some(rank), event);
            (out.unmatchable_blocks, normaliser.learned().forgot_names)
        };
        for (rank, of, remains) in [(1, 10, true), (0, 0, true), (2, 20, false)] {
            assert_eq!(unmatchable(rank, child(of)), (1, true), "rank {rank}");
            assert_eq!(unmatchable(rank, clear()), (0, remains), "rank {rank}");
            assert_eq!(unmatchable(rank, child(of)), (0, remains), "rank {rank} was cleared");
        }
    }
}

#[test]
fn old_sglang_is_refused() {
    // hash((1, 1)) of CPython.
    let unchained = 8_389_048_192_121_911_274_u64;
    let refused = |mut normaliser: Normaliser, parent, name| {
        let tokens = RawTokens::Ids(ids_le([1, 1]));
        let names = vec![BlockName(name)];
        let event = RawStored { names, tokens, ..stored(parent, &[]) };
        let first = reasons(&store(&mut normaliser, event));
        let second = reasons(&remove(&mut normaliser, removed(&[5])));
        normaliser.reset();
        assert_eq!(remove(&mut normaliser, removed(&[5])).events.len(), 1, "in a new life");
        first == [(DropReason::UnchainedNames, 1)] && second == [(DropReason::UnchainedNames, 1)]
    };
    let sglang = || Normaliser::new(config(EngineKind::Sglang));
    assert!(refused(sglang(), None, unchained));
    assert!(refused(sglang(), Some(5_740_354_900_026_072_187), 1));
    assert!(!refused(sglang(), None, 1));
    assert!(!refused(vllm(), None, unchained));
}

#[test]
fn one_chained_block_decides() {
    let mut normaliser = Normaliser::new(config(EngineKind::Sglang));
    remove(&mut normaliser, removed(&[1]));
    store(&mut normaliser, RawStored { tokens: RawTokens::Pairs, ..stored(None, &[1]) });
    let tokens = RawTokens::Ids(vec![]);
    store(&mut normaliser, RawStored { tokens, block_size: 0, ..stored(None, &[1]) });
    assert_eq!(normaliser.naming, Naming::Unknown);
    store(&mut normaliser, stored(None, &[1]));
    assert_eq!(normaliser.naming, Naming::Chained);
}
