//! Tests which queries match blocks with adapters, salts and other content.

use super::normalise_test::*;
use super::*;
use crate::decode::{ExtraKey, PerBlock, RawStored};
use kvasir_proto::hash::{MultimodalSpan, Namespace, local_hashes, multimodal_hash};
use proptest::collection::vec;
use proptest::prelude::*;

#[test]
fn adapters_are_named_or_match_nothing() {
    let check = |lora_name, lora_id, expected: Option<&str>| {
        let out = store(&mut vllm(), RawStored { lora_name, lora_id, ..stored(None, &[1, 2]) });
        match expected {
            Some(name) => assert_eq!(locals(&out), queried(&[1, 2], name, "")),
            None => assert_eq!(out.unmatchable_blocks, 2),
        }
    };
    check(Some("a"), None, Some("a"));
    check(Some("a"), Some(7), Some("a"));
    check(None, Some(7), Some("seven"));
    check(Some(""), Some(7), Some("seven"));
    check(Some(""), None, Some(""));
    check(None, Some(8), None);
}

#[test]
fn number_0_is_no_adapter_unless_it_has_a_name() {
    let zero = || RawStored { lora_id: Some(0), ..stored(None, &[1, 2]) };
    let out = store(&mut vllm(), zero());
    assert_eq!((locals(&out), out.unmatchable_blocks), (queried(&[1, 2], "", ""), 0));
    let salt = per_block(&[&[ExtraKey::Text("s")], &[]]);
    let out = store(&mut vllm(), RawStored { extra_keys: salt, ..zero() });
    assert_eq!(locals(&out), queried(&[1, 2], "", "s"));
    let out = store(&mut vllm(), RawStored { lora_name: Some("a"), ..zero() });
    assert_eq!(locals(&out), queried(&[1, 2], "a", ""));
    let lora_names = Arc::new(HashMap::from([(0, "zero".to_owned())]));
    let mut named = Normaliser::new(NormaliserConfig { lora_names, ..config(EngineKind::Vllm) });
    assert_eq!(locals(&store(&mut named, zero())), queried(&[1, 2], "zero", ""));
}

#[test]
fn unnamed_adapters_never_match_even_salted() {
    for cache_salt in [None, Some("s")] {
        let event = RawStored { lora_id: Some(8), cache_salt, ..stored(None, &[1]) };
        let out = store(&mut vllm(), event);
        assert_eq!(out.unmatchable_blocks, 1);
        assert_ne!(locals(&out), queried(&[1], "", ""));
        assert_ne!(locals(&out), queried(&[1], "", "s"));
    }
}

#[test]
fn untagged_keys_are_distinguished() {
    use ExtraKey::{Item, ItemHash, Number, Text, Unknown};
    /// Salt found in the first block, or `None` if not understood.
    type Expected = Option<&'static str>;
    let check = |adapter: Option<&'static str>, first: &[ExtraKey<'static>], expected: Expected| {
        let lora_id = adapter.map(|_| 3);
        let extra_keys = per_block(&[first, &[]]);
        let event = RawStored { lora_name: adapter, lora_id, extra_keys, ..stored(None, &[1, 2]) };
        let out = store(&mut vllm(), event);
        match expected {
            Some(salt) => {
                assert_eq!(
                    locals(&out),
                    queried(&[1, 2], adapter.unwrap_or(""), salt),
                    "{first:?}"
                );
            }
            None => assert_eq!(out.unmatchable_blocks, 2, "{first:?}"),
        }
    };
    check(None, &[], Some(""));
    check(None, &[Text("s")], Some("s"));
    check(Some("a"), &[Text("a")], Some(""));
    check(Some("a"), &[Text("s")], Some("s"));
    check(Some("a"), &[Text("a"), Text("s")], Some("s"));
    check(Some("a"), &[Text("s"), Text("a")], Some("s"));
    check(Some("a"), &[Number(3), Text("s")], Some("s"));
    // A salt that equals the adapter's name is still a salt.
    check(Some("a"), &[Text("a"), Text("a")], Some("a"));
    check(None, &[Text("s"), Text("t")], None);
    check(None, &[Text("s"), Text("s")], None);
    check(None, &[Text("")], None);
    check(None, &[Number(3)], None);
    check(Some("a"), &[Number(4)], None);
    check(None, &[Unknown], None);
    check(None, &[Text("s"), Unknown], None);
    // Pairs are not a salt. Another test checks their meaning.
    let extra_keys = per_block(&[&[Item("i", 0), Text("s"), ItemHash(1)], &[]]);
    let out = store(&mut vllm(), RawStored { extra_keys, ..stored(None, &[1, 2]) });
    assert_eq!(out.unmatchable_blocks, 0);
    assert_eq!(locals(&out)[1..], queried(&[1, 2], "", "s")[1..]);
}

