//! Tests events that omit keys, numbers of adapters, or media. An omission must never match blocks that the
//! engine keeps separate.

use super::normalise_test::*;
use super::*;
use crate::decode::{ExtraKey, PerBlock, RawRemoved, RawStored, RawTokens};
use kvasir_proto::types::{Direction, StoredBlock};

const HOST: Place<'_> = Place { medium: Some("CPU"), locality: None, group: None, kind: None };
const SALT: &[ExtraKey<'_>] = &[ExtraKey::Text("s")];
const IMAGE: &[ExtraKey<'_>] = &[ExtraKey::Item("img", 0)];

fn keyed<'a>(names: &[u64], keys: &[&[ExtraKey<'a>]]) -> RawStored<'a> {
    RawStored { extra_keys: per_block(keys), ..stored(None, names) }
}

fn at_host(event: RawStored<'_>) -> RawStored<'_> {
    RawStored { place: HOST, ..event }
}

/// Whether an event only adds a place to names, so that it causes no matches.
fn is_names_only(out: &Normalised) -> bool {
    matches!(out.events[..], [KvEvent::StoredNames { .. }])
}

#[test]
fn a_list_that_has_no_entry_for_each_block_states_no_keys() {
    for blocks in [0, 1] {
        let short = Some(PerBlock { blocks, keys: Vec::new() });
        let event = RawStored { extra_keys: short, ..stored(None, &[1, 2]) };
        assert!(is_names_only(&store(&mut vllm(), at_host(event))), "{blocks} entries");
    }
    assert_eq!(locals(&store(&mut vllm(), at_host(keyed(&[1], &[&[]])))), queried(&[1], "", ""));
}

#[test]
fn a_salt_in_a_field_of_its_own_is_a_key_as_well() {
    let salted = || RawStored { cache_salt: Some("s"), ..stored(None, &[1, 2]) };
    let plain = || at_host(stored(None, &[1, 2]));
    let mut custom = Normaliser::new(config(EngineKind::Custom));
    assert_eq!(locals(&store(&mut custom, plain())), queried(&[1, 2], "", ""));
    store(&mut custom, salted());
    remove(&mut custom, removed(&[1, 2]));
    assert!(is_names_only(&store(&mut custom, plain())));
    // SGLang states the salt on every medium.
    let mut sglang = Normaliser::new(config(EngineKind::Sglang));
    store(&mut sglang, salted());
    assert_eq!(locals(&store(&mut sglang, at_host(stored(None, &[8])))), queried(&[8], "", ""));
}

fn chunked() -> Normaliser {
    let connector_chunks = vec![("cpu".to_owned(), 2)];
    Normaliser::new(NormaliserConfig { connector_chunks, ..config(EngineKind::Vllm) })
}

fn chunk<'a>(name: u64, ids: &[u64]) -> RawStored<'a> {
    RawStored {
        names: vec![BlockName(name)],
        tokens: RawTokens::Ids(tokens_of(ids)),
        block_size: 4,
        place: HOST,
        ..stored(None, &[])
    }
}

#[test]
fn chunks_match_nothing_once_prompts_have_keys() {
    for keys in [SALT, IMAGE, &[ExtraKey::Unknown]] {
        let mut normaliser = chunked();
        let out = store(&mut normaliser, chunk(77, &[1, 2]));
        assert_eq!(locals(&out), queried(&[1, 2], "", ""));
        // Earlier chunks may have had keys, too.
        let out = store(&mut normaliser, keyed(&[1, 2], &[keys, &[]]));
        assert_eq!(out.events.last(), Some(&KvEvent::ClearedTier(Tier::Host)), "{keys:?}");
        assert!(out.reasons().iter().any(|seen| seen.0 == Reason::UnknownContent), "{out:?}");
        let out = store(&mut normaliser, chunk(78, &[1, 2]));
        assert_eq!((out.events.len(), out.reasons()[0].0), (0, Reason::UnknownContent));
        // Only once.
        let out = store(&mut normaliser, keyed(&[3], &[keys]));
        assert_eq!(out.events.len(), 1);
    }
}

#[test]
fn chunks_of_other_ranks_go_with_their_next_batches() {
    let mut normaliser = chunked();
    let mut of_rank = |rank, event: RawStored<'_>| {
        normalise_of_rank(&mut normaliser, Some(rank), RawEvent::Stored(Box::new(event))).events
    };
    for rank in [0, 1] {
        assert_eq!(of_rank(rank, chunk(77, &[1, 2])).len(), 1);
    }
    assert_eq!(of_rank(0, keyed(&[1], &[SALT])).len(), 2);
    assert_eq!(of_rank(1, keyed(&[5], &[&[]]))[0], KvEvent::ClearedTier(Tier::Host));
    for rank in [0, 1, 2] {
        assert_eq!(of_rank(rank, keyed(&[6], &[&[]])).len(), 1, "rank {rank}: once");
    }
}

