use super::*;
use crate::code::ErrorCode;
use crate::convert::{FindAnswer, FindReply, FindRequest, PoolState, WorkerMatch, WriteAnswer};
use crate::hash::Namespace;
use crate::types::SourceState;
use prost::Message;
use std::time::Duration;

#[expect(clippy::needless_pass_by_value, reason = "requests are made on the spot")]
fn read(request: pb::FindMatchesRequest) -> Result<FindQuery, ConvertError> {
    FindRequest::read(&request.encode_to_vec().into()).expect("protobuf").query
}

fn request() -> pb::FindMatchesRequest {
    pb::FindMatchesRequest { model: "m".to_owned(), local_hashes: vec![1, 2], ..Default::default() }
}

fn tokens() -> pb::FindMatchesRequest {
    pb::FindMatchesRequest { local_hashes: vec![], token_ids: vec![1, 2, 3, 4], ..request() }
}

fn item(identifier: &str, token_offset: u32, token_count: u32) -> pb::MultimodalItem {
    pb::MultimodalItem { identifier: identifier.to_owned(), token_offset, token_count }
}

#[test]
fn defaults_of_an_absent_field() {
    let query = read(request()).expect("a valid request");
    assert_eq!(query.partition, PartitionKey::new("m", "").expect("a valid key"));
    assert_eq!(query.minimum_overlap_blocks, 1);
    assert_eq!((query.top_k, query.workers, query.block_size), (None, None, None));
    assert_eq!(query.tiers, TierSet::ALL);
    assert!(
        matches!(query.input, QueryInput::Locals(locals) if locals == [LocalHash(1), LocalHash(2)])
    );
}

fn check(request: pb::FindMatchesRequest, expected: &str) {
    let error = read(request).expect_err(expected);
    assert_eq!(error.to_string(), expected);
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
}

#[test]
fn every_refusal_of_the_prompt_names_the_field_and_the_fix() {
    let long = "x".repeat(513);
    check(
        pb::FindMatchesRequest { local_hashes: vec![], ..request() },
        "token_ids, token_ids_le, wide_token_ids, local_hashes or sequence_hashes is required",
    );
    check(
        pb::FindMatchesRequest { sequence_hashes: vec![1], ..request() },
        "token_ids, token_ids_le, wide_token_ids, local_hashes or sequence_hashes are 2 inputs, must be exactly one",
    );
    check(
        pb::FindMatchesRequest {
            local_hashes: vec![],
            token_ids_le: Bytes::from_static(&[0; 7]),
            ..request()
        },
        "token_ids_le has 7 bytes, must be a multiple of 4: little-endian u32",
    );
    check(
        pb::FindMatchesRequest { token_ids: vec![0; QUERY_TOKENS_MAX + 1], ..tokens() },
        "token_ids has 1048577 entries, the limit is 1048576: send fewer",
    );
    check(
        pb::FindMatchesRequest { local_hashes: vec![0; QUERY_BLOCKS_MAX + 1], ..request() },
        "local_hashes has 65537 entries, the limit is 65536: send fewer",
    );
    check(
        pb::FindMatchesRequest { lora_name: "a".to_owned(), ..request() },
        "lora_name must not be set with hashes: they contain it; send tokens instead",
    );
    check(
        pb::FindMatchesRequest { cache_salt: long, ..tokens() },
        "cache_salt has 513 bytes, the limit is 512",
    );
    check(
        pb::FindMatchesRequest { multimodal: vec![item("", 0, 1)], ..tokens() },
        "multimodal[0].identifier is required",
    );
    check(
        pb::FindMatchesRequest { multimodal: vec![item("i", 1, 2), item("j", 0, 2)], ..tokens() },
        "multimodal has two items at token 1, must be items that do not overlap",
    );
    check(
        pb::FindMatchesRequest { multimodal: vec![item("i", 0, 0)], ..tokens() },
        "multimodal[0].token_count is required",
    );
    check(
        pb::FindMatchesRequest { multimodal: vec![item("i", 3, 2)], ..tokens() },
        "multimodal[0].token_count ends at token 5, must be within the prompt's 4 tokens",
    );
}

#[test]
fn every_refusal_of_the_filter_names_the_field_and_the_fix() {
    let long = "x".repeat(257);
    check(pb::FindMatchesRequest { model: String::new(), ..request() }, "model is required");
    check(
        pb::FindMatchesRequest { model: long.clone(), ..request() },
        "model has 257 bytes, the limit is 256",
    );
    check(
        pb::FindMatchesRequest { tenant: long, ..request() },
        "tenant has 257 bytes, the limit is 256",
    );
    check(
        pb::FindMatchesRequest { block_size: Some(0), ..request() },
        "block_size is 0, must be 1 to 65536",
    );
    check(
        pb::FindMatchesRequest { tiers: vec![0], ..request() },
        "tiers[0] has the unknown value 0",
    );
    check(
        pb::FindMatchesRequest { tiers: vec![1, 9], ..request() },
        "tiers[1] has the unknown value 9",
    );
    check(
        pb::FindMatchesRequest { tiers: vec![1; 4], ..request() },
        "tiers has 4 entries, the limit is 3: send fewer",
    );
    check(
        pb::FindMatchesRequest { worker_ids: vec!["a".to_owned(), String::new()], ..request() },
        "worker_ids[1] is required",
    );
    check(
        pb::FindMatchesRequest { worker_ids: vec!["a".to_owned(); 4_097], ..request() },
        "worker_ids has 4097 entries, the limit is 4096: send fewer",
    );
}