#[test]
fn a_string_after_the_first_block_is_not_understood() {
    let unknown = |event| {
        let out = store(&mut vllm(), event);
        assert_eq!(out.unmatchable_blocks, 1);
        assert_ne!(locals(&out).last(), queried(&[1, 2], "", "").last());
    };
    let extra_keys = per_block(&[&[], &[ExtraKey::Text("s")]]);
    unknown(RawStored { extra_keys, ..stored(None, &[1, 2]) });
    let extra_keys = per_block(&[&[ExtraKey::Text("s")]]);
    unknown(RawStored { extra_keys, ..stored(Some(1), &[2]) });
}

#[test]
fn keys_that_do_not_align_are_not_understood() {
    for blocks in [1, 3] {
        let keys = vec![(0, ExtraKey::Text("s"))];
        let event =
            RawStored { extra_keys: Some(PerBlock { blocks, keys }), ..stored(None, &[1, 2]) };
        assert_eq!(store(&mut vllm(), event).unmatchable_blocks, 2, "{blocks}");
    }
    let extra_keys = Some(PerBlock { blocks: 3, keys: vec![] });
    let out = store(&mut vllm(), RawStored { extra_keys, ..stored(None, &[1, 2]) });
    assert_eq!(locals(&out), queried(&[1, 2], "", ""));
}

#[test]
fn explicit_keys_come_first() {
    use ExtraKey::{Item, ItemHash, Text};
    let cache_salt = Some("s");
    let check = |keys: &[ExtraKey<'static>], understood: bool| {
        let extra_keys = per_block(&[keys]);
        let out = store(&mut vllm(), RawStored { cache_salt, extra_keys, ..stored(None, &[1]) });
        assert_eq!(out.unmatchable_blocks == 0, understood, "{keys:?}");
        assert_eq!(locals(&out) == queried(&[1], "", "s"), understood, "{keys:?}");
    };
    check(&[], true);
    check(&[Text("s")], true);
    check(&[Text("t")], false);
    check(&[Text("s"), Text("t")], false);

    let stated = |multimodal, extra_keys| {
        locals(&store(&mut vllm(), RawStored { multimodal, extra_keys, ..stored(None, &[1]) }))
    };
    let once = stated(per_block(&[&[ItemHash(multimodal_hash("i"))]]), None);
    assert_eq!(once, stated(None, per_block(&[&[Item("i", 0)]])));
    assert_eq!(once, stated(per_block(&[&[Item("i", 0)]]), per_block(&[&[Item("i", 0)]])));
    assert_eq!(once, stated(per_block(&[&[]]), per_block(&[&[Item("i", 0)]])));
    assert_ne!(once, queried(&[1], "", ""));
    let out = store(
        &mut vllm(),
        RawStored { multimodal: per_block(&[&[ExtraKey::Unknown]]), ..stored(None, &[1]) },
    );
    assert_eq!(out.unmatchable_blocks, 1);
}

#[test]
fn multimodal_blocks_hash_as_queries_do() {
    let spans = ["zebra", "ape"].map(multimodal_hash).into_iter();
    let spans: Vec<_> = spans.map(|hash| MultimodalSpan { hash, start: 2, end: 4 }).collect();
    let mut expected = Vec::new();
    let seed = Namespace::default().seed();
    local_hashes(&tokens_of(&[1, 2, 3]), 2, seed, &spans, &mut expected);
    for items in [["zebra", "ape"], ["ape", "zebra"]] {
        let items = items.map(|identifier| ExtraKey::Item(identifier, 0));
        let extra_keys = per_block(&[&[], &items, &[]]);
        let out = store(&mut vllm(), RawStored { extra_keys, ..stored(None, &[1, 2, 3]) });
        assert_eq!(locals(&out), expected);
    }
}

