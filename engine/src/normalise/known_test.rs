//! Tests what real engines omit, repeat, or state in their own way.

use super::normalise_test::*;
use super::*;
use crate::decode::{ExtraKey, LookAhead, RawMoved, RawRemoved, RawStored, RawTokens};
use kvasir_proto::hash::{
    MultimodalSpan, Namespace, leaf, local_hash, local_hashes, multimodal_hash, next_token, stem,
    wide_local_hash,
};
use kvasir_proto::types::{LocalHash, Reason, StoredBlock};

const HOST: Place<'_> = Place { medium: Some("CPU"), locality: None, group: None, kind: None };

fn keyed<'a>(parent: Option<u64>, names: &[u64], keys: &[&[ExtraKey<'a>]]) -> RawStored<'a> {
    RawStored { extra_keys: per_block(keys), ..stored(parent, names) }
}

fn by_name<'a>(names: &[u64]) -> RawStored<'a> {
    RawStored { tokens: RawTokens::Ids(Vec::new()), ..stored(None, names) }
}

fn names(names: &[u64]) -> Vec<BlockName> {
    names.iter().copied().map(BlockName).collect()
}

fn seed() -> kvasir_proto::hash::Seed {
    Namespace::default().seed()
}

/// Local hashes of blocks with image tokens: (identifier, start, end).
fn with_images(of: &[u64], images: &[(&str, usize, usize)]) -> Vec<LocalHash> {
    let span = |&(identifier, start, end): &(&str, usize, usize)| MultimodalSpan {
        hash: multimodal_hash(identifier),
        start,
        end,
    };
    let spans: Vec<MultimodalSpan> = images.iter().map(span).collect();
    let mut out = Vec::new();
    local_hashes(&tokens_of(of), 2, seed(), &spans, &mut out);
    out
}

#[test]
fn a_connector_that_states_no_keys_adds_a_tier_to_names() {
    let mut normaliser = vllm();
    // As a new index sees it: the connector's store comes first.
    for _ in 0..2 {
        let out = store(&mut normaliser, RawStored { place: HOST, ..stored(None, &[1, 2]) });
        let expected = KvEvent::StoredNames { tier: Tier::Host, names: names(&[1, 2]) };
        assert_eq!(out.events, [expected]);
        store(&mut normaliser, keyed(None, &[1, 2], &[&[ExtraKey::Text("s")], &[]]));
    }
    // If a connector states keys, they count.
    let out = store(&mut normaliser, RawStored { place: HOST, ..keyed(None, &[8], &[&[]]) });
    assert_eq!(locals(&out), queried(&[8], "", ""));
    // An engine that states no keys on the device omits none elsewhere.
    let mut old = vllm();
    store(&mut old, stored(None, &[1]));
    let out = store(&mut old, RawStored { place: HOST, ..stored(None, &[1]) });
    assert_eq!(locals(&out), queried(&[1], "", ""));
    // Other engines state no keys at all, until the first key.
    let mut sglang = Normaliser::new(config(EngineKind::Sglang));
    let event = || RawStored { place: HOST, ..stored(None, &[1]) };
    assert_eq!(locals(&store(&mut sglang, event())), queried(&[1], "", ""));
    store(&mut sglang, keyed(None, &[5], &[&[]]));
    assert!(matches!(store(&mut sglang, event()).events[..], [KvEvent::StoredNames { .. }]));
}

#[test]
fn a_name_with_keys_of_its_own_keeps_them_where_none_are_stated() {
    let mut normaliser = vllm();
    let image = [ExtraKey::Item("i", 0)];
    store(&mut normaliser, keyed(None, &[1, 2, 3], &[&[], &image, &[]]));
    let out = store(&mut normaliser, stored(None, &[1, 2, 3]));
    let block =
        |name, locals: Vec<LocalHash>| StoredBlock { name: BlockName(name), local: locals[0] };
    let one = block(1, queried(&[1], "", ""));
    let three = block(3, queried(&[3], "", ""));
    let tier = Tier::Device;
    let expected = [
        KvEvent::Stored { parent: None, tier, blocks: vec![one] },
        KvEvent::StoredNames { tier, names: names(&[2]) },
        KvEvent::Stored { parent: Some(BlockName(2)), tier, blocks: vec![three] },
    ];
    assert_eq!(out.events, expected);
}

