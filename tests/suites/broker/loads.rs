//! Loads over NATS.

use crate::agents::{Broker, MODEL, PATIENCE, WORKER, address, config, heard, start};
use async_nats::Subscriber;
use kvasir_proto::broker::{LOADS_ALL, loads_subject};
use kvasir_proto::codec::decode;
use kvasir_proto::convert::WorkerLoad;
use kvasir_proto::pb;
use kvasir_proto::types::WorkerMetrics;
use kvbm_agent::agent::{Agent, AgentConfig};
use kvbm_agent::broker::Delivery;
use std::time::Duration;
use tokio::time::timeout;

/// So seldom that none comes by itself.
const SELDOM: Duration = Duration::from_secs(3_600);

fn metrics(waiting: u64) -> WorkerMetrics {
    WorkerMetrics {
        num_requests_waiting: Some(waiting),
        gpu_cache_usage_perc: Some(0.5),
        ..WorkerMetrics::UNKNOWN
    }
}

async fn load(loads: &mut Subscriber) -> WorkerLoad {
    let message = heard(loads).await;
    assert_eq!(message.subject.as_str(), loads_subject(&address()));
    let load: pb::WorkerLoad = decode(message.payload).expect("a load");
    assert_eq!((load.model.as_str(), load.worker_id.as_str()), (MODEL, WORKER));
    WorkerLoad::try_from(load).expect("a load")
}

async fn quiet(broker: &Broker, heartbeat_interval: Duration) -> Agent {
    start(AgentConfig { heartbeat_interval, ..config(broker, Delivery::Core) }).await
}

fn say(agent: &Agent, rank: u32, waiting: u64) {
    agent.metrics().publish(rank, metrics(waiting)).expect("in range");
}

#[tokio::test]
async fn whoever_listens_hears_every_rank_that_changes() {
    let broker = Broker::start().await;
    let mut loads = broker.listen(LOADS_ALL).await;
    let agent = quiet(&broker, SELDOM).await;
    for waiting in 0..3 {
        for rank in [0, 1_023] {
            say(&agent, rank, waiting);
            let load = load(&mut loads).await;
            assert_eq!((load.rank, load.metrics), (rank, metrics(waiting)));
        }
    }
    // Of what comes at once the latest is heard, and few of those before.
    for waiting in 0..10_000 {
        say(&agent, 5, waiting);
    }
    let mut messages = 1;
    while load(&mut loads).await.metrics != metrics(9_999) {
        messages += 1;
    }
    assert!(messages < 1_000, "{messages}");
    assert!(agent.stop(PATIENCE).await);
}

#[tokio::test]
async fn with_every_heartbeat_all_ranks_are_published_again() {
    let broker = Broker::start().await;
    let mut loads = broker.listen(LOADS_ALL).await;
    let agent = quiet(&broker, Duration::from_millis(10)).await;
    say(&agent, 0, 1);
    say(&agent, 1, 2);
    let mut count = [0; 2];
    let mut oldest = Duration::ZERO;
    while count.iter().any(|count| *count < 5) || oldest.is_zero() {
        let load = load(&mut loads).await;
        assert_eq!(load.metrics, metrics(u64::from(load.rank) + 1));
        count[load.rank as usize] += 1;
        oldest = oldest.max(load.age);
    }
    // What is heard is counted a moment later.
    let mut broker = agent.watch_broker().expect("a broker");
    let counted = broker.wait_for(|status| status.published_loads >= 10);
    timeout(PATIENCE, counted).await.expect("in time").expect("it runs");
    assert!(agent.stop(PATIENCE).await);
}

#[tokio::test]
async fn a_broker_that_comes_back_is_told_what_is_known() {
    let mut broker = Broker::start().await;
    let mut loads = broker.listen(LOADS_ALL).await;
    let agent = quiet(&broker, SELDOM).await;
    say(&agent, 0, 1);
    assert_eq!(load(&mut loads).await.metrics, metrics(1));
    broker.server.kill().await;
    say(&agent, 0, 2);
    broker.server.restart().await.expect("the server again");
    // Whoever listens before the agent is back hears it; who comes later waits for a heartbeat.
    let mut loads = broker.listen(LOADS_ALL).await;
    say(&agent, 1, 3);
    let mut known = [None; 2];
    while known != [Some(metrics(2)), Some(metrics(3))] {
        let load = load(&mut loads).await;
        known[load.rank as usize] = Some(load.metrics);
    }
    assert!(agent.stop(PATIENCE).await);
}
