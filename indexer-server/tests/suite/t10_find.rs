use crate::harness::{BLOCK_SIZE, Server, assert_refused, query, registration, scores, stored};
use crate::harness::{hello, within};
use kvasir_proto::hash::{Namespace, local_hashes};
use kvasir_proto::pb::{self, published_event};
use tokio_stream::StreamExt;
use tonic::Code;

#[tokio::test]
async fn answers_by_hashes_names_and_both_forms_of_tokens() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let tokens: Vec<u32> = (100..114).collect();
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut locals = Vec::new();
    let seed = Namespace { lora_name: "lora", cache_salt: "salt" }.seed();
    local_hashes(&bytes, BLOCK_SIZE as usize, seed, &[], &mut locals);
    assert_eq!(locals.len(), 3);
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    let event = published_event::Event::Stored(pb::BlocksStored {
        names: vec![7, 8],
        token_ids_le: bytes[..32].to_vec().into(),
        lora_name: "lora".to_owned(),
        cache_salt: "salt".to_owned(),
        ..Default::default()
    });
    publisher.acked(1, vec![event]).await;

    let base = pb::FindMatchesRequest { model: "m".to_owned(), ..Default::default() };
    let named = pb::FindMatchesRequest {
        lora_name: "lora".to_owned(),
        cache_salt: "salt".to_owned(),
        ..base.clone()
    };
    let by_hash = locals.iter().map(|local| local.0).collect();
    for request in [
        pb::FindMatchesRequest { token_ids: tokens, ..named.clone() },
        pb::FindMatchesRequest { token_ids_le: bytes.into(), ..named },
        pb::FindMatchesRequest { local_hashes: by_hash, ..base.clone() },
        pb::FindMatchesRequest { sequence_hashes: vec![7, 8, 9], ..base },
    ] {
        let request = pb::FindMatchesRequest { request_id: 42, ..request };
        let answer = client.find_matches(request).await.expect("a valid query").into_inner();
        assert_eq!((answer.request_id, answer.query_blocks, answer.block_size), (42, 3, 4));
        assert_eq!(answer.best_overlap_blocks, 2);
        assert_eq!(scores(&answer), [("w", 0, 2)]);
        let found = &answer.matches[0];
        assert_eq!(found.matched_tokens, 8);
        assert_eq!(found.blocks_by_tier, Some(pb::BlocksByTier { device: 2, host: 0, disk: 0 }));
        assert_eq!(found.state(), pb::WorkerState::Exact);
        let applied = pb::Cursor { incarnation: vec![1; 16].into(), sequence: 1 };
        assert_eq!((found.applied.clone(), found.lag_batches), (Some(applied), 0));
        assert!(found.verified_age_ms.is_some());
    }
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn tokens_shorter_than_a_block_match_nothing() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(1, vec![stored(None, &[1])]).await;
    let short = pb::FindMatchesRequest {
        model: "m".to_owned(),
        token_ids: vec![1; BLOCK_SIZE as usize - 1],
        ..Default::default()
    };
    let answer = client.find_matches(short.clone()).await.expect("a valid query").into_inner();
    assert_eq!((answer.query_blocks, answer.best_overlap_blocks), (0, 0));
    assert_eq!((scores(&answer), answer.block_size), (vec![], BLOCK_SIZE));
    let all = pb::FindMatchesRequest { minimum_overlap_blocks: Some(0), ..short };
    let answer = client.find_matches(all).await.expect("a valid query").into_inner();
    assert_eq!(scores(&answer), [("w", 0, 0)]);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn filters_order_and_the_best_overlap() {
    let (server, mut client) = Server::with_worker(&[]).await;
    client.register_worker(registration("v")).await.expect("a second worker");
    server.publisher(hello("w", "s", 1)).await.acked(1, vec![stored(None, &[1, 2])]).await;
    server.publisher(hello("v", "s", 1)).await.acked(1, vec![stored(None, &[1, 2])]).await;
    let mut check = async |change: fn(&mut pb::FindMatchesRequest), best, expected: &[_]| {
        let mut request = query(&[1, 2, 3]);
        change(&mut request);
        let answer = client.find_matches(request).await.expect("a valid query").into_inner();
        assert_eq!((answer.best_overlap_blocks, &*scores(&answer)), (best, expected));
    };
    check(|_| {}, 2, &[("v", 0, 2), ("w", 0, 2)]).await;
    check(|request| request.top_k = 1, 2, &[("v", 0, 2)]).await;
    check(|request| request.worker_ids = vec!["w".to_owned()], 2, &[("w", 0, 2)]).await;
    check(|request| request.worker_ids = vec!["x".to_owned()], 0, &[]).await;
    check(|request| request.minimum_overlap_blocks = Some(3), 2, &[]).await;
    check(|request| request.tiers = vec![pb::Tier::Host.into()], 0, &[]).await;
    check(|request| request.local_hashes = vec![99], 0, &[]).await;
    check(
        |request| {
            request.local_hashes = vec![99];
            request.minimum_overlap_blocks = Some(0);
        },
        0,
        &[("v", 0, 0), ("w", 0, 0)],
    )
    .await;
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn what_does_not_fit_the_partition_is_refused() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let unknown = pb::FindMatchesRequest { model: "other".to_owned(), ..query(&[1]) };
    assert_refused(
        client.find_matches(unknown).await,
        Code::NotFound,
        "no worker is registered for model \"other\", tenant \"\"; models of this tenant: m",
    );
    let tenant = pb::FindMatchesRequest { tenant: "t".to_owned(), ..query(&[1]) };
    assert_refused(
        client.find_matches(tenant).await,
        Code::NotFound,
        "no worker is registered for model \"m\", tenant \"t\"; models of this tenant: none",
    );
    let block_size = pb::FindMatchesRequest { block_size: Some(16), ..query(&[1]) };
    assert_refused(
        client.find_matches(block_size).await,
        Code::FailedPrecondition,
        "block_size is 16, but this partition has 4",
    );
    let scheme = pb::FindMatchesRequest { hash_scheme: Some("md5".to_owned()), ..query(&[1]) };
    assert_refused(
        client.find_matches(scheme).await,
        Code::FailedPrecondition,
        "hash_scheme is \"md5\", this server hashes with \"xxh3-64/1337\"",
    );
    let nothing = pb::FindMatchesRequest { local_hashes: vec![], ..query(&[]) };
    assert_refused(
        client.find_matches(nothing).await,
        Code::InvalidArgument,
        "token_ids, token_ids_le, wide_token_ids, local_hashes or sequence_hashes is required",
    );
    let long =
        pb::FindMatchesRequest { token_ids_le: vec![0; 4 * 4 * 65_537].into(), ..query(&[]) };
    assert_refused(
        client.find_matches(long).await,
        Code::InvalidArgument,
        "the tokens fill 65537 blocks, the limit is 65536: send fewer",
    );
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_stream_answers_in_order_and_survives_a_refused_request() {
    let (server, mut client) = Server::with_worker(&[]).await;
    server.publisher(hello("w", "s", 1)).await.acked(1, vec![stored(None, &[1, 2])]).await;
    let requests = (0..1_000_u64).map(|request_id| {
        let names: &[u64] = if request_id % 3 == 0 { &[] } else { &[1, 2] };
        pb::FindMatchesRequest { request_id, ..query(names) }
    });
    let answers = client.find_matches_stream(tokio_stream::iter(requests)).await;
    let answers = answers.expect("an open stream").into_inner();
    let answers: Vec<_> = within(answers.collect()).await;
    assert_eq!(answers.len(), 1_000);
    for (expected, answer) in (0..).zip(answers) {
        let answer = answer.expect("an answer");
        assert_eq!(answer.request_id, expected);
        match answer.outcome.expect("an outcome") {
            pb::find_matches_stream_response::Outcome::Matches(matches) => {
                assert_ne!(expected % 3, 0);
                assert_eq!(scores(&matches), [("w", 0, 2)]);
            }
            pb::find_matches_stream_response::Outcome::Error(error) => {
                assert_eq!((expected % 3, error.code), (0, Code::InvalidArgument.into()));
            }
        }
    }
    server.stop().await.expect("a clean stop");
}
