//! A real index that is killed and comes back empty.

use crate::engine::Engine;
use crate::harness::{self, config, delivered, indexed, publish, start, url};
use kvasir_proto::types::{Incarnation, KvEvent};
use kvasir_sim::server::Server;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;

const ROUNDS: u64 = 4;

/// Ends a server as a crash does.
async fn kill(mut server: Server) -> (SocketAddr, SocketAddr) {
    let process = server.process_id().and_then(|id| Pid::from_raw(id as i32));
    kill_process(process.expect("a running server"), Signal::KILL).expect("our own child");
    let end = server.exited().await;
    assert!(end.to_string().contains("signal: 9"), "{end:?}");
    (server.addresses.grpc, server.addresses.http)
}

#[tokio::test]
async fn an_index_that_is_killed_has_all_again() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut server = harness::server(any, any).await;
    for seed in 0..ROUNDS {
        println!("seed {seed}");
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut engine = Engine::new(seed);
        let agent = start(config(vec![url(server.addresses.grpc)])).await;
        // A new life of the source: what the one before stored goes.
        agent.begin_incarnation(Incarnation(100 + u128::from(seed)), random.random_range(0..1_000));
        let before = publish(&agent, &mut engine, random.random_range(1..300));
        // Some of it has arrived, at least.
        delivered(&agent, before - random.random_range(0..=before.min(20))).await;
        publish(&agent, &mut engine, random.random_range(1..100));
        let (grpc, http) = kill(server).await;
        publish(&agent, &mut engine, random.random_range(1..100));
        server = harness::server(grpc, http).await;
        let last = publish(&agent, &mut engine, random.random_range(1..100));
        delivered(&agent, last).await;
        assert_eq!(indexed(&server).await, engine.truth(), "seed {seed}");
        let uplink = agent.uplinks().remove(0);
        assert!(uplink.connected && uplink.streams >= 2, "{uplink:?}");
        assert_eq!((uplink.skipped_batches, uplink.error), (0, None));
        assert!(agent.stop(harness::PATIENCE).await);
    }
    server.stop().await;
}

/// A journal of a few batches: an index that comes late, or back empty, dumps what is held.
#[tokio::test]
async fn what_the_journal_has_lost_is_dumped() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut server = Server::start(any, any).await.expect("a server");
    let mut config = config(vec![url(server.addresses.grpc)]);
    config.source.journal.batches_max = 20;
    let agent = start(config).await;
    let mut engine = Engine::new(5);
    publish(&agent, &mut engine, 300);
    harness::register(&server, agent.local_address()).await;
    for round in 0..3 {
        let last = publish(&agent, &mut engine, 10);
        delivered(&agent, last).await;
        assert_eq!(indexed(&server).await, engine.truth(), "round {round}");
        let (grpc, http) = kill(server).await;
        publish(&agent, &mut engine, 40);
        server = Server::start(grpc, http).await.expect("a server");
        harness::register(&server, agent.local_address()).await;
    }
    let last = publish(&agent, &mut engine, 10);
    delivered(&agent, last).await;
    assert_eq!(indexed(&server).await, engine.truth());
    assert!(agent.uplinks()[0].skipped_batches >= 280, "{:?}", agent.uplinks());
    assert!(agent.stop(harness::PATIENCE).await);
    server.stop().await;
}

#[tokio::test]
async fn a_new_incarnation_begins_empty_and_replicas_are_fed_alike() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut servers = [harness::server(any, any).await, harness::server(any, any).await];
    let endpoints = servers.iter().map(|server| url(server.addresses.grpc)).collect();
    let agent = start(config(endpoints)).await;
    let mut engine = Engine::new(1);
    let last = publish(&agent, &mut engine, 200);
    delivered(&agent, last).await;
    for server in &servers {
        assert_eq!(indexed(server).await, engine.truth());
    }
    // Numbers of the old life may be far beyond those of the new one.
    agent.begin_incarnation(Incarnation(8), 3);
    let mut engine = Engine::new(2);
    assert_eq!(publish(&agent, &mut engine, 50), 52);
    delivered(&agent, 52).await;
    for server in &servers {
        assert_eq!(indexed(server).await, engine.truth());
    }
    let last = agent.publish(0, vec![KvEvent::Cleared]).expect("a batch");
    delivered(&agent, last).await;
    for server in &mut servers {
        assert!(indexed(server).await.is_empty());
        server.stop().await;
    }
}