#[test]
fn names_are_known_as_long_as_a_copy_is_held_and_a_while_after() {
    let salted = |normaliser: &mut Normaliser, name| {
        let out = store(normaliser, plain(Some(3), &[name]));
        locals(&out) == queried(&[name], "", "s")
    };
    let mut twice = salted_twice();
    remove(&mut twice, removed(&[3, 2, 1]));
    assert!(salted(&mut twice, 4), "one of two copies is left");
    let out = remove(&mut twice, removed(&[3]));
    let forgotten = NameChange { rank: 0, name: BlockName(3), meaning: None };
    assert_eq!(out.name_changes, [forgotten], "it is not persisted");
    // A connector may announce the block after the device has evicted it.
    let out = store(&mut twice, RawStored { place: HOST, ..by_name(&[3]) });
    assert!(matches!(out.name_changes[..], [NameChange { meaning: Some(_), .. }]), "{out:?}");
    assert!(salted(&mut twice, 5));
    let mut counted = salted_twice();
    let remaining = Some(vec![0]);
    let out = remove(&mut counted, RawRemoved { remaining, ..removed(&[3]) });
    assert_eq!(out.name_changes, [forgotten], "the engine states that no copy is left");
    // Later names replace it.
    for batch in 0..17 {
        let later: Vec<u64> = (0..1_000).map(|at| 1_000 * (batch + 1) + at).collect();
        let keys: Vec<&[ExtraKey<'_>]> = vec![&[]; later.len()];
        let keys = [&[&[ExtraKey::Text("s")][..]], &keys[1..]].concat();
        store(&mut counted, keyed(None, &later, &keys));
        remove(&mut counted, removed(&later));
    }
    assert!(!salted(&mut counted, 4), "memory is bounded");
}

/// The adapter's old blocks are dropped in every tier. This includes the host, although the engine evicted
/// them from the device before the connector announced them.
#[test]
fn a_replaced_adapter_ends_on_the_host_too() {
    let of = |number, names: &[u64]| RawStored {
        lora_id: Some(number),
        lora_name: Some("a"),
        ..stored(None, names)
    };
    let mut normaliser = vllm();
    store(&mut normaliser, of(5, &[1, 2]));
    remove(&mut normaliser, removed(&[1, 2]));
    store(&mut normaliser, RawStored { place: HOST, ..by_name(&[1, 2]) });
    store(&mut normaliser, of(5, &[1, 2]));
    remove(&mut normaliser, removed(&[1, 2]));
    let out = store(&mut normaliser, of(6, &[11]));
    let gone = |tier| KvEvent::Gone { tier, names: names(&[1, 2]) };
    assert!(out.events.contains(&gone(Tier::Host)), "{out:?}");
}

#[test]
fn children_that_come_before_their_salted_parent_are_a_reason() {
    for salt in [true, false] {
        let mut normaliser = vllm();
        store(&mut normaliser, keyed(Some(2), &[3, 4, 5], &[&[], &[], &[]]));
        let key = [ExtraKey::Text("s")];
        let keys: [&[ExtraKey<'_>]; 2] = if salt { [&key, &[]] } else { [&[], &[]] };
        let out = store(&mut normaliser, keyed(None, &[1, 2], &keys));
        let seen: Vec<_> =
            out.reasons().into_iter().map(|(reason, count, _)| (reason, count)).collect();
        let expected = if salt { vec![(Reason::UnknownContent, 1)] } else { Vec::new() };
        assert_eq!(seen, expected);
        let out = store(&mut normaliser, keyed(None, &[1, 2], &keys));
        assert_eq!(out.reasons(), [], "it is known now");
    }
}

/// Blocks smaller than registered, one per event.
#[test]
fn a_partial_block_after_a_partial_block_is_another_block_size() {
    let mut normaliser = vllm();
    let short = |parent, name| RawStored {
        tokens: RawTokens::Ids(tokens_of(&[name]).split_off(4)),
        block_size: 1,
        ..stored(parent, &[name])
    };
    for (parent, name) in [(None, 1), (Some(9), 2), (None, 3)] {
        let out = store(&mut normaliser, short(parent, name));
        assert_eq!(reasons(&out), [(DropReason::PartialBlock, 1)]);
    }
    let out = store(&mut normaliser, short(Some(2), 4));
    assert_eq!(reasons(&out), [(DropReason::BlockSize, 1)]);
    let stated = out.drops.stated_block_size().expect("it is logged");
    assert_eq!((stated.tokens, &*stated.medium), (1, ""));
}

fn salted_twice() -> Normaliser {
    let mut normaliser = salted();
    store(&mut normaliser, keyed(None, &[1, 2, 3], &[&[ExtraKey::Text("s")], &[], &[]]));
    normaliser
}

#[test]
fn what_is_learned_survives_a_restart() {
    let mut normaliser = vllm();
    let mut held = HashMap::new();
    let mut run = |normaliser: &mut Normaliser, event| {
        let out = normalise_of_rank(normaliser, Some(3), event);
        for NameChange { rank, name, meaning } in &out.name_changes {
            match meaning {
                Some(meaning) => held.insert((*rank, *name), *meaning),
                None => held.remove(&(*rank, *name)),
            };
        }
        (out, held.clone())
    };
    let salt = [ExtraKey::Text("s")];
    for _ in 0..2 {
        let event = keyed(None, &[1, 2], &[&salt, &[]]);
        run(&mut normaliser, RawEvent::Stored(Box::new(event)));
    }
    let (_, held) = run(&mut normaliser, RawEvent::Removed(removed(&[2, 1])));
    let mut resumed = vllm();
    let names = held.into_iter().map(|((rank, name), meaning)| (rank, name, meaning));
    resumed.resume((**normaliser.learned()).clone(), names, &[3]);
    let child = || RawEvent::Stored(Box::new(keyed(Some(2), &[4], &[&[]])));
    let out = normalise_of_rank(&mut resumed, Some(3), child());
    assert_eq!(locals(&out), queried(&[4], "", "s"));
    normalise_of_rank(&mut resumed, Some(3), RawEvent::Removed(removed(&[4, 2, 1])));
    assert!(resumed.known.holds_nothing());
}

#[test]
fn a_clear_of_one_tier_is_of_what_was_there_only() {
    let mut normaliser = salted();
    let event = RawStored { place: HOST, ..stored(None, &[1]) };
    store(&mut normaliser, event);
    let device = Place { medium: Some("GPU"), ..Place::default() };
    let out = normalise_of_rank(&mut normaliser, None, RawEvent::Cleared(device));
    assert_eq!(out.events, [KvEvent::ClearedTier(Tier::Device)]);
    let out = store(&mut normaliser, stored(Some(1), &[4]));
    assert_eq!(locals(&out), queried(&[4], "", "s"), "block 1 is on the host");
    let known: Vec<_> = out.name_changes.iter().map(|at| (at.name.0, at.meaning)).collect();
    assert!(matches!(known[..], [(4, Some(_))]), "{known:?}");
    let out = store(&mut normaliser, plain(Some(2), &[5]));
    assert_eq!(locals(&out), queried(&[5], "", "s"), "a connector may announce block 2 yet");
    let tape = Place { medium: Some("TAPE"), ..Place::default() };
    let out = normalise_of_rank(&mut normaliser, None, RawEvent::Cleared(tape));
    assert_eq!((out.events.len(), reasons(&out)), (0, vec![(DropReason::UnknownMedium, 1)]));
}

#[test]
fn blocks_move_from_tier_to_tier() {
    let moved = |from, to| {
        let place = Place { medium: to, ..Place::default() };
        let event = RawMoved { names: names(&[1]), place, from };
        let out = normalise_of_rank(&mut vllm(), None, RawEvent::Moved(event));
        (out.events.clone(), reasons(&out))
    };
    let stored = |tier| KvEvent::StoredNames { tier, names: names(&[1]) };
    let left = |tier| KvEvent::Removed { tier, names: names(&[1]) };
    assert_eq!(moved(Some("GPU"), Some("DEVICE")), (vec![], vec![]));
    let to_host = vec![stored(Tier::Host), left(Tier::Device)];
    assert_eq!(moved(Some("GPU"), Some("CPU")), (to_host, vec![]));
    let remote = |reason| vec![(reason, 1)];
    let sent = (vec![left(Tier::Device)], remote(DropReason::UnknownMedium));
    assert_eq!(moved(Some("GPU"), Some("REMOTE")), sent);
    let received = (vec![stored(Tier::Device)], remote(DropReason::UnknownMedium));
    assert_eq!(moved(Some("REMOTE"), Some("GPU")), received);
}

#[test]
fn unknown_kinds_are_reasons_but_for_harmless_ones() {
    let of = |kind| {
        let out = normalise_of_rank(&mut vllm(), None, RawEvent::Unknown(kind));
        assert_eq!(reasons(&out), [(DropReason::UnknownEvent, 1)]);
        out.reasons()
    };
    assert_eq!(of("BlockInactive"), []);
    let expected = (Reason::UnknownEvent, 1, "type=BlockQuantised".to_owned());
    assert_eq!(of("BlockQuantised"), [expected]);
}

/// vLLM 0.17.0 to 0.18.1, whose events are arrays of nine members.
#[test]
fn bare_identifiers_are_images() {
    use ExtraKey::Text;
    let bare = |event| RawStored { slots: Some(8), ..event };
    let mut normaliser = vllm();
    let image: [ExtraKey<'_>; 1] = [Text("i")];
    let out = store(&mut normaliser, bare(keyed(None, &[1, 2, 3], &[&image, &image, &[]])));
    assert_eq!(locals(&out), with_images(&[1, 2, 3], &[("i", 0, 4)]));
    let out = store(&mut normaliser, bare(keyed(Some(3), &[4, 5], &[&image, &[]])));
    assert_eq!(locals(&out), with_images(&[4, 5], &[("i", 0, 2)]));
    // With a salt after it, which the next event inherits.
    let both = [Text("i"), Text("s")];
    let out = store(&mut normaliser, bare(keyed(None, &[6, 7], &[&both, &image])));
    assert_ne!(locals(&out), with_images(&[6, 7], &[("i", 0, 4)]));
    let out = store(&mut normaliser, bare(keyed(Some(7), &[8], &[&[]])));
    assert_eq!(locals(&out), queried(&[8], "", "s"));
    // A short image or a salt: the event does not show which.
    let out = store(&mut normaliser, bare(keyed(None, &[9], &[&[Text("x")]])));
    assert_eq!(out.unmatchable_blocks, 1);
    let digits = "0123456789abcdef".repeat(4);
    let out = store(&mut vllm(), bare(keyed(None, &[9], &[&[Text(&digits)]])));
    assert_eq!(out.unmatchable_blocks, 1);
    assert_eq!(
        locals(&store(&mut vllm(), keyed(None, &[9], &[&[Text(&digits)]]))),
        queried(&[9], "", &digits)
    );
    // The same beside an adapter or another image.
    let adapter_keys = [Text("a"), Text(&digits)];
    let event = RawStored { lora_name: Some("a"), ..keyed(None, &[9], &[&adapter_keys]) };
    assert_eq!(store(&mut vllm(), bare(event)).unmatchable_blocks, 1);
    let images = [Text(&digits), Text("i")];
    let out = store(&mut vllm(), bare(keyed(None, &[8, 9], &[&images, &image])));
    assert_eq!(out.unmatchable_blocks, 2);
    // Engines that state pairs do not state bare identifiers, and maps never have any.
    let mut keyless = vllm();
    let out = store(&mut keyless, keyed(Some(3), &[4], &[&image]));
    assert_eq!((out.unmatchable_blocks, &*out.unmatchable_example), (1, "extra_keys"));
    let out = store(&mut keyless, keyed(Some(4), &[5], &[&[]]));
    assert_eq!((out.unmatchable_blocks, &*out.unmatchable_example), (1, "extra_keys"));
    let mut pairs = vllm();
    store(&mut pairs, bare(keyed(None, &[1], &[&[ExtraKey::Item("i", 0)]])));
    assert_eq!(store(&mut pairs, bare(keyed(Some(1), &[2], &[&image]))).unmatchable_blocks, 1);
    assert_eq!(
        locals(&store(&mut pairs, bare(keyed(None, &[3], &[&[Text("s")]])))),
        queried(&[3], "", "s")
    );
}

#[test]
fn a_look_ahead_block_takes_two_positions() {
    let mut normaliser = vllm();
    let image = [ExtraKey::Item("i", 2)];
    // Block 2 follows block 1.
    let look_ahead = Some(vec![LookAhead::Token(2), LookAhead::Token(9)]);
    let event = RawStored { look_ahead, ..keyed(None, &[1, 2], &[&[], &image]) };
    let out = store(&mut normaliser, event);
    let [KvEvent::Stored { blocks, .. }] = &out.events[..] else { panic!("{out:?}") };
    let plain = queried(&[1, 2], "", "");
    // The image begins with the next token, so it is not part of block 2.
    let next = next_token(9, &[multimodal_hash("i")]);
    let expected = [
        (stem_name(BlockName(1)), stem(plain[0])),
        (BlockName(1), leaf(2)),
        (stem_name(BlockName(2)), stem(plain[1])),
        (BlockName(2), leaf(next)),
    ];
    let found: Vec<_> = blocks.iter().map(|block| (block.name, block.local)).collect();
    assert_eq!(found, expected);
    let out = remove(&mut normaliser, removed(&[1]));
    let names = vec![BlockName(1), stem_name(BlockName(1))];
    assert_eq!(out.events, [KvEvent::Removed { tier: Tier::Device, names }]);
    let look_ahead = Some(vec![LookAhead::Other]);
    let out = store(&mut vllm(), RawStored { look_ahead, ..keyed(None, &[1], &[&[]]) });
    assert_eq!((out.unmatchable_blocks, &*out.unmatchable_example), (1, "lookahead_token_ids"));
}

#[test]
fn tokens_beyond_32_bits_are_content() {
    let wide = |ids: &[u64]| RawTokens::Wide(ids.iter().flat_map(|id| id.to_le_bytes()).collect());
    let image = 481_872_888_202_679_469;
    let event = RawStored { tokens: wide(&[1, 1, 2, image]), ..stored(None, &[1, 2]) };
    let mut sglang = Normaliser::new(config(EngineKind::Sglang));
    let out = store(&mut sglang, event);
    let bytes: Vec<u8> = [2, image].iter().flat_map(|id| id.to_le_bytes()).collect();
    let expected = [queried(&[1], "", "")[0], wide_local_hash(&bytes, &[], seed())];
    assert_eq!(locals(&out), expected);
    assert_eq!(expected[1], local_hash(&bytes, &[], seed()));
    let event = RawStored { tokens: wide(&[1, image, 3]), ..stored(None, &[1, 2]) };
    assert_eq!(reasons(&store(&mut sglang, event)), [(DropReason::TokenCount, 2)]);
}

/// vLLM hashes an adapter's path, but publishes its name and number.
#[test]
fn an_adapter_with_a_new_number_ends_what_the_old_one_held() {
    let of = |lora_id, parent, names: &[u64]| {
        let keys: Vec<&[ExtraKey<'_>]> = vec![&[ExtraKey::Text("a")]; names.len()];
        RawStored { lora_name: Some("a"), lora_id: Some(lora_id), ..keyed(parent, names, &keys) }
    };
    let mut normaliser = vllm();
    store(&mut normaliser, of(5, None, &[1, 2]));
    store(&mut normaliser, RawStored { place: HOST, ..stored(None, &[1]) });
    store(&mut normaliser, stored(None, &[8]));
    assert_eq!(store(&mut normaliser, of(5, Some(2), &[3])).renumbered_adapters, 0);
    let out = store(&mut normaliser, of(6, None, &[11]));
    assert_eq!(out.renumbered_adapters, 1);
    let gone = |tier, gone: &[u64]| KvEvent::Gone { tier, names: names(gone) };
    assert_eq!(out.events[0], gone(Tier::Device, &[1, 2, 3]));
    assert_eq!(out.events[1], gone(Tier::Host, &[1, 2, 3]));
    assert_eq!(out.events[2], gone(Tier::Disk, &[1, 2, 3]));
    let KvEvent::Stored { blocks, .. } = &out.events[3] else { panic!("{out:?}") };
    assert_eq!(blocks[0].local, queried(&[11], "a", "")[0]);
    let example = |example: &str| example.to_owned();
    let renumbered = (Reason::RenumberedAdapter, 1, example("lora_id=6 before=5"));
    assert_eq!(out.reasons(), [renumbered]);
    // Blocks that the replaced adapter still stores are unmatchable.
    let old = store(&mut normaliser, of(5, None, &[4]));
    assert_eq!(old.reasons(), [(Reason::Unmatchable, 1, example("lora_id=5"))]);
    assert_eq!(store(&mut normaliser, of(6, Some(11), &[12])).unmatchable_blocks, 0);
}

#[test]
fn a_new_number_ends_all_blocks_where_names_were_forgotten() {
    let mut normaliser = Normaliser::with_known_names(config(EngineKind::Vllm), 1);
    let of = |lora_id, names: &[u64]| RawStored {
        lora_name: Some("a"),
        lora_id: Some(lora_id),
        ..stored(None, names)
    };
    store(&mut normaliser, of(5, &[1, 2]));
    let out = store(&mut normaliser, of(6, &[11]));
    assert_eq!(out.renumbered_adapters, 1);
    assert_eq!(out.events[..3], Tier::ALL.map(KvEvent::ClearedTier));
    assert!(matches!(out.events[3..], [KvEvent::Stored { .. }]));
    let meanings = out.name_changes.iter().map(|change| (change.name.0, change.meaning.is_some()));
    assert_eq!(meanings.collect::<Vec<_>>(), [(1, false), (11, true)]);
}

/// Each block has the adapter's name among its keys. A salt of that name is therefore twice in the first
/// block.
#[test]
fn a_salt_named_like_the_adapter_is_no_image() {
    use ExtraKey::Text;
    let (first, later): ([ExtraKey<'_>; 2], _) = ([Text("a"), Text("a")], [Text("a")]);
    let of = |parent, names: &[u64], keys: &[&[ExtraKey<'static>]]| RawStored {
        slots: Some(8),
        lora_name: Some("a"),
        ..keyed(parent, names, keys)
    };
    let mut normaliser = vllm();
    let out = store(&mut normaliser, of(None, &[1, 2], &[&first, &later]));
    assert_eq!(locals(&out), queried(&[1, 2], "a", "a"));
    let out = store(&mut normaliser, of(Some(2), &[3], &[&later]));
    assert_eq!(locals(&out), queried(&[3], "a", "a"));
}

/// LMCache 0.5.6: a chunk has its own hash, one token too many, and 0 for an unknown parent.
#[test]
fn chunks_of_a_connector_count_block_by_block() {
    let chunked = || {
        let connector_chunks = vec![("cpu".to_owned(), 2)];
        Normaliser::new(NormaliserConfig { connector_chunks, ..config(EngineKind::Vllm) })
    };
    let chunk = |parent, name, ids: &[u64], extra: usize| {
        let mut tokens = tokens_of(ids);
        tokens.extend(vec![0; 4 * extra]);
        RawStored {
            names: names(&[name]),
            tokens: RawTokens::Ids(tokens),
            block_size: 4,
            place: Place { medium: Some("cpu"), ..Place::default() },
            ..stored(parent, &[])
        }
    };
    let mut normaliser = chunked();
    let out = store(&mut normaliser, chunk(None, 77, &[1, 2], 1));
    let [KvEvent::Stored { parent: None, tier: Tier::Host, blocks }] = &out.events[..] else {
        panic!("{out:?}")
    };
    let named = [chunk_block_name(BlockName(77), 1), BlockName(77)];
    assert_eq!(blocks.iter().map(|block| block.name).collect::<Vec<_>>(), named);
    assert_eq!(locals(&out), queried(&[1, 2], "", ""));
    let out = store(&mut normaliser, chunk(Some(77), 78, &[3, 4], 0));
    assert_eq!(locals(&out), queried(&[3, 4], "", ""));
    let out = store(&mut normaliser, chunk(Some(0), 79, &[5, 6], 1));
    assert_eq!(reasons(&out), [(DropReason::UnknownParent, 1)]);
    assert_eq!(out.reasons()[0].0, Reason::UnknownContent);
    let place = Place { medium: Some("CPU"), ..Place::default() };
    let out = remove(&mut normaliser, RawRemoved { place, ..removed(&[77]) });
    assert_eq!(out.events, [KvEvent::Removed { tier: Tier::Host, names: named.to_vec() }]);
    let out = store(&mut normaliser, chunk(None, 80, &[1, 2], 2));
    assert_eq!(reasons(&out), [(DropReason::TokenCount, 1)]);
    // With salted prompts, it is unknown whether the chunk is salted.
    let mut salted = chunked();
    store(&mut salted, keyed(None, &[1], &[&[ExtraKey::Text("s")]]));
    let out = store(&mut salted, chunk(None, 81, &[1, 2], 1));
    assert_eq!(reasons(&out), [(DropReason::KeysAbsent, 1)]);
    // Device blocks keep their size.
    assert_eq!(locals(&store(&mut chunked(), stored(None, &[1]))), queried(&[1], "", ""));
}
