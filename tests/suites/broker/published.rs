//! What agents publish while the broker is well.

use crate::agents::{
    Broker, INCARNATION, PATIENCE, address, batch, config, delivered, heard, publish, read, start,
    start_connected,
};
use crate::engine::Engine;
use async_nats::Subscriber;
use kvasir_proto::broker::{EVENTS_ALL, HEARTBEATS_ALL, events_subject, heartbeats_subject};
use kvasir_proto::convert::{BrokerMessage, Heartbeat, Registration, SourceMessage, publish_batch};
use kvasir_proto::types::{BlockName, Incarnation, KvEvent, Tier, WorkerId};
use kvbm_agent::agent::Agent;
use kvbm_agent::broker::Delivery;
use std::time::Duration;

const LATER: Incarnation = Incarnation(8);
/// So seldom that none comes by itself.
const SELDOM: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn whoever_listens_hears_every_batch_in_order() {
    let broker = Broker::start().await;
    let mut batches = broker.listen(EVENTS_ALL).await;
    let agent = start(config(&broker, Delivery::Core)).await;
    let mut engine = Engine::new(1);
    let mut published = Vec::new();
    for at in 0..500 {
        let rank = at % 3;
        let events = engine.batch();
        published.push((rank, events.clone()));
        agent.publish(rank, events).expect("a batch");
    }
    delivered(&agent, 499).await;
    for (sequence, (rank, events)) in (0..).zip(published) {
        let message = heard(&mut batches).await;
        assert_eq!(message.subject.as_str(), events_subject(&address(), rank));
        let message = read(message.payload);
        assert_eq!(*batch(&message), publish_batch(sequence, rank, &events));
        assert_eq!((message.incarnation, message.first_sequence), (INCARNATION, 0));
    }
    assert_eq!(agent.broker().expect("a broker").skipped_batches, 0);
}

#[tokio::test]
async fn the_stream_has_every_batch_once_in_order() {
    let broker = Broker::start().await;
    let agent = start(config(&broker, Delivery::Jetstream)).await;
    // Several times what may be under way.
    let last = publish(&agent, &mut Engine::new(2), 2_000);
    delivered(&agent, last).await;
    let all: Vec<u64> = (0..=last).collect();
    assert_eq!(broker.numbers(INCARNATION).await, all);
    let status = agent.broker().expect("a broker");
    assert_eq!((status.connections, status.published, status.error), (1, Some(last), None));
}

#[tokio::test]
async fn heartbeats_name_the_newest_batch() {
    let broker = Broker::start().await;
    for delivery in [Delivery::Core, Delivery::Jetstream] {
        let mut heartbeats = broker.listen(HEARTBEATS_ALL).await;
        let mut config = config(&broker, delivery);
        config.heartbeat_interval = Duration::from_millis(10);
        let agent = start(config).await;
        for batches in [0, 5, 500] {
            let last = (batches > 0).then(|| publish(&agent, &mut Engine::new(3), batches));
            let digest = agent.digest();
            assert!(digest.is_some_and(|digest| last.is_some() == (digest != 0)), "{digest:?}");
            let named = SourceMessage::Heartbeat(Heartbeat { digest, ..Heartbeat::at(last) });
            while heartbeat(&mut heartbeats).await.message != named {}
        }
    }
}

/// The next heartbeat.
async fn heartbeat(heartbeats: &mut Subscriber) -> BrokerMessage {
    let message = heard(heartbeats).await;
    assert_eq!(message.subject.as_str(), heartbeats_subject(&address()));
    read(message.payload)
}

/// Indexes hear of a new life at once, though nothing is held in it yet.
#[tokio::test]
async fn a_new_incarnation_is_told_of_without_delay() {
    let broker = Broker::start().await;
    for delivery in [Delivery::Core, Delivery::Jetstream] {
        let mut heartbeats = broker.listen(HEARTBEATS_ALL).await;
        let mut config = config(&broker, delivery);
        config.heartbeat_interval = SELDOM;
        let agent = start(config).await;
        assert_eq!(heartbeat(&mut heartbeats).await.incarnation, INCARNATION);
        let last = publish(&agent, &mut Engine::new(4), 10);
        delivered(&agent, last).await;
        agent.begin_incarnation(LATER, 100);
        let message = heartbeat(&mut heartbeats).await;
        assert_eq!((message.incarnation, message.first_sequence), (LATER, 100));
        assert_eq!(
            message.message,
            SourceMessage::Heartbeat(Heartbeat { digest: Some(0), ..Heartbeat::at(None) })
        );
        let last = publish(&agent, &mut Engine::new(5), 10);
        delivered(&agent, last).await;
        assert_eq!(last, 109);
    }
    let (before, after): (Vec<u64>, Vec<u64>) = ((0..10).collect(), (100..110).collect());
    assert_eq!((broker.numbers(INCARNATION).await, broker.numbers(LATER).await), (before, after));
}

