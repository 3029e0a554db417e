//! Connections that get old under an agent's uplink, and under readers and clients beside it.

use crate::engine::Engine;
use crate::harness::{PATIENCE, config, delivered, indexed_at, publish, register_at, start, url};
use indexer_server::app::App;
use indexer_server::config::{Action, read};
use kvasir_process::access::Guard;
use kvasir_proto::types::PartitionKey;
use router_client::{ClientConfig, IndexerClient, Prompt};
use std::ffi::OsString;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

const RUN: Duration = Duration::from_secs(6);

/// The server and the agent replace each connection after a second. Nobody notices: no question fails, the uplink goes on
/// without an error, and no batch is lost.
#[tokio::test]
async fn an_uplink_and_queries_go_on_over_connections_that_are_replaced() {
    let age = Some(Duration::from_secs(1));
    let arguments = ["indexer-server", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0"];
    let Ok(Action::Run(mut of_server, _)) = read(arguments.map(OsString::from)) else {
        panic!("refused")
    };
    of_server.grpc.guard.connection_age = age;
    let server = App::build(*of_server).await.expect("free ports");
    let address = server.grpc_address().expect("a port");
    let (stop, stopped) = oneshot::channel::<()>();
    let mut running = JoinSet::new();
    running.spawn(server.run(async {
        let _dropped = stopped.await;
    }));
    let mut of_agent = config(vec![url(address)]);
    of_agent.guard = Guard { connection_age: age, ..Guard::default() };
    register_at(address, None).await;
    let agent = start(of_agent).await;
    let client = ClientConfig { deadline: PATIENCE, ..ClientConfig::default() };
    let client = IndexerClient::connect(&url(address), client).expect("a URL");
    let tokens: Vec<u32> = (0..64).collect();
    let partition = PartitionKey::new("m", "").expect("a name");
    let mut engine = Engine::new(1);
    let mut last = 0;
    let mut asked = 0;
    let mut pace = interval(Duration::from_millis(10));
    let until = Instant::now() + RUN;
    while Instant::now() < until {
        pace.tick().await;
        last = publish(&agent, &mut engine, 1);
        let prompt = Prompt::new("m", crate::engine::BLOCK_SIZE, &tokens);
        let answers = futures::join!(
            client.find(&prompt),
            client.find(&prompt),
            client.list_workers(Some(&partition))
        );
        assert!(answers.0.is_ok() && answers.1.is_ok(), "question {asked}: {answers:?}");
        assert!(answers.2.is_ok(), "list {asked}: {answers:?}");
        let uplink = agent.uplinks().remove(0);
        assert_eq!(uplink.error, None, "after question {asked}");
        asked += 1;
    }
    delivered(&agent, last).await;
    let streams = agent.uplinks()[0].streams;
    assert!((3..=20).contains(&streams), "{streams} streams");
    assert!(asked > 50, "{asked} questions");
    assert_eq!(indexed_at(address).await, engine.truth());
    stop.send(()).expect("a server that runs");
    running.join_next().await.expect("one task").expect("no panic").expect("a clean stop");
}