#[test]
fn another_hash_scheme_is_a_failed_precondition() {
    let check = |scheme: &str, expected: Option<&str>| {
        let request = pb::FindMatchesRequest { hash_scheme: Some(scheme.to_owned()), ..request() };
        let error = read(request).err();
        assert_eq!(error.as_ref().map(ToString::to_string).as_deref(), expected);
        assert!(error.is_none_or(|error| error.code() == ErrorCode::FailedPrecondition));
    };
    check("xxh3-64/1337", None);
    check("", Some("hash_scheme is \"\", this server hashes with \"xxh3-64/1337\""));
    check("md5", Some("hash_scheme is \"md5\", this server hashes with \"xxh3-64/1337\""));
}

#[test]
fn both_token_forms_hash_alike_and_never_show_their_tokens() {
    let numbers = QueryTokens::Numbers(vec![70_001, 70_002]);
    let bytes: Vec<u8> =
        [70_001_u32, 70_002].iter().flat_map(|token| token.to_le_bytes()).collect();
    let little = QueryTokens::LittleEndian(Bytes::from(bytes));
    let wide = QueryTokens::Wide(vec![70_001, 70_002]);
    let mut hashes = Vec::new();
    for tokens in [numbers, little, wide] {
        assert_eq!(format!("{tokens:?}"), "QueryTokens(2)");
        let seed = Namespace::default().seed();
        let input = QueryInput::Tokens { tokens, seed, multimodal: Vec::new() };
        let mut locals = Vec::new();
        assert!(input.local_hashes(1, &mut locals).expect("few blocks").is_some());
        hashes.push(locals);
    }
    assert!(hashes.iter().all(|locals| *locals == hashes[0] && locals.len() == 2));
}

fn pool_state() -> PoolState {
    PoolState {
        pool: WorkerId::new("p").expect("a valid id"),
        held_blocks: 2,
        state: SourceState::Exact,
        connected: true,
        lag_batches: 0,
        verified_age: None,
    }
}

#[test]
fn an_answer_carries_every_field() {
    let answer = FindAnswer {
        query_blocks: 4,
        best_overlap_blocks: 3,
        block_size: 16,
        matches: vec![WorkerMatch {
            worker: WorkerId::new("w").expect("a valid id"),
            rank: 2,
            blocks: 3,
            main_group_blocks: 4,
            reusable_tokens: 47,
            speculative_blocks: 4,
            shed_blocks: 5,
            by_tier: [3, 2, 1],
            by_best_tier: [1, 1, 0],
            pool_blocks: 1,
            state: SourceState::Gap,
            applied: None,
            lag_batches: 5,
            verified_age: Some(Duration::from_millis(7)),
            connected: true,
            may_be_high: true,
            reasons: Vec::new(),
        }],
        restoring: vec![WorkerId::new("v").expect("a valid id")],
        pools: vec![pool_state()],
        wants_next_tokens: true,
    };
    let expected = pb::FindMatchesResponse {
        request_id: 9,
        query_blocks: 4,
        best_overlap_blocks: 3,
        block_size: 16,
        matches: vec![pb::WorkerMatch {
            worker_id: "w".to_owned(),
            dp_rank: 2,
            matched_blocks: 3,
            matched_tokens: 48,
            reusable_tokens: 47,
            main_group_blocks: 4,
            blocks_by_tier: Some(pb::BlocksByTier { device: 3, host: 2, disk: 1 }),
            blocks_by_best_tier: Some(pb::BlocksByTier { device: 1, host: 1, disk: 0 }),
            state: pb::WorkerState::Gap.into(),
            applied: None,
            lag_batches: 5,
            verified_age_ms: Some(7),
            speculative_blocks: 4,
            shed_blocks: 5,
            connected: true,
            pool_blocks: 1,
            may_be_high: true,
            reasons: vec![],
        }],
        missing_shards: vec![],
        restoring_worker_ids: vec!["v".to_owned()],
        pools: vec![pb::PoolState {
            pool_id: "p".to_owned(),
            held_blocks: 2,
            state: pb::WorkerState::Exact.into(),
            connected: true,
            lag_batches: 0,
            verified_age_ms: None,
        }],
        wants_next_tokens: true,
    };
    let mut bytes = Vec::new();
    FindReply { request_id: 9, answer }.write(&mut bytes);
    assert_eq!(pb::FindMatchesResponse::decode(&*bytes).expect("protobuf"), expected);
}
