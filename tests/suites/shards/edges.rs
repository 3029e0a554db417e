//! What a client of several servers says when there is nothing to say.

use crate::fleet::{BLOCK_SIZE, MODEL, PATIENCE, url};
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::engine::{EngineConfig, MockEngine, Prompt as EnginePrompt};
use kvasir_sim::server::Server;
use router_client::{ClientConfig, ClientError, HedgeConfig, Prompt, REPLICAS_MAX};
use router_client::{ShardedClient, ShardedConfig};
use std::net::SocketAddr;
use tonic::Code;

async fn server(flags: &[&str]) -> Server {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Server::start_with(any, any, flags).await.expect("a server")
}

fn config() -> ShardedConfig {
    let client = ClientConfig { deadline: PATIENCE, ..ClientConfig::default() };
    ShardedConfig { client, hedge: HedgeConfig::default() }
}

fn code(outcome: Result<impl std::fmt::Debug, ClientError>) -> Code {
    match outcome {
        Err(ClientError::Status(status)) => status.code(),
        other => panic!("not a status: {other:?}"),
    }
}

#[tokio::test]
async fn shards_that_cannot_be_are_refused() {
    let check = |shards: Vec<Vec<&str>>, expected: &str| {
        let refused = ShardedClient::connect(shards, &config()).expect_err(expected);
        assert!(refused.to_string().starts_with(expected), "{refused}");
    };
    let one = "http://127.0.0.1:1";
    check(vec![], "the number of shards is 0, must be 1 to 256");
    check(vec![vec![one]; 257], "the number of shards is 257, must be 1 to 256");
    check(vec![vec![one], vec![]], "shard 1 has 0 replicas, not 1 to 8");
    check(vec![vec![one; REPLICAS_MAX + 1]], "shard 0 has 9 replicas, not 1 to 8");
    check(vec![vec!["two words"]], "endpoint \"two words\" must be host:port");
}

#[tokio::test]
async fn a_shard_without_the_model_is_not_a_missing_one() {
    let mut servers = [server(&["--shard=0/2"]).await, server(&["--shard=1/2"]).await];
    let asker = ShardedClient::connect(servers.iter().map(|at| [url(at)]), &config());
    let asker = asker.expect("URLs");
    let tokens: Vec<u32> = (0..3 * BLOCK_SIZE).collect();
    let prompt = Prompt::new(MODEL, BLOCK_SIZE, &tokens);
    assert_eq!(code(asker.find(&prompt).await), Code::NotFound);

    let names = crate::fleet::names(2, 1);
    let mut indexer = client::connect(servers[0].addresses.grpc).await.expect("a server");
    let registration = |name: &String| pb::RegisterWorkerRequest {
        worker_id: name.clone(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE,
        ..Default::default()
    };
    let mut registered = 0;
    for name in &names {
        registered += usize::from(indexer.register_worker(registration(name)).await.is_ok());
    }
    assert_eq!((names.len(), registered), (2, 1), "each shard has one of them");
    let answer = asker.find(&prompt).await.expect("an answer");
    assert_eq!((answer.query_blocks, &*answer.missing_shards), (3, &[][..]));
    let wrong = Prompt { block_size: 8, ..prompt };
    assert_eq!(code(asker.find(&wrong).await), Code::FailedPrecondition);

    servers[1].stop().await;
    let answer = asker.find(&prompt).await.expect("an answer of the other");
    assert_eq!((answer.query_blocks, answer.missing_shards), (3, vec![1]));
    servers[0].stop().await;
    assert_eq!(code(asker.find(&prompt).await), Code::Unavailable);
}

/// A replica that was just started answers at once, and knows nothing. Nobody is told that.
#[tokio::test]
async fn the_first_question_of_a_client_goes_to_a_replica_that_knows() {
    let engine = MockEngine::start(EngineConfig::default()).await.expect("an engine");
    let tokens: Vec<u32> = (0..3 * BLOCK_SIZE).collect();
    let prompt = EnginePrompt { tokens: tokens.clone(), answer: vec![1] };
    engine.run(prompt).await.expect("a small prompt");
    let worker = |live: &str, replay: &str| {
        format!(
            "--worker=id=w,model={MODEL},block-size={BLOCK_SIZE},engine=vllm,endpoint={live},\
             replay={replay}"
        )
    };
    let mut warm = server(&[&worker(engine.endpoint(), engine.replay_endpoint())]).await;
    let mut cold = server(&[&worker("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")]).await;
    let mut indexer = client::connect(warm.addresses.grpc).await.expect("a server");
    let last = engine.truth().await.expect("an engine").last_sequence.expect("it has published");
    let exact = |source: &pb::SourceInfo| client::is_exact_at(source, last);
    let worker = (MODEL, "w");
    client::wait_for_sources(&mut indexer, worker, "exact", PATIENCE, exact).await.expect("exact");

    let prompt = Prompt::new(MODEL, BLOCK_SIZE, &tokens);
    let hedge = HedgeConfig { delay_max: PATIENCE, ..HedgeConfig::default() };
    let config = ShardedConfig { hedge, ..config() };
    for _ in 0..20 {
        let asker = ShardedClient::connect([[url(&warm), url(&cold)]], &config).expect("URLs");
        for _ in 0..3 {
            let answer = asker.find(&prompt).await.expect("an answer");
            assert_eq!(answer.best().map(|best| best.blocks), Some(3));
        }
    }
    warm.stop().await;
    cold.stop().await;
    engine.stop().await;
}
