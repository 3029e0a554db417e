//! Tests sockets on which several engines publish, each with its own topic, with one numbering.

use super::publisher::Answer;
use super::{Publisher, Received, Receiver, config, with_link};
use bytes::Bytes;
use kvasir_proto::types::SourceState;
use tokio::select;
use tokio::task::yield_now;

/// The link's own topic, and another one that also begins with the subscription.
const TOPICS: [&str; 2] = ["kv@10.0.0.1:8000@m", "kv@10.0.0.12:8000@m"];
const SUBSCRIPTION: &[u8] = b"kv@10.0.0.1";

impl Receiver {
    /// Publishes, answers replays and receives commands until `done`.
    async fn live_until(&mut self, publisher: &mut Publisher, done: impl Fn(&Received) -> bool) {
        while !done(&self.received) {
            publisher.publish().await;
            select! {
                biased;
                command = self.commands.recv() => self.received.take(command.expect("the link runs")),
                () = publisher.serve_replay() => {}
                () = yield_now() => {}
            }
        }
    }
}

fn is_own(held: &Received) -> bool {
    held.held.iter().all(|name| name.is_multiple_of(2))
}

/// Whether many own batches and no others were applied, although both came, and the state shows missing
/// numbers.
fn is_right(received: &Received) -> bool {
    let other = received.outcomes.get("other_topic").copied().unwrap_or(0);
    let is_known = received.state() == Some(SourceState::Degraded);
    is_known && received.held.len() > 8 && other > 8 && is_own(received)
}

#[tokio::test]
async fn a_topic_that_another_one_begins_with_takes_its_own_batches() {
    for answer in [None, Some(Answer::FourFrames)] {
        let mut publisher = Publisher::bind().await;
        publisher.topics = TOPICS;
        publisher.answers = answer.into_iter().collect();
        for _ in 0..4 {
            publisher.lose();
        }
        let mut config = config(&publisher);
        config.topic = Bytes::from_static(SUBSCRIPTION);
        config.replay = config.replay.filter(|_| answer.is_some());
        with_link(config, None, async |mut receiver| {
            receiver.live_until(&mut publisher, is_right).await;
            assert!(receiver.received.applied.iter().all(|at| at.is_multiple_of(2)));
        })
        .await;
    }
}

/// Replays without topics are accepted until the socket shows several topics.
#[tokio::test]
async fn what_replays_without_topics_brought_goes_once_another_topic_shows() {
    let mut publisher = Publisher::bind().await;
    publisher.topics = TOPICS;
    publisher.answers = vec![Answer::ThreeFrames];
    for _ in 0..4 {
        publisher.lose();
    }
    let mut config = config(&publisher);
    config.topic = Bytes::from_static(SUBSCRIPTION);
    with_link(config, None, async |mut receiver| {
        receiver.until(&mut publisher, |received, _| received.held.len() == 4).await;
        assert!(!is_own(&receiver.received), "nobody can know");
        receiver.live_until(&mut publisher, is_right).await;
    })
    .await;
}
