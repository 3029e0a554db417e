//! States of workers, in answers and in `/metrics`.

use crate::harness::{Publisher, Server, hello, query, registration, stored, within};
use indexer_server::ingest::RANKS_SHOWN_MAX;
use kvasir_proto::pb::{self, publish_events_request, publish_events_response};
use std::collections::BTreeSet;

/// Waits until `/metrics` contains all these lines, then returns it.
async fn metrics_with(server: &Server, lines: &[&str]) -> String {
    within(async {
        loop {
            let (_, metrics) = server.http("/metrics").await;
            if lines.iter().all(|line| metrics.contains(&format!("{line}\n"))) {
                return metrics;
            }
        }
    })
    .await
}

/// Publishes a stored block for a rank.
async fn feed(publisher: &mut Publisher, sequence: u64, dp_rank: u32) {
    let event = Some(stored(None, &[1]));
    let events = vec![pb::PublishedEvent { event }];
    let batch = pb::PublishBatch { sequence, dp_rank, events };
    publisher.send(publish_events_request::Message::Batch(batch)).await;
    let answer = publisher.answer().await.expect("an open stream").expect("an answer");
    assert!(matches!(answer, publish_events_response::Message::Ack(_)), "{answer:?}");
}

#[tokio::test]
#[expect(clippy::excessive_nesting, reason = "a condition is looked at again and again")]
async fn an_engine_that_is_gone_is_told_from_one_that_is_slow() {
    let (server, mut client) = Server::with_worker(&[]).await;
    client.register_worker(registration("unheard")).await.expect("a second worker");
    let mut first = server.publisher(hello("w", "first", 1)).await;
    let mut second = server.publisher(hello("w", "second", 2)).await;
    feed(&mut first, 1, 0).await;
    feed(&mut first, 2, 1).await;
    feed(&mut second, 1, 0).await;
    let connected = async |expected: [bool; 2]| {
        let mut client = server.indexer().await;
        within(async {
            loop {
                let answer = client.find_matches(query(&[1])).await.expect("a valid query");
                let matches = answer.into_inner().matches;
                let now: Vec<_> = matches.iter().map(|at| (at.dp_rank, at.connected)).collect();
                if now == [(0, expected[0]), (1, expected[1])] {
                    return matches;
                }
            }
        })
        .await
    };
    connected([true, true]).await;
    let text = metrics_with(
        &server,
        &[
            "kvasir_worker_connected{model=\"m\",tenant=\"\",worker=\"w\",rank=\"0\"} 1",
            "kvasir_worker_connected{model=\"m\",tenant=\"\",worker=\"w\",rank=\"1\"} 1",
            "kvasir_worker_lag_batches{model=\"m\",tenant=\"\",worker=\"w\",rank=\"0\"} 0",
            "kvasir_worker_state{model=\"m\",tenant=\"\",worker=\"w\",rank=\"0\",state=\"exact\"} 1",
            "kvasir_worker_state{model=\"m\",tenant=\"\",worker=\"w\",rank=\"0\",state=\"gap\"} 0",
            "kvasir_worker_state{model=\"m\",tenant=\"\",worker=\"unheard\",rank=\"\",state=\"cold\"} 1",
            "kvasir_worker_connected{model=\"m\",tenant=\"\",worker=\"unheard\",rank=\"\"} 0",
            "kvasir_worker_ranks_left_out 0",
        ],
    )
    .await;
    let age =
        "kvasir_worker_verified_age_seconds{model=\"m\",tenant=\"\",worker=\"w\",rank=\"0\"} ";
    let age = text.lines().find_map(|line| line.strip_prefix(age)).expect("an age");
    assert!((0.0..30.0).contains(&age.parse::<f64>().expect("seconds")), "{age}");
    assert!(!text.contains("age_seconds{model=\"m\",tenant=\"\",worker=\"unheard\""), "{text}");

    // One of the two sources of rank 0 leaves. Only the other one feeds rank 1.
    drop(second);
    let matches = connected([false, true]).await;
    assert_eq!(matches[0].state(), pb::WorkerState::CatchingUp);
    metrics_with(
        &server,
        &[
            "kvasir_worker_connected{model=\"m\",tenant=\"\",worker=\"w\",rank=\"0\"} 0",
            "kvasir_worker_state{model=\"m\",tenant=\"\",worker=\"w\",rank=\"0\",state=\"catching_up\"} 1",
            "kvasir_worker_state{model=\"m\",tenant=\"\",worker=\"w\",rank=\"0\",state=\"exact\"} 0",
            "kvasir_worker_state{model=\"m\",tenant=\"\",worker=\"w\",rank=\"1\",state=\"exact\"} 1",
        ],
    )
    .await;
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_scrape_shows_so_many_ranks_and_counts_the_others() {
    const RANKS: u32 = 500;
    let server = Server::start(&[]).await;
    let mut client = server.indexer().await;
    // Registered in reverse order, because the selection must not depend on the order.
    for worker in ["w2", "w1", "w0"] {
        client.register_worker(registration(worker)).await.expect("a worker");
        let mut publisher = server.publisher(hello(worker, "s", 1)).await;
        for rank in 0..RANKS {
            feed(&mut publisher, u64::from(rank) + 1, rank).await;
        }
    }
    let total = 3 * RANKS as usize;
    let left_out = format!("kvasir_worker_ranks_left_out {}", total - RANKS_SHOWN_MAX);
    let text = metrics_with(&server, &[&left_out]).await;
    for (family, series) in [
        ("kvasir_worker_state{", 6 * RANKS_SHOWN_MAX),
        ("kvasir_worker_connected{", RANKS_SHOWN_MAX),
        ("kvasir_worker_lag_batches{", RANKS_SHOWN_MAX),
    ] {
        let found: BTreeSet<_> = text.lines().filter(|line| line.starts_with(family)).collect();
        assert_eq!(found.len(), series, "{family}");
        let last = |worker: &str, rank: usize| {
            let labels = format!("worker=\"{worker}\",rank=\"{rank}\"");
            found.iter().any(|line| line.contains(&labels))
        };
        let room = RANKS_SHOWN_MAX - 2 * RANKS as usize;
        assert!(last("w1", RANKS as usize - 1) && last("w2", room - 1) && !last("w2", room));
    }
    server.stop().await.expect("a clean stop");
}
