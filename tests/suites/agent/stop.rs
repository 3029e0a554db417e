//! How agents end.

use crate::engine::Engine;
use crate::fake::{Index, Script};
use crate::harness::{PATIENCE, config, publish, start, url};
use kvasir_feed::hub::{BATCH_BLOCKS_MAX, BATCH_INTERVAL_MAX, BatchingConfig, HubConfig};
use kvasir_proto::types::CopyMode;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

#[tokio::test]
async fn what_was_published_is_delivered_before_the_end() {
    let mut tasks = JoinSet::new();
    let (index, address) = Index::start(Script::default(), &mut tasks).await;
    let agent = start(config(vec![url(address)])).await;
    let mut engine = Engine::new(1);
    let first = publish(&agent, &mut engine, 1);
    agent.delivered(first).await;
    let last = publish(&agent, &mut engine, 300);
    assert!(agent.stop(PATIENCE).await);
    let all: Vec<u64> = (0..=last).collect();
    assert_eq!(index.notes().applied, all);
}

#[tokio::test]
async fn what_waits_is_published_and_delivered_before_the_end() {
    let mut tasks = JoinSet::new();
    let (index, address) = Index::start(Script::default(), &mut tasks).await;
    let batching = BatchingConfig { interval: BATCH_INTERVAL_MAX, blocks_max: BATCH_BLOCKS_MAX };
    let mut config = config(vec![url(address)]);
    config.sources.hub = HubConfig { batching, ..HubConfig::DEFAULT };
    let agent = start(config).await;
    for mut uplink in agent.watch_uplinks() {
        uplink.wait_for(|uplink| uplink.connected).await.expect("the agent is there");
    }
    let inlet = agent.hub().open("engine", CopyMode::Counted).expect("a source");
    let mut engine = Engine::new(1);
    for _ in 0..3 {
        inlet.take(0, engine.batch()).expect("taken");
    }
    assert!(agent.hub().waiting_blocks() > 0);
    assert_eq!(agent.status().head, None, "what waits has no number");
    assert!(agent.stop(PATIENCE).await);
    assert_eq!(index.notes().applied, [0]);
}

#[tokio::test]
async fn an_index_that_cannot_be_reached_is_not_waited_for() {
    // Nobody listens there.
    let agent = start(config(vec!["http://127.0.0.1:1".to_owned()])).await;
    publish(&agent, &mut Engine::new(1), 10);
    let ended = timeout(PATIENCE / 2, agent.stop(PATIENCE)).await;
    assert!(ended.expect("soon"));
}

#[tokio::test]
async fn an_index_that_never_answers_is_waited_for_so_long() {
    let mut tasks = JoinSet::new();
    let script = Script { gated: true, ..Script::default() };
    let (index, address) = Index::start(script, &mut tasks).await;
    let agent = start(config(vec![url(address)])).await;
    publish(&agent, &mut Engine::new(1), 10);
    let mut received = index.received.subscribe();
    received.wait_for(|received| *received == 10).await.expect("the index is there");
    let ended = timeout(PATIENCE, agent.stop(Duration::from_millis(50))).await;
    assert!(!ended.expect("soon"), "nothing was delivered");
}
