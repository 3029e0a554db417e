//! Uplinks against indexes made here.

use crate::engine::Engine;
use crate::fake::{Index, Script};
use crate::harness::{INCARNATION, PATIENCE, config, delivered, publish, start, url};
use kvbm_agent::agent::{Agent, AgentError, INDEXERS_MAX};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Batches that an uplink sends ahead of their answers.
const UNDER_WAY_MAX: usize = 64;

async fn received(index: &Index, batches: usize) {
    let mut received = index.received.subscribe();
    let waited = timeout(PATIENCE, received.wait_for(|received| *received >= batches)).await;
    waited.expect("the batches come").expect("the index is there");
}

#[tokio::test]
async fn batches_go_ahead_of_their_answers_and_no_further() {
    let mut tasks = JoinSet::new();
    let script = Script { gated: true, ..Script::default() };
    let (index, address) = Index::start(script, &mut tasks).await;
    let agent = start(config(vec![url(address)])).await;
    let last = publish(&agent, &mut Engine::new(1), 500);
    received(&index, UNDER_WAY_MAX).await;
    for allowed in [1, 10, 60] {
        index.gate.add_permits(allowed);
        let before = *index.received.borrow();
        received(&index, before + allowed).await;
        // Each answer lets one more batch come, and there are no others.
        assert_eq!(*index.received.borrow(), before + allowed);
    }
    index.gate.add_permits(500);
    delivered(&agent, last).await;
    let all: Vec<u64> = (0..=last).collect();
    assert_eq!(index.notes().received, all);
    let hello = index.notes().hellos.remove(0);
    assert_eq!((hello.incarnation, hello.first_sequence), (INCARNATION, Some(0)));
}

/// Whatever was under way when a stream broke off is sent again, once, in order.
#[tokio::test]
async fn a_stream_that_breaks_off_is_gone_on_with() {
    let mut tasks = JoinSet::new();
    let script = Script { breaks_after: Some(7), ..Script::default() };
    let (index, address) = Index::start(script, &mut tasks).await;
    let agent = start(config(vec![url(address)])).await;
    let last = publish(&agent, &mut Engine::new(1), 40);
    delivered(&agent, last).await;
    let all: Vec<u64> = (0..=last).collect();
    assert_eq!(index.notes().applied, all);
    assert_eq!(index.notes().hellos.len(), 6, "seven batches a stream");
    assert_eq!(index.notes().silent_streams, 0, "what is to be thought of the source comes first");
    assert_eq!(agent.uplinks()[0].streams, 6);
}

#[tokio::test]
async fn an_index_that_has_some_already_gets_the_rest() {
    let mut tasks = JoinSet::new();
    let script = Script { applied: Some(11), ..Script::default() };
    let (index, address) = Index::start(script, &mut tasks).await;
    let mut config = config(vec![url(address)]);
    config.source.first_sequence = 5;
    let agent = start(config).await;
    publish(&agent, &mut Engine::new(1), 20);
    delivered(&agent, 24).await;
    let rest: Vec<u64> = (12..25).collect();
    assert_eq!(index.notes().received, rest);
}

/// What the journal cannot keep is a gap, and the index is told where the life began.
#[tokio::test]
async fn what_the_journal_has_lost_is_skipped_and_counted() {
    let mut tasks = JoinSet::new();
    let (index, address) = Index::start(Script::default(), &mut tasks).await;
    let mut config = config(vec![url(address)]);
    config.source.journal.batches_max = 10;
    // Nobody else runs until the first wait, so nothing is sent before the journal has turned over.
    let agent = start(config).await;
    let last = publish(&agent, &mut Engine::new(1), 50);
    delivered(&agent, last).await;
    let kept: Vec<u64> = (40..50).collect();
    assert_eq!(index.notes().received, kept);
    assert_eq!(index.notes().hellos[0].first_sequence, Some(0));
    assert_eq!(agent.uplinks()[0].skipped_batches, 40);
}

/// An agent that lost its journal must not go on under the same incarnation: it says so.
#[tokio::test]
async fn an_index_that_is_ahead_of_the_journal_is_a_fault() {
    let mut tasks = JoinSet::new();
    let script = Script { applied: Some(99), ..Script::default() };
    let (index, address) = Index::start(script, &mut tasks).await;
    let agent = start(config(vec![url(address)])).await;
    publish(&agent, &mut Engine::new(1), 10);
    let expected = "the index has batch 99 of this incarnation, the journal ends at Some(9): begin \
                    a new incarnation when the journal is lost";
    let mut told = agent.watch_uplinks().remove(0);
    let told = timeout(PATIENCE, told.wait_for(|status| status.error.is_some())).await;
    let status = told.expect("a fault").expect("an uplink").clone();
    assert_eq!((status.error.as_deref(), status.connected), (Some(expected), false));
    assert!(index.notes().received.is_empty());
}

/// Also while nothing happens, and while nothing is answered.
#[tokio::test]
async fn heartbeats_name_the_newest_batch() {
    let mut tasks = JoinSet::new();
    let script = Script { gated: true, ..Script::default() };
    let (index, address) = Index::start(script, &mut tasks).await;
    let mut config = config(vec![url(address)]);
    config.heartbeat_interval = Duration::from_millis(10);
    let agent = start(config).await;
    let mut beats = index.beats.subscribe();
    for batches in [0, 5, 500] {
        let last = (batches > 0).then(|| publish(&agent, &mut Engine::new(1), batches));
        let named = async {
            while index.notes().heartbeats.last() != Some(&last) {
                beats.changed().await.expect("the index is there");
            }
        };
        timeout(PATIENCE, named).await.expect("a heartbeat names it");
    }
}

#[tokio::test]
async fn an_agent_says_why_it_does_not_start() {
    let many = config(vec!["http://127.0.0.1:1".to_owned(); INDEXERS_MAX + 1]);
    let mut nameless = config(vec![]);
    nameless.source.name.clear();
    let mut sizeless = config(vec![]);
    sizeless.source.block_size = 0;
    for (config, expected) in [
        (many, "17 indexers are given, the limit is 16"),
        (nameless, "source: source is required"),
        (sizeless, "source: block_size is 0, must be 1 to 65536"),
    ] {
        let error = Agent::start(config).await.expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
    let taken = start(config(vec![])).await;
    let mut second = config(vec![]);
    second.listen = taken.local_address();
    let error = Agent::start(second).await.expect_err("the port is taken");
    assert!(matches!(error, AgentError::Listen { .. }), "{error:?}");
}
