//! Block hashing equals the published `dynamo-kv-router` 1.6.1 and `kv-index` 2.0.0 bit for bit.
//! The vectors were made by running those crates (lines 84 to 87 by running `ai-dynamo-runtime`, the Python build of the
//! first); each line names the ones that agreed on it. XXH3 has another path for each range of input lengths, so eight more
//! lines, made with the reference library, have blocks of 72 to 2,048 bytes. The Python client and `proto/README.md` use the same file.

#![allow(clippy::expect_used, reason = "tests")]

use kvasir_proto::hash::{self, MultimodalSpan, Namespace};
use kvasir_proto::types::{LocalHash, WorkerId};
use serde::Deserialize;

#[derive(Deserialize)]
struct Vector {
    block_size: usize,
    lora_name: String,
    cache_salt: String,
    tokens: Vec<u32>,
    multimodal: Vec<Vec<String>>,
    local: Vec<String>,
    sequence: Vec<String>,
}

#[test]
fn hashes_equal_the_published_crates() {
    let lines = include_str!("data/golden-hashes.jsonl").lines();
    let mut count = 0;
    for line in lines {
        let vector: Vector = serde_json::from_str(line).expect("a vector");
        let namespace = Namespace { lora_name: &vector.lora_name, cache_salt: &vector.cache_salt };
        let spans = spans(&vector);
        let mut locals: Vec<LocalHash> = Vec::new();
        hash::local_hashes(
            &hash::tokens_le(&vector.tokens),
            vector.block_size,
            namespace.seed(),
            &spans,
            &mut locals,
        );
        let local: Vec<String> = locals.iter().map(ToString::to_string).collect();
        let sequence: Vec<String> =
            hash::sequence_hashes(&locals).map(|hash| hash.to_string()).collect();
        assert_eq!(local, vector.local, "{line}");
        assert_eq!(sequence, vector.sequence, "{line}");
        count += 1;
    }
    assert_eq!(count, 95);
}

fn spans(vector: &Vector) -> Vec<MultimodalSpan> {
    let mut spans = Vec::new();
    for (block, hashes) in vector.multimodal.iter().enumerate() {
        for hash in hashes {
            spans.push(MultimodalSpan {
                hash: u64::from_str_radix(hash, 16).expect("hexadecimal"),
                start: block * vector.block_size,
                end: block * vector.block_size + 1,
            });
        }
    }
    spans
}

#[test]
fn seeds_equal_the_published_ones() {
    let lora = Namespace { lora_name: "adapter-a", cache_salt: "" };
    let salt = Namespace { lora_name: "", cache_salt: "tenant-a" };
    assert_eq!(Namespace::default().seed().0, 1337);
    assert_eq!(lora.seed().0, 8_842_669_519_798_868_182);
    assert_eq!(salt.seed().0, 1_948_188_790_972_764_086);
}

/// Computed with the `xxhash` package of PyPI. These never change: subjects and shard maps name buckets.
#[test]
fn buckets_are_fixed_for_ever() {
    let longest = "a".repeat(256);
    let cases: [(&str, u8); 9] = [
        ("w", 41),
        ("worker-0", 189),
        ("worker-1", 75),
        ("worker-7", 212),
        ("vllm-0", 156),
        ("10.0.0.1:8000", 39),
        ("gpu-node-17/rank-3", 72),
        ("\u{6a21}\u{578b}-1", 39),
        (&longest, 243),
    ];
    for (name, expected) in cases {
        let worker = WorkerId::new(name).expect("a valid id");
        assert_eq!(hash::bucket(&worker), expected, "{name}");
    }
}

#[test]
fn multimodal_identifiers_hash_by_their_form() {
    let hex = "00ff00ff00ff00ff".repeat(4);
    assert_eq!(hash::multimodal_hash(&hex), 0x00ff_00ff_00ff_00ff);
    let not_hex = "g".repeat(64);
    assert_ne!(hash::multimodal_hash(&not_hex), 0);
    assert_ne!(hash::multimodal_hash("mmhash0a1b"), hash::multimodal_hash("mmhash0a1c"));
}

/// The definition, block by block: every span that overlaps the block counts, in ascending order.
#[test]
fn spans_count_in_every_block_they_overlap() {
    let tokens: Vec<u32> = (0..40).collect();
    let bytes = hash::tokens_le(&tokens);
    let seed = Namespace::default().seed();
    let span = |hash, start, end| MultimodalSpan { hash, start, end };
    for spans in [
        vec![span(9, 3, 17)],
        vec![span(5, 30, 31), span(9, 0, 12), span(7, 12, 16), span(1, 3, 5)],
        vec![span(2, 39, 40), span(1, 0, 40)],
    ] {
        let mut found = Vec::new();
        hash::local_hashes(&bytes, 4, seed, &spans, &mut found);
        let expected = bytes.chunks_exact(16).enumerate().map(|(block, bytes)| {
            let start = block * 4;
            let end = block * 4 + 4;
            let overlapping = spans.iter().filter(|at| at.start < end && start < at.end);
            let mut extras: Vec<u64> = overlapping.map(|at| at.hash).collect();
            extras.sort_unstable();
            hash::local_hash(bytes, &extras, seed)
        });
        assert_eq!(found, expected.collect::<Vec<_>>(), "{spans:?}");
    }
}
