use crate::harness::{BLOCK_SIZE, Server, counter, registration, within};
use kvasir_proto::pb;
use kvasir_proto::pb::indexer_client::IndexerClient;
use std::time::Duration;
use tokio::time::sleep;
use tonic::transport::Channel;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

/// A batch as vLLM encodes it: `[ts, [["BlockStored", [name], nil, tokens, size, nil]], rank]`.
pub(crate) fn vllm_batch(name: u64, tokens: &[u32]) -> Vec<u8> {
    let mut out = Vec::new();
    let unwritten = "a Vec takes everything";
    rmp::encode::write_array_len(&mut out, 3).expect(unwritten);
    rmp::encode::write_f64(&mut out, 1.5).expect(unwritten);
    rmp::encode::write_array_len(&mut out, 1).expect(unwritten);
    rmp::encode::write_array_len(&mut out, 6).expect(unwritten);
    rmp::encode::write_str(&mut out, "BlockStored").expect(unwritten);
    rmp::encode::write_array_len(&mut out, 1).expect(unwritten);
    rmp::encode::write_uint(&mut out, name).expect(unwritten);
    rmp::encode::write_nil(&mut out).expect(unwritten);
    rmp::encode::write_array_len(&mut out, u32::try_from(tokens.len()).expect("few"))
        .expect(unwritten);
    for token in tokens {
        rmp::encode::write_uint(&mut out, u64::from(*token)).expect(unwritten);
    }
    rmp::encode::write_uint(&mut out, u64::from(BLOCK_SIZE)).expect(unwritten);
    rmp::encode::write_nil(&mut out).expect(unwritten);
    rmp::encode::write_uint(&mut out, 0).expect(unwritten);
    out
}

pub(crate) async fn send(socket: &mut PubSocket, sequence: u64, payload: Vec<u8>) {
    let mut message = ZmqMessage::from("");
    message.push_back(sequence.to_be_bytes().to_vec().into());
    message.push_back(payload.into());
    socket.send(message).await.expect("a bound socket");
}

pub(crate) async fn source(client: &mut IndexerClient<Channel>) -> pb::SourceInfo {
    let list = client.list_workers(pb::ListWorkersRequest::default()).await.expect("a list");
    list.into_inner().workers.remove(0).sources.remove(0)
}

#[tokio::test]
async fn an_engine_is_followed_over_its_socket() {
    let mut engine = PubSocket::new();
    let endpoint = engine.bind("tcp://127.0.0.1:0").await.expect("a free port").to_string();
    let server = Server::start(&[]).await;
    let mut client = server.indexer().await;
    let request = pb::RegisterWorkerRequest {
        engine: pb::Engine::Vllm.into(),
        endpoints: vec![pb::EngineEndpoint { endpoint: endpoint.clone(), ..Default::default() }],
        ..registration("w")
    };
    client.register_worker(request).await.expect("an endpoint to connect to");
    // Slow joiners miss messages, so the publisher sends further batches until one arrives.
    let tokens = [1, 2, 3, 4];
    let matched = within(async {
        for sequence in 0.. {
            send(&mut engine, sequence, vllm_batch(77, &tokens)).await;
            let request = pb::FindMatchesRequest {
                model: "m".to_owned(),
                token_ids: tokens.to_vec(),
                ..Default::default()
            };
            let answer = client.find_matches(request).await.expect("a valid query").into_inner();
            if !answer.matches.is_empty() {
                return answer;
            }
            sleep(Duration::from_millis(10)).await;
        }
        unreachable!("sequences do not end")
    })
    .await;
    assert_eq!(crate::harness::scores(&matched), [("w", 0, 1)]);
    assert!(matched.matches[0].connected);
    let source = source(&mut client).await;
    assert_eq!((source.source, source.connected), (endpoint, true));
    // Operations are counted shortly after they become visible.
    within(async {
        loop {
            let stats = client.get_stats(pb::GetStatsRequest {}).await.expect("stats").into_inner();
            let outcomes = ["applied", "noop", "ignored", "rejected", "conflict", "shed"];
            let met: u64 = outcomes.iter().map(|at| counter(&stats, "block", at)).sum();
            if met > 0 && met == counter(&stats, "block", "received") {
                break;
            }
        }
    })
    .await;
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_worker_whose_engine_is_away_is_cold_and_can_be_removed() {
    let server = Server::start(&[]).await;
    let mut client = server.indexer().await;
    let endpoint =
        pb::EngineEndpoint { endpoint: "tcp://127.0.0.1:1".to_owned(), ..Default::default() };
    let request = pb::RegisterWorkerRequest { endpoints: vec![endpoint], ..registration("w") };
    client.register_worker(request).await.expect("nothing needs to listen there");
    let query = pb::FindMatchesRequest {
        model: "m".to_owned(),
        local_hashes: vec![1],
        minimum_overlap_blocks: Some(0),
        ..Default::default()
    };
    let answer = client.find_matches(query).await.expect("a valid query").into_inner();
    assert_eq!(crate::harness::scores(&answer), [("w", 0, 0)]);
    assert_eq!(answer.matches[0].state(), pb::WorkerState::Cold);
    assert!(!answer.matches[0].connected && !source(&mut client).await.connected);
    let request = pb::RemoveWorkerRequest {
        worker_id: "w".to_owned(),
        model: "m".to_owned(),
        ..Default::default()
    };
    within(client.remove_worker(request)).await.expect("a known worker");
    server.stop().await.expect("a clean stop");
}
