//! What agents publish while the broker is killed, stopped and started again.

use crate::agents::{
    Broker, INCARNATION, PATIENCE, batch, config, delivered, heard, publish, read, start,
    start_connected, status,
};
use crate::engine::Engine;
use kvasir_proto::broker::EVENTS_ALL;
use kvbm_agent::broker::Delivery;
use rustix::process::Signal;

/// Whatever the stream had acknowledged is in it, and nothing is missing or out of order, though
/// acknowledgements were lost and batches published again.
#[tokio::test]
async fn the_stream_lacks_nothing_after_the_broker_was_killed_under_load() {
    let mut broker = Broker::start().await;
    let agent = start_connected(config(&broker, Delivery::Jetstream)).await;
    let mut engine = Engine::new(11);
    for round in 0..4_u64 {
        let last = publish(&agent, &mut engine, 1_000);
        // At some moment within the load.
        let enough = Some(last - 900 + 200 * round);
        let before = status(&agent, |status| status.published >= enough).await;
        broker.server.kill().await;
        publish(&agent, &mut engine, 500);
        let down = status(&agent, |status| !status.connected).await;
        assert!(down.error.is_some() && down.published >= before.published, "{down:?}");
        broker.server.restart().await.expect("the server again");
        let numbers = broker.numbers(INCARNATION).await;
        let expected: Vec<u64> = (0..numbers.len() as u64).collect();
        assert_eq!(numbers, expected);
        assert!(numbers.last().copied() >= down.published, "it was acknowledged: {down:?}");
    }
    let last = publish(&agent, &mut engine, 1);
    delivered(&agent, last).await;
    let all: Vec<u64> = (0..=last).collect();
    assert_eq!(broker.numbers(INCARNATION).await, all);
    assert!(agent.broker().expect("a broker").connections > 4);
}

/// A broker that hangs: nothing is acknowledged in time, so all is published again, under the same
/// ids; then both come to the stream.
#[tokio::test]
async fn what_is_not_acknowledged_in_time_is_published_again_under_its_id() {
    let broker = Broker::start().await;
    let agent = start_connected(config(&broker, Delivery::Jetstream)).await;
    let mut engine = Engine::new(12);
    let first = publish(&agent, &mut engine, 100);
    delivered(&agent, first).await;
    broker.server.signal(Signal::STOP).expect("it runs");
    publish(&agent, &mut engine, 100);
    let down = status(&agent, |status| !status.connected).await;
    let error = down.error.expect("an error");
    // Which one: a signal takes a moment; or the client finds out first that nobody is there.
    let is_late = error.contains(" is not acknowledged: timed out");
    assert!(is_late || &*error == "the connection is lost", "{error}");
    broker.server.signal(Signal::CONT).expect("it runs");
    let last = publish(&agent, &mut engine, 100);
    delivered(&agent, last).await;
    let all: Vec<u64> = (0..=last).collect();
    assert_eq!(broker.numbers(INCARNATION).await, all);
}

/// Nobody keeps what is said while nobody listens; what is said then goes out in order.
#[tokio::test]
async fn core_publishing_goes_on_where_it_stood() {
    let mut broker = Broker::start().await;
    let agent = start_connected(config(&broker, Delivery::Core)).await;
    let mut engine = Engine::new(13);
    let first = publish(&agent, &mut engine, 100);
    delivered(&agent, first).await;
    broker.server.kill().await;
    status(&agent, |status| !status.connected).await;
    publish(&agent, &mut engine, 100);
    broker.server.restart().await.expect("the server again");
    let mut batches = broker.listen(EVENTS_ALL).await;
    let next = publish(&agent, &mut engine, 1);
    let last = publish(&agent, &mut engine, 300);
    delivered(&agent, last).await;
    let mut numbers = Vec::new();
    while numbers.last() != Some(&last) {
        numbers.push(batch(&read(heard(&mut batches).await.payload)).sequence);
    }
    // The agent may have been there before the listener.
    let from = numbers[0];
    assert!(first < from && from <= next, "{from}");
    assert_eq!(numbers, (from..=last).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_the_journal_has_lost_is_skipped_and_counted() {
    let mut broker = Broker::start().await;
    let mut config = config(&broker, Delivery::Jetstream);
    config.source.journal.batches_max = 10;
    broker.server.kill().await;
    let agent = start(config).await;
    let last = publish(&agent, &mut Engine::new(14), 50);
    status(&agent, |status| status.error.is_some()).await;
    broker.server.restart().await.expect("the server again");
    delivered(&agent, last).await;
    assert_eq!(broker.numbers(INCARNATION).await, (40..50).collect::<Vec<_>>());
    assert_eq!(agent.broker().expect("a broker").skipped_batches, 40);
}

#[tokio::test]
async fn a_broker_that_cannot_be_reached_is_not_waited_for() {
    let mut broker = Broker::start().await;
    broker.server.kill().await;
    let agent = start(config(&broker, Delivery::Jetstream)).await;
    publish(&agent, &mut Engine::new(15), 10);
    status(&agent, |status| status.error.is_some()).await;
    assert!(agent.stop(PATIENCE).await);
}