#[test]
fn salts_are_inherited_from_parent_to_child() {
    let mut normaliser = salted();
    assert_eq!(locals(&store(&mut normaliser, stored(Some(3), &[4]))), queried(&[4], "", "s"));
    assert_eq!(locals(&store(&mut normaliser, stored(Some(4), &[5]))), queried(&[5], "", "s"));
    assert_eq!(locals(&store(&mut normaliser, stored(Some(2), &[6]))), queried(&[6], "", "s"));
    // Other blocks are unaffected.
    assert_eq!(locals(&store(&mut normaliser, plain(None, &[8]))), queried(&[8], "", ""));
    assert_eq!(locals(&store(&mut normaliser, plain(Some(8), &[9]))), queried(&[9], "", ""));
}

#[test]
fn salted_names_stay_salted_when_announced_again_without_a_salt() {
    let mut normaliser = salted();
    for names in [&[1, 2][..], &[3]] {
        let out = store(&mut normaliser, stored(None, names));
        assert_eq!(locals(&out), queried(names, "", "s"));
    }
}

#[test]
fn another_adapter_does_not_share_a_salted_name() {
    let mut normaliser = salted();
    let event = RawStored { lora_name: Some("a"), ..stored(Some(3), &[4]) };
    let out = store(&mut normaliser, event);
    assert_eq!(out.unmatchable_blocks, 1);
    for salt in ["", "s"] {
        assert_ne!(locals(&out), queried(&[4], "a", salt));
    }
}

#[test]
fn what_is_not_understood_is_inherited() {
    let mut normaliser = vllm();
    let extra_keys = per_block(&[&[ExtraKey::Unknown]]);
    let out = store(&mut normaliser, RawStored { extra_keys, ..stored(None, &[1]) });
    assert_eq!(out.unmatchable_blocks, 1);
    let out = store(&mut normaliser, stored(Some(1), &[2]));
    assert_eq!(out.unmatchable_blocks, 1);
    assert_ne!(locals(&out), queried(&[2], "", ""));
    // Also within an event, instead of the parent's salt.
    let extra_keys = per_block(&[&[ExtraKey::Unknown], &[]]);
    let event = RawStored { extra_keys, ..stored(Some(3), &[4, 5]) };
    assert_eq!(store(&mut salted(), event).unmatchable_blocks, 2);
}

/// (prompt, first block, blocks, whether keys are sent)
type Announcement = (u64, u64, u64, bool);

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

    /// Prompts, of which the even ones are salted, are announced in any order, as vLLM does: the salt with
    /// the first block only, or not at all. For any number of remembered names, a salted block never has the
    /// hash of an unsalted one, and vice versa.
    #[test]
    fn a_salted_block_never_answers_an_unsalted_query(
        announcements in vec((0..4_u64, 0..6_u64, 1..5_u64, any::<bool>()), 1..20),
        limit in prop_oneof![Just(0_usize), Just(3), Just(1_000)],
    ) {
        let mut normaliser = Normaliser::with_known_names(config(EngineKind::Vllm), limit);
        let mut announced = [0_u64; 4];
        for (prompt, start, length, keyed) in announcements as Vec<Announcement> {
            let held = &mut announced[usize::try_from(prompt).expect("small")];
            // Only after an announced parent; the first time with all keys.
            let start = start.min(*held);
            let salt = ["salt 0", "", "salt 2", ""][usize::try_from(prompt).expect("small")];
            let names: Vec<u64> = (start..start + length).map(|block| 100 * prompt + block).collect();
            let parent = start.checked_sub(1).map(|block| 100 * prompt + block);
            let mut event = stored(parent, &names);
            let first = [ExtraKey::Text(salt)];
            let states_salt = start == 0 && !salt.is_empty();
            // A forgotten name may be announced without its salt. Only a limit that is never reached covers
            // this case.
            if states_salt && (keyed || *held == 0 || limit < 1_000) {
                let mut blocks: Vec<&[ExtraKey<'_>]> = vec![&[]; names.len()];
                blocks[0] = &first;
                event.extra_keys = per_block(&blocks);
            } else if !states_salt {
                event = plain(parent, &names);
            }
            *held = (*held).max(start + length);
            let out = store(&mut normaliser, event);
            let [KvEvent::Stored { blocks, .. }] = out.events.as_slice() else { panic!("{out:?}") };
            let unsalted = queried(&names, "", "");
            let right = queried(&names, "", salt);
            for ((block, right), unsalted) in blocks.iter().zip(right).zip(unsalted) {
                if salt.is_empty() {
                    prop_assert!(block.local == right || limit < 1_000 && start > 0);
                } else {
                    prop_assert_ne!(block.local, unsalted);
                    prop_assert!(block.local == right || limit < 1_000);
                }
            }
        }
    }
}