/// Only the journal bounds how much is published at once.
#[tokio::test]
async fn a_large_batch_goes_out_as_several() {
    let broker = Broker::start().await;
    let agent = start(config(&broker, Delivery::Jetstream)).await;
    let names: Vec<BlockName> = (0..60_000).map(|name| BlockName(name | 1 << 63)).collect();
    let events = vec![KvEvent::StoredNames { tier: Tier::Device, names: names.clone() }; 3];
    let last = agent.publish(0, events).expect("a batch");
    delivered(&agent, last).await;
    assert_eq!(broker.numbers(INCARNATION).await, [0, 1, 2]);
    let messages = broker.stream().await;
    let events = messages.iter().flat_map(|(_, message)| &batch(message).events);
    assert_eq!(events.count(), 3 + 2, "two of them are in two parts");
}

#[tokio::test]
async fn what_was_published_is_delivered_before_the_end() {
    let broker = Broker::start().await;
    let mut batches = broker.listen(EVENTS_ALL).await;
    for (life, delivery) in [(INCARNATION, Delivery::Core), (LATER, Delivery::Jetstream)] {
        let mut config = config(&broker, delivery);
        config.source.incarnation = life;
        let agent = start_connected(config).await;
        let last = publish(&agent, &mut Engine::new(6), 1_000);
        assert!(agent.stop(PATIENCE).await);
        for sequence in 0..=last {
            let message = read(heard(&mut batches).await.payload);
            assert_eq!((message.incarnation, batch(&message).sequence), (life, sequence));
        }
    }
    let all: Vec<u64> = (0..1_000).collect();
    assert_eq!(broker.numbers(LATER).await, all);
}

/// The rest goes on; indexes ask for it elsewhere.
#[tokio::test]
async fn a_batch_that_the_server_refuses_for_its_size_is_skipped() {
    let broker = Broker::start_with("max_payload: 4096").await;
    for delivery in [Delivery::Core, Delivery::Jetstream] {
        let mut batches = broker.listen(EVENTS_ALL).await;
        let agent = start(config(&broker, delivery)).await;
        let removed = |count: u64| {
            let names = (0..count).map(BlockName).collect();
            vec![KvEvent::Removed { tier: Tier::Device, names }]
        };
        for count in [10, 600, 10, 600] {
            agent.publish(0, removed(count)).expect("a batch");
        }
        delivered(&agent, 3).await;
        let heard = [heard(&mut batches).await, heard(&mut batches).await];
        assert_eq!(heard.map(|message| batch(&read(message.payload)).sequence), [0, 2]);
        let status = agent.broker().expect("a broker");
        assert_eq!((status.connected, status.skipped_batches), (true, 2));
        let error = status.error.expect("an error");
        assert!(error.starts_with("batch 3 is not published: "), "{error}");
        assert!(error.contains("payload"), "{error}");
    }
}

#[tokio::test]
async fn an_agent_says_why_it_does_not_start() {
    let broker = Broker::start().await;
    let with = |change: fn(&mut Registration)| {
        let mut config = config(&broker, Delivery::Core);
        change(&mut config.broker.as_mut().expect("a broker").registration);
        config
    };
    let other = with(|of| of.worker = WorkerId::new("other").expect("a name"));
    let sizes = with(|of| of.block_size = 128);
    let short = with(|of| of.lease = Some(Duration::from_millis(1)));
    for (config, expected) in [
        (other, "broker: worker is "),
        (sizes, "broker: block_size is 128, must be 4"),
        (short, "broker: worker.lease_ms is 1, must be 1000 to 3600000"),
    ] {
        let error = Agent::start(config).await.expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
