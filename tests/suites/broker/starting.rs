//! Indexes that begin: when they are ready, and that nothing keeps them from beginning, or from ending.

use crate::agents::Broker;
use crate::fleet::{check, flags, fleet, held, index, kept, known, readiness, until};
use async_nats::jetstream;
use kvasir_proto::broker::{SNAPSHOTS, STREAM};
use kvasir_tests::client;
use kvasir_tests::server::Server;
use kvbm_agent::broker::Delivery;
use rustix::process::Signal;
use std::time::Duration;
use tokio::time::timeout;

/// The shortest wait at the start that a signal must not wait for.
const WAITS_AT_LEAST: Duration = Duration::from_secs(10);

/// Waits until the start is under way: it then waits for the broker, and for long.
async fn waits(server: &Server, for_what: &str) {
    until(for_what, async || {
        let (status, text) = readiness(server).await;
        assert_eq!(status, 503, "{text}");
        text.contains(for_what)
    })
    .await;
}

async fn interrupted(mut server: Server) {
    server.signal(Signal::INT).expect("it runs");
    let end = timeout(WAITS_AT_LEAST / 2, server.exited()).await.expect("it ends at once");
    let end = end.to_string();
    assert!(end.starts_with("the server ended with exit status: 0"), "{end}");
}

/// The stream says nothing of what workers hold; they are heard of within some seconds.
#[tokio::test]
async fn an_index_over_an_emptied_stream_is_not_ready_before_workers_are_in_it() {
    let broker = Broker::start().await;
    let holders = fleet(&broker, Delivery::Jetstream, None).await;
    for holder in &holders {
        holder.delivered().await;
    }
    let context = jetstream::new(broker.client().await);
    let stream = context.get_stream(STREAM).await.expect("the stream");
    stream.purge().await.expect("it is emptied");
    let mut server = index(&flags(&broker, "jetstream", &[])).await;
    until("it is ready", async || readiness(&server).await.0 == 200).await;
    for holder in &holders {
        let worker = known(&server, &holder.worker).await.expect("it is known");
        let is_exact = |source| client::is_exact_at(source, holder.last);
        assert!(!worker.sources.is_empty() && worker.sources.iter().all(is_exact), "{worker:?}");
        assert_eq!(held(&server, &holder.worker).await, holder.engine.truth(), "{}", holder.worker);
    }
    server.stop().await;
}

#[tokio::test]
async fn an_index_that_waits_for_the_broker_ends_when_it_is_told_to() {
    let mut broker = Broker::start().await;
    broker.server.kill().await;
    let folder = tempfile::tempdir().expect("a folder");
    let server = index(&kept(&broker, folder.path(), &[])).await;
    waits(&server, "for a snapshot").await;
    interrupted(server).await;
    let by_map = ["--shard", "0/2", "--shard-map", "nats"];
    let server = index(&flags(&broker, "jetstream", &by_map)).await;
    waits(&server, "map of shards").await;
    interrupted(server).await;
}

/// The snapshot is announced and does not come, as when it is replaced while it is read.
#[tokio::test]
async fn a_snapshot_that_does_not_come_is_given_up() {
    let broker = Broker::start().await;
    let holders = fleet(&broker, Delivery::Jetstream, None).await;
    let context = jetstream::new(broker.client().await);
    let config =
        jetstream::object_store::Config { bucket: SNAPSHOTS.to_owned(), ..Default::default() };
    let objects = context.create_object_store(config).await.expect("a bucket");
    objects.put("shard-0-of-1", &mut &[7; 1 << 18][..]).await.expect("an object");
    let stored = context.get_stream(format!("OBJ_{SNAPSHOTS}")).await.expect("its stream");
    let pieces = format!("$O.{SNAPSHOTS}.C.>");
    let purged = stored.purge().filter(pieces).await.expect("its pieces are gone");
    assert!(purged.purged > 0);
    let folder = tempfile::tempdir().expect("a folder");
    let flags = kept(&broker, folder.path(), &[]);
    let server = index(&flags).await;
    waits(&server, "for a snapshot").await;
    interrupted(server).await;
    let mut server = index(&flags).await;
    waits(&server, "for a snapshot").await;
    until("it goes on", async || !readiness(&server).await.1.contains("for a snapshot")).await;
    check(&server, &holders).await;
    server.stop().await;
}
