//! Indexes that begin: when they are ready, and that nothing keeps them from beginning, or from ending.

use crate::agents::Broker;
use crate::fleet::{check, flags, fleet, held, index, kept, known, readiness, until};
use async_nats::jetstream::object_store::{self, ObjectMetadata};
use async_nats::jetstream::{self, Context};
use futures::TryStreamExt;
use kvasir_proto::broker::{COVERAGE, SNAPSHOTS, STREAM};
use kvasir_sim::client;
use kvasir_sim::server::Server;
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

/// What replicas say that they have of the stream.
async fn posted(context: &Context) -> Vec<String> {
    let Ok(coverage) = context.get_key_value(COVERAGE).await else { return Vec::new() };
    let keys = coverage.keys().await.expect("the keys");
    let keys: Vec<String> = keys.try_collect().await.expect("the keys");
    let mut all = Vec::new();
    for key in keys {
        let value = coverage.get(key).await.expect("a value").unwrap_or_default();
        all.push(String::from_utf8_lossy(&value).into_owned());
    }
    all
}

/// The snapshot is announced and does not come, as when it is replaced while it is read.
#[tokio::test]
async fn a_snapshot_that_does_not_come_is_given_up() {
    let broker = Broker::start().await;
    let holders = fleet(&broker, Delivery::Jetstream, None).await;
    let context = jetstream::new(broker.client().await);
    let bucket = format!("{SNAPSHOTS}-shard-0-of-1");
    let config = object_store::Config { bucket: bucket.clone(), ..Default::default() };
    let objects = context.create_object_store(config).await.expect("a bucket");
    let position = "17 4".to_owned();
    let named = ObjectMetadata {
        name: "index".to_owned(),
        description: Some(position.clone()),
        ..ObjectMetadata::default()
    };
    objects.put(named, &mut &[7; 1 << 18][..]).await.expect("an object");
    let stored = context.get_stream(format!("OBJ_{bucket}")).await.expect("its stream");
    let pieces = format!("$O.{bucket}.C.>");
    let purged = stored.purge().filter(pieces).await.expect("its pieces are gone");
    assert!(purged.purged > 0);
    let folder = tempfile::tempdir().expect("a folder");
    let flags = kept(&broker, folder.path(), &[]);
    let server = index(&flags).await;
    waits(&server, "for a snapshot").await;
    interrupted(server).await;
    let mut server = index(&flags).await;
    waits(&server, "for a snapshot").await;
    // Before it is there, nobody may let go of what comes after it.
    until("it says how far the snapshot goes", async || posted(&context).await.contains(&position))
        .await;
    until("it goes on", async || !readiness(&server).await.1.contains("for a snapshot")).await;
    check(&server, &holders).await;
    server.stop().await;
}