/// Which ranks have chunks is not persisted, so after a restart every rank may have some.
#[test]
fn chunks_of_other_ranks_go_after_a_restart_as_well() {
    for restarts_before in [true, false] {
        let mut normaliser = chunked();
        let of_rank = |normaliser: &mut Normaliser, rank, event: RawStored<'_>| {
            let out = normalise_of_rank(normaliser, Some(rank), RawEvent::Stored(Box::new(event)));
            let is_doubted = out.reasons().iter().any(|seen| seen.0 == Reason::UnknownContent);
            (out.events, is_doubted)
        };
        let restart = |normaliser: &mut Normaliser, ranks: &[DpRank]| {
            let learned = (**normaliser.learned()).clone();
            *normaliser = chunked();
            normaliser.resume(learned, [], ranks);
        };
        of_rank(&mut normaliser, 0, chunk(77, &[1, 2]));
        if restarts_before {
            restart(&mut normaliser, &[0, 1]);
        }
        of_rank(&mut normaliser, 1, keyed(&[1], &[SALT]));
        if !restarts_before {
            restart(&mut normaliser, &[0, 1]);
        }
        let (events, is_doubted) = of_rank(&mut normaliser, 0, keyed(&[5], &[&[]]));
        assert_eq!(events[0], KvEvent::ClearedTier(Tier::Host), "{restarts_before}");
        assert!(is_doubted);
        assert_eq!(of_rank(&mut normaliser, 0, keyed(&[6], &[&[]])).0.len(), 1, "once");
        // A source with one rank dropped its chunks with the batch of the first key.
        restart(&mut normaliser, &[0]);
        let (events, is_doubted) = of_rank(&mut normaliser, 0, keyed(&[7], &[&[]]));
        assert_eq!((events.len(), is_doubted), (1, false));
    }
}

#[test]
fn chunks_that_state_keys_match_nothing() {
    let stated = [
        RawStored { extra_keys: per_block(&[SALT]), ..chunk(77, &[1, 2]) },
        RawStored { multimodal: per_block(&[IMAGE]), ..chunk(77, &[1, 2]) },
        RawStored { cache_salt: Some("s"), ..chunk(77, &[1, 2]) },
    ];
    for event in stated {
        let mut normaliser = chunked();
        let out = store(&mut normaliser, event);
        assert_eq!((out.events.len(), reasons(&out)), (0, vec![(DropReason::KeysAbsent, 1)]));
        assert_eq!(store(&mut normaliser, chunk(78, &[1, 2])).events.len(), 0, "nor do others");
    }
    // Earlier chunks may have had keys, too.
    let mut normaliser = chunked();
    store(&mut normaliser, chunk(78, &[1, 2]));
    let salted = RawStored { cache_salt: Some("s"), ..chunk(77, &[1, 2]) };
    assert_eq!(store(&mut normaliser, salted).events, [KvEvent::ClearedTier(Tier::Host)]);
}

fn of_adapter<'a>(lora_id: u64, name: u64) -> RawStored<'a> {
    const KEYS: &[ExtraKey<'_>] = &[ExtraKey::Text("a")];
    RawStored { lora_name: Some("a"), lora_id: Some(lora_id), ..keyed(&[name], &[KEYS]) }
}

#[test]
fn any_other_number_is_another_adapter() {
    let mut normaliser = Normaliser::new(config(EngineKind::Custom));
    let check_stored = |event: &KvEvent, name: u64| {
        let KvEvent::Stored { blocks, .. } = event else { panic!("{event:?}") };
        let local = queried(&[name], "a", "")[0];
        assert_eq!(*blocks, [StoredBlock { name: BlockName(name), local }]);
    };
    store(&mut normaliser, of_adapter(5, 1));
    // Only vLLM's numbers must ascend.
    for (number, name) in [(3, 2), (9, 3), (4, 4)] {
        let out = store(&mut normaliser, of_adapter(number, name));
        assert_eq!(out.renumbered_adapters, 1, "{number}");
        check_stored(out.events.last().expect("a block"), name);
    }
    // Replaced adapters may still store blocks.
    for (number, name) in [(5, 11), (3, 12), (9, 13)] {
        let out = store(&mut normaliser, of_adapter(number, name));
        assert_eq!((out.renumbered_adapters, out.unmatchable_blocks), (0, 1), "{number}");
    }
    assert_eq!(store(&mut normaliser, of_adapter(4, 14)).unmatchable_blocks, 0);
    let mut vllm = vllm();
    store(&mut vllm, of_adapter(5, 1));
    let out = store(&mut vllm, of_adapter(3, 2));
    assert_eq!((out.renumbered_adapters, out.unmatchable_blocks), (0, 1), "replaced unheard");
}

#[test]
fn a_connector_may_be_the_first_to_announce_an_adapter() {
    let mut normaliser = vllm();
    store(&mut normaliser, at_host(of_adapter(1, 1)));
    let out = store(&mut normaliser, of_adapter(2, 2));
    assert_eq!(out.renumbered_adapters, 1);
    let gone = |tier| KvEvent::Gone { tier, names: vec![BlockName(1)] };
    assert_eq!(out.events[..3], Tier::ALL.map(gone));
    // Late: of the replaced adapter, or of one that the device does not have yet.
    for number in [1, 7] {
        assert_eq!(store(&mut normaliser, at_host(of_adapter(number, 3))).unmatchable_blocks, 1);
    }
}

#[test]
fn chunks_of_a_replaced_adapter_end_with_it() {
    let mut normaliser = chunked();
    let of = |number, event: RawStored<'static>| RawStored {
        lora_name: Some("a"),
        lora_id: Some(number),
        ..event
    };
    let out = store(&mut normaliser, of(1, chunk(77, &[1, 2])));
    assert_eq!(locals(&out), queried(&[1, 2], "a", ""));
    let out = store(&mut normaliser, of_adapter(2, 5));
    assert!(out.events.contains(&KvEvent::ClearedTier(Tier::Host)), "{out:?}");
    let out = store(&mut normaliser, of(1, chunk(78, &[1, 2])));
    assert_ne!(locals(&out), queried(&[1, 2], "a", ""), "late");
    let out = store(&mut normaliser, of(2, chunk(79, &[1, 2])));
    assert_eq!(locals(&out), queried(&[1, 2], "a", ""));
}

fn directions(out: &Normalised) -> Vec<Direction> {
    out.reasons().iter().map(|(reason, ..)| reason.direction()).collect()
}

#[test]
fn a_removal_at_an_unknown_place_may_be_one_of_blocks_that_are_held() {
    let places = [
        Place { medium: Some("HBM"), ..Place::default() },
        Place { medium: Some("GPU"), locality: Some("NODE"), ..Place::default() },
    ];
    for place in places {
        let removal = || RawEvent::Removed(RawRemoved { place, ..removed(&[1]) });
        let clear = || RawEvent::Cleared(place);
        for event in [removal(), clear()] {
            let out = normalise_of_rank(&mut vllm(), None, event);
            assert!(directions(&out).contains(&Direction::MayBeHigh), "{out:?}");
        }
        // The engine also stores there: removed blocks were never held.
        for event in [removal(), clear()] {
            let mut normaliser = vllm();
            let out = store(&mut normaliser, RawStored { place, ..keyed(&[1], &[&[]]) });
            assert_eq!(directions(&out), [Direction::MayBeLow]);
            let out = normalise_of_rank(&mut normaliser, None, event);
            assert_eq!(directions(&out), [Direction::MayBeLow]);
        }
    }
}

/// A block of a shared store has an unknown number of objects, and evictions of Mooncake's master 0.3.14 have no
/// events: the block counts with its first object until one is removed, and the source is never exact.
#[test]
fn a_block_of_several_objects_goes_with_the_first() {
    let mut normaliser = vllm();
    let object = || RawStored { tokens: RawTokens::Ids(Vec::new()), ..at_host(stored(None, &[1])) };
    for _ in 0..2 {
        let out = normalise_of_rank(&mut normaliser, None, RawEvent::StoredObject(object().into()));
        assert!(is_names_only(&out) && directions(&out) == [Direction::MayBeHigh], "{out:?}");
    }
    let gone = RawRemoved { place: HOST, remaining: Some(vec![0]), ..removed(&[1]) };
    let out = remove(&mut normaliser, gone);
    assert_eq!(out.events, [KvEvent::Gone { tier: Tier::Host, names: vec![BlockName(1)] }]);
}

#[test]
fn a_clear_of_all_that_is_local_clears_every_tier() {
    for locality in [None, Some("LOCAL"), Some("local")] {
        let place = Place { locality, ..Place::default() };
        let out = normalise_of_rank(&mut vllm(), None, RawEvent::Cleared(place));
        assert_eq!(out.events, [KvEvent::Cleared]);
    }
}
